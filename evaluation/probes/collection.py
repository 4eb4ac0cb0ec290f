"""Probe collections: queries with items that are relevant or not, of a group or not; and pairs.

A query has items of four kinds, as in the collections of DELTR (Zehlike & Castillo 2020) that Wang
et al. (2024, "Do Large Language Models Rank Fairly?") ask about: relevant or not, and of the
protected group or not; as many of each kind, unless the experiment names other parts. What is
irrelevant for a query is relevant for another one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

import numpy as np
from pydantic import BaseModel

from fairqr.agents.ranking.rankers import RankItem
from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.collections.collection import Collection, Topic, watched
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.specification import ProbeExperiment
from fairqr.retrieval.fairness.protected import ProtectedGroup
from fairqr.retrieval.rerankers.protection import named_groups
from fairqr.retrieval.sources.documents import Document, ProgressFunction

CELLS = (
    "relevant_unprotected",
    "relevant_protected",
    "irrelevant_unprotected",
    "irrelevant_protected",
)
"""Where an item of a query may belong, in the order of the discriminatory list."""

UNDECIDED = -1
UNPROTECTED = 0
PROTECTED = 1
"""On which side a document is, as :meth:`ProtectedGroup.sides_of` says it."""

Kind = Literal["relevant", "irrelevant", "relevance"]

GROUP_KINDS: tuple[Kind, ...] = ("relevant", "irrelevant")


class PlainData(BaseModel, frozen=True, extra="forbid"):
    """Values that do not change."""


class ProbeItem(PlainData):
    """A document in the list of a query.

    Attributes:
        title: Its title.
        text: Its text. Where only titles were kept it is empty, unless there is no title: a ranker
            would then have nothing to read.
        relevant: Whether it is relevant for this query.
        protected: Whether it belongs to the protected group.
    """

    id: str
    title: str
    text: str = ""
    relevant: bool
    protected: bool

    @property
    def cell(self) -> str:
        """Where it belongs."""
        relevance = "relevant" if self.relevant else "irrelevant"
        side = "protected" if self.protected else "unprotected"
        return f"{relevance}_{side}"

    @property
    def shown(self) -> RankItem:
        """What a ranker may know of it."""
        return RankItem(self.id, self.title, self.text)


class ProbeQuery(PlainData):
    """A query with its items.

    Attributes:
        query: The text that a ranker gets.
        items: In the collection's initial order; no id twice.
    """

    id: str
    query: str
    items: tuple[ProbeItem, ...]

    def of_cell(self, cell: str) -> list[ProbeItem]:
        """Return the items of a cell, in order."""
        return [item for item in self.items if item.cell == cell]


class ProbeManifest(PlainData):
    """How a probe collection was built from the collection of its experiment.

    Attributes:
        name: Its name in results, such as ``notables, gender: female``.
        sides: Its groups; sensitive instructions use their words.
        queries: How many queries it has.
        items: How many items the queries have together, by cell.
        dropped: How many topics were left out, since they have no relevant item, or nothing to
            compare it with.
        undecided: How many documents that are relevant for any topic were left out since they
            belong to both sides alike, or to neither: their group is unknown.
        missing: How many of these the corpus lacks.
    """

    name: str
    sides: ProtectedGroup
    queries: int
    items: dict[str, int]
    dropped: int = 0
    undecided: int = 0
    missing: int = 0


class CollectionEntry(ProbeManifest):
    """A probe collection as the settings of a run name it.

    Attributes:
        sha256: Over how it was built and all its items.
    """

    sha256: str


class ProbeCollection(PlainData):
    """Queries with items, and how they were made."""

    manifest: ProbeManifest
    queries: tuple[ProbeQuery, ...]

    @property
    def text(self) -> str:
        """The content of its file; equal collections have the same."""
        return self.model_dump_json() + "\n"

    @property
    def entry(self) -> CollectionEntry:
        """What the settings of a run say of it."""
        sha256 = hashlib.sha256(self.text.encode()).hexdigest()
        return CollectionEntry(**self.manifest.model_dump(), sha256=sha256)


USUAL = ("gender=female", "gender=female vs male", "continent=not Europe")
"""What the experiments that come with fairqr probe; a collection may lack it."""


def open_probe_collections(
    experiment: ProbeExperiment, *, texts: bool, watcher: StageWatcher
) -> list[ProbeCollection]:
    """Build all probe collections of an experiment.

    All groups are checked before a document is read.

    Args:
        experiment: It names the collection and the groups.
        texts: Whether items keep their texts.
        watcher: Receives the name of each step when it starts, and what was left out.

    Raises:
        FairqrError: The collection is missing, damaged, or lacks what is named, or two probe
            collections would have one name.
    """
    whole = find_collection(experiment.collection, experiment.split)
    compared = _compared(experiment, whole, watcher)
    names = [_name(whole, sides) for sides in compared]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"Two probe collections are called '{one_line(name)}'; drop one.")
    progress = watcher.count(f"reading {whole.name}")
    return [draw_collection(whole, sides, experiment, progress, texts=texts) for sides in compared]


def _compared(
    experiment: ProbeExperiment, whole: Collection, watcher: StageWatcher
) -> list[ProtectedGroup]:
    """Return the groups to compare; of those listed some may be left out."""
    schema = whole.corpus.schema

    def parsed(name: str, protected: str = "") -> ProtectedGroup:
        attribute = schema.attribute(name)
        return ProtectedGroup.parse(attribute, protected or attribute.groups[0], experiment.words)

    name = experiment.attribute
    protected = experiment.protected or ""
    if protected and name is None:
        names = [*schema.attributes]
        groups = [schema.attribute(attribute).groups for attribute in names]
        position, _ = named_groups(protected.split(" vs ")[0], names, groups)
        name = names[position]
    if name is not None:
        return [parsed(name, protected.removeprefix(f"{name}="))]
    compared: list[ProtectedGroup] = []
    missing: list[str] = []
    for source in experiment.sources:
        try:
            compared.append(parsed(*source.split("=", 1)))
        except InputError:
            if source not in USUAL:  # somebody wrote it
                raise
            missing.append(source)
    if not compared:
        compared = [parsed(attribute) for attribute in schema.attributes]
    if missing:
        probed = ", ".join(f"{sides.attribute}={','.join(sides.protected)}" for sides in compared)
        watcher.note(
            f"'{whole.name}' has no {one_line(' and no '.join(missing))}, so we probe {probed}; "
            "'--attribute' and '--protected' name others."
        )
    return compared


def _name(collection: Collection, sides: ProtectedGroup) -> str:
    return f"{collection.name}, {sides.attribute}: {sides.words[0]}"


def draw_collection(
    collection: Collection,
    sides: ProtectedGroup,
    experiment: ProbeExperiment,
    progress: ProgressFunction,
    *,
    texts: bool,
) -> ProbeCollection:
    """Draw documents for each cell of each topic, and put them in the initial order.

    What is relevant for any topic is a candidate for all: a relevant one for its own topics, an
    irrelevant one for the others. The draw of a cell depends on the seed, the topic's id and the
    candidates of this cell in the order of the corpus.

    Args:
        collection: With judgements. Its documents are read once; no more of them are held than are
            drawn.
        sides: The groups of an attribute.
        experiment: How many queries and items, drawn by which seed, and in which order.
        progress: Receives the number of documents read, now and then.
        texts: Keep texts beside titles.

    Raises:
        InputError: No document that is relevant for any topic is on one of the sides.
        CorpusError: The documents cannot be read, or a line is not a document.
    """
    draw = _Draw(collection.topics, experiment)
    draw.read(collection, sides, progress, texts=texts)
    for side, groups in ((UNPROTECTED, sides.unprotected), (PROTECTED, sides.protected)):
        if not draw.by_side[side]:
            raise InputError(
                f"No document that is relevant for a topic of '{collection.name}' belongs to "
                f"{' or '.join(groups)}; choose other groups of {sides.attribute}."
            )
    queries: list[ProbeQuery] = []
    dropped = 0
    for topic in _in_turn(collection.topics, experiment):
        if len(queries) == experiment.queries:
            break
        items = draw.items_of(topic)
        is_comparable = len({item.cell for item in items}) > 1
        if is_comparable and any(item.relevant for item in items):
            ordered = tuple(_ordered(items, topic.id, experiment))
            queries.append(ProbeQuery(id=topic.id, query=topic.title, items=ordered))
        else:
            dropped += 1
    by_cell = Counter[str]()
    for query in queries:
        by_cell.update(item.cell for item in query.items)
    manifest = ProbeManifest(
        name=_name(collection, sides),
        sides=sides,
        queries=len(queries),
        items=by_cell,
        dropped=dropped,
        undecided=draw.by_side[UNDECIDED],
        missing=draw.missing,
    )
    return ProbeCollection(manifest=manifest, queries=tuple(queries))


class _Draw:
    """Draws items for each cell of each topic.

    Args:
        topics: The topics.
        experiment: How many items, drawn by which seed.

    Attributes:
        by_side: How many documents that are relevant for any topic are on each side.
        missing: How many of these the corpus lacks.
    """

    def __init__(self, topics: Sequence[Topic], experiment: ProbeExperiment) -> None:
        self.by_side = Counter[int]()
        self.missing = 0
        self._topics = topics
        self._cells: dict[tuple[str, str], _Reservoir] = {}
        for topic in topics:
            for cell, size in zip(CELLS, experiment.cell_sizes, strict=True):
                random = stream(experiment.seed, f"{topic.id} draw {cell}")
                self._cells[topic.id, cell] = _Reservoir(size, random)

    def read(
        self,
        collection: Collection,
        sides: ProtectedGroup,
        progress: ProgressFunction,
        *,
        texts: bool,
    ) -> None:
        """Read the documents of a collection once, and draw some of them."""
        attribute = collection.corpus.schema.attribute(sides.attribute)
        topics_of: dict[str, set[str]] = {}
        for topic in self._topics:
            for id_ in collection.relevant(topic.id):
                topics_of.setdefault(id_, set()).add(topic.id)
        for document in watched(collection.corpus.documents(), progress):
            # Taken out, so that a document that occurs twice in the corpus is offered once.
            topics = topics_of.pop(document.id, None)
            if topics is None:
                continue
            side = int(sides.sides_of([document.membership(attribute)])[0])
            self.by_side[side] += 1
            if side != UNDECIDED:
                self._offer(document, topics, is_protected=side == PROTECTED, texts=texts)
        self.missing = len(topics_of)

    def _offer(
        self, document: Document, topics: Container[str], *, is_protected: bool, texts: bool
    ) -> None:
        """Offer a document to all topics, as one that is relevant for some of them."""
        # A ranker that reads titles has nothing to read of a document without one.
        has_text = texts or not document.title.strip()
        irrelevant = ProbeItem(
            id=document.id,
            title=document.title,
            text=document.text if has_text else "",
            relevant=False,
            protected=is_protected,
        )
        relevant = irrelevant.model_copy(update={"relevant": True})
        for topic in self._topics:
            item = relevant if topic.id in topics else irrelevant
            self._cells[topic.id, item.cell].offer(item)

    def items_of(self, topic: Topic) -> list[ProbeItem]:
        """Return what was drawn for a topic, cell by cell."""
        items: list[ProbeItem] = []
        for cell in CELLS:
            items += self._cells[topic.id, cell].kept
        return items


def _in_turn(topics: Sequence[Topic], experiment: ProbeExperiment) -> Sequence[Topic]:
    """Return topics in the order in which they are taken."""
    if experiment.topics == "first":
        return topics
    order = stream(experiment.seed, "topics").permutation(len(topics))
    return [topics[position] for position in order]


class _Reservoir:
    """A draw without replacement from items that come one at a time, each equally likely.

    Algorithm R of Vitter (1985), "Random sampling with a reservoir".

    Args:
        size: The most items to draw.
        random: Draws the items.
    """

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self.kept: list[ProbeItem] = []
        self._size = size
        self._offered = 0
        self._random = random

    def offer(self, item: ProbeItem) -> None:
        """Take in an item."""
        self._offered += 1
        if len(self.kept) < self._size:
            self.kept.append(item)
            return
        position = int(self._random.random() * self._offered)
        if position < self._size:
            self.kept[position] = item


def _ordered(
    drawn: Iterable[ProbeItem], topic: str, experiment: ProbeExperiment
) -> list[ProbeItem]:
    """Return items in their initial order, as seed and topic decide; discriminatory: by cell."""
    items = sorted(drawn, key=lambda item: item.id)
    parts: dict[str, list[ProbeItem]] = {"shuffled": items}
    if experiment.order == "discriminatory":
        parts = {cell: [item for item in items if item.cell == cell] for cell in CELLS}
    ordered: list[ProbeItem] = []
    for name, part in parts.items():
        positions = stream(experiment.seed, f"{topic} {name}").permutation(len(part))
        ordered += [part[position] for position in positions]
    return ordered


@dataclass(frozen=True, slots=True)
class ProbePair:
    """Two items to be asked about in both orders.

    Attributes:
        kind: The kind of the pair.
        protected: The protected item; of ``relevance`` pairs the relevant one.
        unprotected: The other one.
    """

    kind: Kind
    protected: ProbeItem
    unprotected: ProbeItem

    @property
    def items(self) -> tuple[ProbeItem, ProbeItem]:
        """Both items, the protected one first."""
        return self.protected, self.unprotected

    @property
    def key(self) -> tuple[str, str, str]:
        """Distinguishes it from the others of its query: its kind, and the ids of its items."""
        return self.kind, self.protected.id, self.unprotected.id


def planned_pairs(query: ProbeQuery, limit: int, relevance: int, seed: int) -> list[ProbePair]:
    """Return all pairs of a query that are asked about: relevant, irrelevant, relevance.

    The first two match protected with unprotected items that are alike in relevance, at random.
    Relevance pairs match relevant with irrelevant items of the same side: they show whether a model
    judges relevance at all. The sides take turns as long as both have pairs, so that neither counts
    more. There are none of a kind if one of its cells is empty.

    No item is in two pairs of a kind. The draw of a kind depends on nothing but the items of its
    two cells, the seed and the query's id: neither on the order of the list nor on other queries;
    and fewer pairs are the first of more.

    Args:
        query: Its items.
        limit: The most relevant pairs, and the most irrelevant ones.
        relevance: The most relevance pairs; their relevant item stands as ``protected``.
        seed: The seed of the draws.
    """
    pairs: list[ProbePair] = []
    for kind in GROUP_KINDS:
        cells = (f"{kind}_protected", f"{kind}_unprotected")
        pairs += _matched(query, kind, cells, "", seed)[:limit]
    by_side = []
    for side in ("protected", "unprotected"):
        cells = (f"relevant_{side}", f"irrelevant_{side}")
        by_side.append(_matched(query, "relevance", cells, f" {side}", seed))
    in_turn: list[ProbePair] = []
    for turn in zip_longest(*by_side):
        in_turn += filter(None, turn)
    return pairs + in_turn[:relevance]


def crossed_pairs(query: ProbeQuery, kind: Kind, limit: int, seed: int) -> list[ProbePair]:
    """Return pairs from the cross product of the protected and the unprotected items of a kind.

    No pair comes twice, and all items are used as evenly as possible: the first pairs are those of
    :func:`planned_pairs`, and then each item of the shorter cell meets the next item of the longer
    one, until all have met.

    Args:
        query: Its items.
        kind: ``relevant`` or ``irrelevant``.
        limit: The most pairs; there may be fewer.
        seed: The seed of the draws.
    """
    cells = (f"{kind}_protected", f"{kind}_unprotected")
    protected, unprotected = _shuffled(query, kind, cells, "", seed)
    pairs: list[ProbePair] = []
    for shift in range(max(len(protected), len(unprotected))):
        if len(pairs) >= limit:
            break
        pairs += [ProbePair(kind, *items) for items in _met(protected, unprotected, shift)]
    return pairs[:limit]


def _met(
    protected: list[ProbeItem], unprotected: list[ProbeItem], shift: int
) -> Iterator[tuple[ProbeItem, ProbeItem]]:
    """Pair each item of the shorter list with the item ``shift`` positions on in the other."""
    for position in range(min(len(protected), len(unprotected))):
        shifted = position + shift
        if len(protected) <= len(unprotected):
            yield protected[position], unprotected[shifted % len(unprotected)]
        else:
            yield protected[shifted % len(protected)], unprotected[position]


def _matched(
    query: ProbeQuery, kind: Kind, cells: tuple[str, str], suffix: str, seed: int
) -> list[ProbePair]:
    """Match the items of two cells at random."""
    first, second = _shuffled(query, kind, cells, suffix, seed)
    return [ProbePair(kind, *items) for items in zip(first, second, strict=False)]


def _shuffled(
    query: ProbeQuery, kind: Kind, cells: tuple[str, str], suffix: str, seed: int
) -> list[list[ProbeItem]]:
    """Return the items of both cells in random order."""
    random = stream(seed, f"pairs, {kind}{suffix}: {query.id}")
    by_cell: list[list[ProbeItem]] = []
    for cell in cells:
        items = sorted(query.of_cell(cell), key=lambda item: item.id)
        order = random.permutation(len(items))
        by_cell.append([items[position] for position in order])
    return by_cell
