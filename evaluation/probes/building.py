"""Building a probe collection from documents with judgements.

A query has as many relevant as irrelevant items, and of each as many of the protected group as of
the others, as in the collections of DELTR (Zehlike & Castillo 2020) that Wang et al. (2024, "Do
Large Language Models Rank Fairly?") ask about. What is irrelevant for a query is relevant for
another one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.collections.collection import Collection, Topic
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.probes.collection import (
    CELLS,
    Cell,
    Order,
    ProbeCollection,
    ProbeItem,
    ProbeManifest,
    ProbeQuery,
    cell_of,
    read_probe_collection,
    shortfalls,
)
from fairqr.evaluation.probes.specification import ProbeExperiment, ProbeSettings, ProbeSource
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.fairness.protected import ProtectedGroup
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import ProgressFunction

Preparing = Callable[[str], ProgressFunction]
"""Takes the name of a step, and returns a function that takes the number of documents done."""

TELL_EVERY = 10_000


async def build_probe_collection(
    collection: Collection,
    sides: ProtectedGroup,
    settings: ProbeSettings,
    *,
    texts: bool = True,
    engine: SearchEngine | None = None,
    progress: ProgressFunction | None = None,
) -> ProbeCollection:
    """Build a probe collection.

    Args:
        collection: With judgements.
        sides: The protected groups and the others.
        settings: How many queries and items, in which order, and drawn by which seed.
        texts: Whether items keep their texts.
        engine: Over the documents; only the order ``bm25`` needs it.
        progress: Receives the number of documents read.

    Raises:
        InputError: No relevant document is on one of the sides, or there is no engine for ``bm25``.
        CorpusError: The documents cannot be read.
    """
    each = settings.size // len(CELLS)
    fingerprint = await asyncio.to_thread(source_fingerprint, collection)
    drawn = await asyncio.to_thread(
        draw_items,
        collection,
        sides,
        each=each,
        seed=settings.seed,
        texts=texts,
        progress=progress,
    )
    kept, without_relevant = _queries(collection.topics, drawn, each, settings.queries)
    protected, unprotected = sides.words
    order = settings.order or "shuffled"
    manifest = ProbeManifest(
        name=f"{collection.name}, {sides.attribute}: {protected}",
        source=settings.collection or collection.name,
        split=collection.split,
        source_fingerprint=fingerprint,
        attribute=sides.attribute,
        protected=protected,
        unprotected=unprotected,
        protected_groups=sides.protected,
        unprotected_groups=sides.unprotected,
        size=settings.size,
        order=order,
        seed=settings.seed,
        texts=texts,
        queries=len(kept),
        dropped={"no_relevant_item": without_relevant} if without_relevant else {},
        short=shortfalls(kept),
        undecided=drawn.undecided,
        missing=drawn.missing,
    )
    built = ProbeCollection(manifest=manifest, queries=tuple(kept))
    return await reorder_collection(built, order, engine=engine)


def source_fingerprint(collection: Collection) -> str:
    """Return a hash that changes with the documents, their schema, the topics or the judgements.

    Raises:
        OSError: The documents cannot be read.
    """
    digest = hashlib.sha256(collection.corpus.fingerprint().encode())
    for topic in collection.topics:
        judged = sorted(collection.qrels.get(topic.id, {}).items())
        digest.update(json.dumps([topic.id, topic.title, topic.keywords, judged]).encode())
    return digest.hexdigest()


def _queries(
    topics: Sequence[Topic], drawn: Drawn, each: int, most: int | None
) -> tuple[list[ProbeQuery], int]:
    """Return the queries, and how many topics without a relevant item stood before the last."""
    kept: list[ProbeQuery] = []
    without = 0
    for topic in topics:
        if len(kept) == most:
            break
        cells = drawn.cells[topic.id]
        if not cells["relevant_unprotected"] and not cells["relevant_protected"]:
            without += 1
            continue
        items = tuple(item for cell in CELLS for item in cells[cell])
        short = {cell: each - len(cells[cell]) for cell in CELLS if len(cells[cell]) < each}
        kept.append(ProbeQuery(id=topic.id, query=topic.title, items=items, short=short))
    return kept, without


async def open_probe_collections(
    experiment: ProbeExperiment, *, texts: bool, preparing: Preparing | None = None
) -> tuple[list[ProbeCollection], list[str]]:
    """Build or read all collections of an experiment.

    A source whose attribute the collection lacks is left out, unless all are.

    Args:
        experiment: It names the collections.
        texts: Whether items keep their texts.
        preparing: Receives the name of each step when it starts.

    Returns:
        The collections, and a sentence on each source that was left out.

    Raises:
        InputError: Two have one name; and as :func:`open_probe_collection` raises it.
    """
    sources, notes, found = [*experiment.sources], list[str](), None
    if experiment.collection is not None and any(it.attribute for it in sources):
        found = await _find(experiment.collection, experiment.split, preparing)
        known = found.corpus.schema.attributes
        kept = [it for it in sources if it.attribute is None or it.attribute in known]
        notes = [
            f"Left out is '{one_line(it.attribute)}', which '{found.name}' lacks; '--set "
            f"sources=ATTRIBUTE=GROUP' names one of {', '.join(known)}."
            for it in sources
            if it not in kept
        ]
        sources, notes = (kept, notes) if kept else (sources, [])
    collections = [
        await open_probe_collection(
            source, experiment, texts=texts, preparing=preparing, collection=found
        )
        for source in sources
    ]
    names = [collection.manifest.name for collection in collections]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"Two probe collections are called '{one_line(twice[0])}'; leave one of them out."
        )
    return collections, notes


async def open_probe_collection(
    source: ProbeSource,
    settings: ProbeSettings,
    *,
    texts: bool = True,
    preparing: Preparing | None = None,
    collection: Collection | None = None,
) -> ProbeCollection:
    """Build a probe collection, or read one that was built.

    Args:
        source: A folder, or an attribute and a protected group.
        settings: For a folder, only the order and the number of queries count.
        texts: Whether items keep their texts, where a collection is built.
        preparing: Receives the name of each step when it starts.
        collection: The collection that the settings name, where it was read before.

    Raises:
        InputError: The folder or the collection is missing, damaged, or lacks what is named.
    """
    if source.folder is not None:
        read = await asyncio.to_thread(read_probe_collection, Path(source.folder))
        return await _in_order(first_queries(read, settings.queries), settings.order, preparing)
    if settings.collection is None or source.attribute is None or source.protected is None:
        raise InputError("Name a collection, an attribute and its protected group, or a folder.")
    if collection is None:
        collection = await _find(settings.collection, settings.split, preparing)
    attribute = collection.corpus.schema.attribute(source.attribute)
    sides = ProtectedGroup.parse(attribute, source.protected, source.words)
    engine = await _engine(collection, preparing) if settings.order == "bm25" else None
    try:
        return await build_probe_collection(
            collection,
            sides,
            settings,
            texts=texts,
            engine=engine,
            progress=preparing(f"reading {collection.name}") if preparing else None,
        )
    finally:
        if engine is not None:
            await engine.aclose()


def first_queries(collection: ProbeCollection, most: int | None) -> ProbeCollection:
    """Return a collection with only its first queries; its manifest counts only these."""
    if most is None or most >= len(collection.queries):
        return collection
    kept = collection.queries[:most]
    changes = {"queries": len(kept), "short": shortfalls(kept)}
    return ProbeCollection(manifest=collection.manifest.model_copy(update=changes), queries=kept)


async def _in_order(
    read: ProbeCollection, order: Order | None, preparing: Preparing | None
) -> ProbeCollection:
    manifest = read.manifest
    if order is None or order == manifest.order:
        return read
    if order != "bm25":
        return await reorder_collection(read, order)
    collection = await _find(manifest.source, manifest.split, preparing)
    if await asyncio.to_thread(source_fingerprint, collection) != manifest.source_fingerprint:
        raise InputError(
            f"The collection '{manifest.source}' has changed since the probe collection "
            f"'{manifest.name}' was built of it, so bm25 would rank other documents; build it "
            "again, or choose another order."
        )
    engine = await _engine(collection, preparing)
    try:
        return await reorder_collection(read, order, engine=engine)
    finally:
        await engine.aclose()


async def _find(name: str, split: str | None, preparing: Preparing | None) -> Collection:
    progress = preparing(f"importing {name}") if preparing else None
    return await asyncio.to_thread(find_collection, name, split, progress=progress)


async def _engine(collection: Collection, preparing: Preparing | None) -> SearchEngine:
    return await Catalog().resolve(
        collection.corpus_name,
        progress=(lambda name: preparing(f"indexing {name}")) if preparing else None,
    )


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn.

    Attributes:
        cells: By topic and cell.
        undecided: How many documents that are relevant for any topic have no side.
        missing: How many of these the corpus lacks.
    """

    cells: Mapping[str, Mapping[Cell, list[ProbeItem]]]
    undecided: int
    missing: int


def draw_items(
    collection: Collection,
    sides: ProtectedGroup,
    *,
    each: int,
    seed: int,
    texts: bool,
    progress: ProgressFunction | None = None,
) -> Drawn:
    """Draw documents for each cell of each topic.

    What is relevant for any topic is a candidate for all: a relevant one for its own topics, an
    irrelevant one for the others. The draw of a cell depends on the seed, the topic's id and the
    candidates of this cell in the order of the corpus.

    Args:
        collection: Its documents are read once; no more of them are held than are drawn.
        sides: The protected groups and the others.
        each: The most documents in a cell.
        seed: The seed of the draws.
        texts: Keep texts beside titles.
        progress: Receives the number of documents read, now and then.

    Raises:
        InputError: A side has no candidate at all.
        CorpusError: The documents cannot be read, or a line is not a document.
        UnknownAttributeError: The schema has no such attribute.
    """
    attribute = collection.corpus.schema.attribute(sides.attribute)
    wanted: dict[str, set[str]] = {}
    for topic in collection.topics:
        for id_ in collection.relevant(topic.id):
            wanted.setdefault(id_, set()).add(topic.id)
    cells = {
        topic.id: {
            cell: _Reservoir(each, stream(seed, f"{topic.id} draw {cell}")) for cell in CELLS
        }
        for topic in collection.topics
    }
    sizes = {True: 0, False: 0}
    count = undecided = 0
    for count, document in enumerate(collection.corpus.documents(), start=1):
        if progress and not count % TELL_EVERY:
            progress(count)
        # Taken out, so that a document that occurs twice in the corpus is offered once.
        relevant_for = wanted.pop(document.id, None)
        if relevant_for is None:
            continue
        side = int(sides.sides_of([document.membership(attribute)])[0])
        if side < 0:
            undecided += 1
            continue
        protected = side == 1
        sizes[protected] += 1
        # A ranker that reads titles has nothing to read of a document without one.
        text = document.text if texts or not document.title.strip() else ""
        item = ProbeItem(
            id=document.id, title=document.title, text=text, relevant=False, protected=protected
        )
        for topic_id, of_topic in cells.items():
            of_topic[cell_of(topic_id in relevant_for, protected)].offer(item)
    if progress:
        progress(count)
    for protected, groups in ((True, sides.protected), (False, sides.unprotected)):
        if not sizes[protected]:
            raise InputError(
                f"No document that is relevant for a topic of '{collection.name}' belongs to "
                f"{' or '.join(groups)}; choose other groups of {sides.attribute}."
            )
    drawn = {
        topic_id: {cell: _items(reservoir, cell) for cell, reservoir in of_topic.items()}
        for topic_id, of_topic in cells.items()
    }
    return Drawn(drawn, undecided, missing=len(wanted))


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
        self._seen = 0
        self._random = random

    def offer(self, item: ProbeItem) -> None:
        self._seen += 1
        if len(self.kept) < self._size:
            self.kept.append(item)
            return
        place = int(self._random.random() * self._seen)
        if place < self._size:
            self.kept[place] = item


def _items(reservoir: _Reservoir, cell: Cell) -> list[ProbeItem]:
    relevant = cell in ("relevant_protected", "relevant_unprotected")
    return [item.model_copy(update={"relevant": relevant}) for item in reservoir.kept]


async def reorder(
    query: ProbeQuery, order: Order, *, seed: int = 0, engine: SearchEngine | None = None
) -> ProbeQuery:
    """Return a query with its items in an order, whatever order they were in.

    ``shuffled`` is a permutation that seed and query decide. ``discriminatory`` has one cell after
    the other, as :data:`~fairqr.evaluation.probes.collection.CELLS` lists them, and each cell in an
    order that seed and query decide. ``bm25`` is the ranking of the engine by the query; equal
    scores stand in order of id, and what the query does not find comes last.

    Args:
        query: The query and its items.
        order: The new order.
        seed: The seed of ``shuffled`` and ``discriminatory``.
        engine: Needed for ``bm25``.

    Raises:
        InputError: ``bm25`` has no engine.
        UnsupportedError: The engine cannot rank given documents.
        IndexUnavailableError: The engine cannot be reached.
    """
    items: Sequence[ProbeItem]
    # Drawn from the ids in their own order, so that how they stood before changes nothing.
    by_id = sorted(query.items, key=lambda item: item.id)
    if order == "bm25":
        if engine is None:
            raise InputError(
                "The order bm25 needs a search engine over the documents; give one, or choose "
                "shuffled."
            )
        ids = tuple(item.id for item in by_id)
        (hits,) = await engine.search([Query(query.query, len(ids), only=ids)])
        ranks = {id_: rank for rank, id_ in enumerate(hits.ids)}
        items = sorted(by_id, key=lambda item: ranks.get(item.id, len(ranks)))
    elif order == "shuffled":
        items = _permuted(by_id, seed, f"{query.id} shuffled")
    else:
        cells = {cell: [item for item in by_id if item.cell == cell] for cell in CELLS}
        items = [
            item for cell in CELLS for item in _permuted(cells[cell], seed, f"{query.id} {cell}")
        ]
    return query.model_copy(update={"items": tuple(items)})


async def reorder_collection(
    collection: ProbeCollection, order: Order, *, engine: SearchEngine | None = None
) -> ProbeCollection:
    """Return a collection in another order, which its manifest then says; the seed is its own.

    Args:
        collection: Its present order does not matter.
        order: See :func:`reorder`.
        engine: Needed for ``bm25``; it has the documents that the collection was built from.

    Raises:
        InputError: ``bm25`` has no engine.
        UnsupportedError: The engine cannot rank given documents.
        IndexUnavailableError: The engine cannot be reached.
    """
    seed = collection.manifest.seed
    queries = [
        await reorder(query, order, seed=seed, engine=engine) for query in collection.queries
    ]
    changes: Mapping[str, object] = {"order": order}
    return ProbeCollection(
        manifest=collection.manifest.model_copy(update=changes), queries=tuple(queries)
    )


def _permuted(items: Sequence[ProbeItem], seed: int, name: str) -> list[ProbeItem]:
    return [items[place] for place in stream(seed, name).permutation(len(items))]
