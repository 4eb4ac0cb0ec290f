"""Probe collections: queries with items that are relevant or not, of a group or not; and pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairqr.agents.ranking.rankers import RankItem
from fairqr.agents.statistics import stream
from fairqr.base.files import write_beside
from fairqr.evaluation.experiments.folder import read_settings
from fairqr.evaluation.probes.specification import Order

Cell = Literal[
    "relevant_unprotected",
    "relevant_protected",
    "irrelevant_unprotected",
    "irrelevant_protected",
]
"""Where an item of a query belongs (DELTR, Zehlike & Castillo 2020)."""

CELLS: tuple[Cell, ...] = get_args(Cell)
"""In the order in which the discriminatory list has them."""

GroupKind = Literal["relevant", "irrelevant"]
Kind = Literal[GroupKind, "relevance"]

GROUP_KINDS: tuple[GroupKind, ...] = ("relevant", "irrelevant")

FILE = "probe.json"

_Count = Annotated[int, Field(ge=0)]


class PlainData(BaseModel):
    """Values that do not change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
    def cell(self) -> Cell:
        """Where it belongs."""
        return CELLS[2 * (not self.relevant) + self.protected]

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
    """How a probe collection was built.

    Attributes:
        name: Its name in results, such as ``notables, gender: female``.
        source: The collection it was built from, as ``find_collection`` takes it.
        split: Its judgements, where there are several.
        source_fingerprint: A hash over the documents, topics and judgements it was built from.
        protected: The word for the protected group, such as ``female`` or ``non-European``; the
            word that sensitive instructions use.
        unprotected: The same for the others.
        protected_groups: The groups of the schema that count as protected.
        unprotected_groups: Those that do not.
        size: How many items each query should have.
        order: The initial order.
        seed: The seed of the draws and of ``shuffled``.
        texts: Whether texts were kept beside titles.
        queries: How many queries it has.
        dropped: Why topics were left out, with how many: ``no_relevant_item``.
        short: By cell, how many queries have fewer items in it than they should, and how many items
            are missing together; cells that are full everywhere are left out.
        undecided: How many documents that are relevant for any topic were left out since they
            belong to both sides alike, or to neither: their group is unknown.
        missing: How many of these the corpus lacks.
    """

    format: Literal[2] = 2
    name: str
    source: str
    split: str | None = None
    source_fingerprint: str
    attribute: str
    protected: str
    unprotected: str
    protected_groups: tuple[str, ...]
    unprotected_groups: tuple[str, ...]
    size: int
    order: Order
    seed: int
    texts: bool
    queries: _Count = 0
    dropped: dict[str, _Count] = {}
    short: dict[Cell, dict[Literal["queries", "items"], int]] = {}
    undecided: _Count = 0
    missing: _Count = 0

    @property
    def words(self) -> tuple[str, str]:
        """The words for both sides, the protected one first."""
        return self.protected, self.unprotected


class CollectionEntry(PlainData):
    """A probe collection as the settings of a run name it.

    Attributes:
        built: How it was built; its name is what results call it.
        sha256: Over how it was built and all its items.
        items: How many the queries have together.
    """

    built: ProbeManifest
    sha256: str
    items: int

    @property
    def name(self) -> str:
        """What results call it."""
        return self.built.name


class ProbeCollection(PlainData):
    """Queries with items, and how they were made; its folder has all of it in ``probe.json``."""

    manifest: ProbeManifest
    queries: tuple[ProbeQuery, ...]

    @classmethod
    def of(
        cls, manifest: ProbeManifest, queries: Sequence[ProbeQuery], **changes: Any
    ) -> ProbeCollection:
        """Return a collection whose manifest has these changes, and counts these queries."""
        known = {**changes, **_counts(manifest.size, queries)}
        return cls(manifest=manifest.model_copy(update=known), queries=tuple(queries))

    @classmethod
    def read(cls, folder: Path) -> ProbeCollection:
        """Read a probe collection.

        Raises:
            InputError: There is none, or it is damaged or of another version.
        """
        return read_settings(folder / FILE, cls, "probe collection")

    def write(self, folder: Path) -> None:
        """Write it into a folder, whole or not at all; the same one gives the same bytes."""
        write_beside(folder / FILE, self.model_dump_json() + "\n")

    @property
    def entry(self) -> CollectionEntry:
        """What the settings of a run say of it."""
        return CollectionEntry(
            built=self.manifest,
            sha256=hashlib.sha256(self.model_dump_json().encode()).hexdigest(),
            items=sum(len(query.items) for query in self.queries),
        )

    @model_validator(mode="after")
    def _is_whole(self) -> ProbeCollection:
        ids = [[item.id for item in query.items] for query in self.queries]
        ids.append([query.id for query in self.queries])
        if any(len(set(each)) < len(each) for each in ids):
            raise ValueError("a query or an item appears twice")
        if any(len({item.cell for item in query.items}) < 2 for query in self.queries):
            raise ValueError("a query has items in fewer than two cells: nothing to compare")
        manifest = self.manifest
        if manifest != manifest.model_copy(update=_counts(manifest.size, self.queries)):
            raise ValueError("the queries are not those that the manifest counts")
        return self


def _counts(size: int, queries: Sequence[ProbeQuery]) -> dict[str, Any]:
    """Return what a manifest tells of its queries: how many there are, and what cells lack."""
    short = {}
    for cell in CELLS:
        lacks = [size // 4 - len(query.of_cell(cell)) for query in queries]
        if any(lacks):
            short[cell] = {"queries": len(lacks) - lacks.count(0), "items": sum(lacks)}
    return {"queries": len(queries), "short": short}


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


def planned_pairs(query: ProbeQuery, limit: int, relevance: int, seed: int) -> list[ProbePair]:
    """Return all pairs of a query that are asked about: relevant, irrelevant, relevance.

    Args:
        query: Its items.
        limit: The most relevant pairs, and the most irrelevant ones.
        relevance: The most pairs that show whether a model judges relevance at all.
        seed: The seed of the draws.
    """
    pairs = [pair for kind in GROUP_KINDS for pair in group_pairs(query, kind, limit, seed)]
    return pairs + relevance_pairs(query, relevance, seed)


def group_pairs(query: ProbeQuery, kind: GroupKind, limit: int, seed: int) -> list[ProbePair]:
    """Match protected with unprotected items that are alike in relevance, at random.

    No item is in two pairs. The draw depends on nothing but the items of the two cells, the seed
    and the query's id: neither on the order of the list nor on other queries; and fewer pairs are
    the first of more. There are none if one of the two cells is empty.

    Args:
        query: Its items.
        kind: Whether both items are relevant or both are not.
        limit: The most pairs.
        seed: The seed of the draw.
    """
    cells = (f"{kind}_protected", f"{kind}_unprotected")
    return [ProbePair(kind, *items) for items in _matched(query, cells, seed, kind)][:limit]


def relevance_pairs(query: ProbeQuery, limit: int, seed: int) -> list[ProbePair]:
    """Match relevant with irrelevant items of the same side, at random.

    They show whether a model judges relevance at all. The sides take turns as long as both have
    pairs, so that neither counts more; no item is in two pairs.

    Args:
        query: Its items.
        limit: The most pairs.
        seed: The seed of the draw.

    Returns:
        Pairs whose relevant item stands as ``protected``.
    """
    turns = list[tuple[int, tuple[ProbeItem, ProbeItem]]]()
    for side in ("protected", "unprotected"):
        cells = (f"relevant_{side}", f"irrelevant_{side}")
        turns += enumerate(_matched(query, cells, seed, f"relevance {side}"))
    turns.sort(key=lambda turn: turn[0])
    return [ProbePair("relevance", *items) for _, items in turns[:limit]]


def _matched(
    query: ProbeQuery, cells: tuple[str, str], seed: int, what: str
) -> list[tuple[ProbeItem, ProbeItem]]:
    random = stream(seed, f"pairs, {what}: {query.id}")
    drawn: list[list[ProbeItem]] = []
    for cell in cells:
        items = sorted(query.of_cell(cell), key=lambda item: item.id)
        drawn.append([items[place] for place in random.permutation(len(items))])
    return list(zip(*drawn, strict=False))
