"""A probe collection: for each query, items that are relevant or not, of a group or not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "CELLS",
    "Cell",
    "Order",
    "ProbeCollection",
    "ProbeItem",
    "ProbeManifest",
    "ProbeQuery",
    "Short",
    "cell_of",
    "shortfalls",
]

Cell = Literal[
    "relevant_unprotected",
    "relevant_protected",
    "irrelevant_unprotected",
    "irrelevant_protected",
]
"""Where an item of a query belongs (FORMULAS L3; DELTR, Zehlike & Castillo 2020)."""

CELLS: tuple[Cell, ...] = (
    "relevant_unprotected",
    "relevant_protected",
    "irrelevant_unprotected",
    "irrelevant_protected",
)
"""In the order in which the discriminatory list has them."""

Order = Literal["shuffled", "bm25", "discriminatory"]
"""The order in which a ranker sees the items first."""

Short = dict[Cell, dict[Literal["queries", "items"], int]]
"""By cell, how many queries lack items in it, and how many items that is together."""

_Count = Annotated[int, Field(ge=0)]


class ProbeItem(BaseModel):
    """A document in the list of a query.

    Attributes:
        id: Of the document.
        title: Its title.
        text: Its text. Where only titles were kept it is empty, unless there is no title: a ranker
            would then have nothing to read.
        relevant: Whether it is relevant for this query.
        protected: Whether it belongs to the protected group.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: str
    text: str = ""
    relevant: bool
    protected: bool

    @property
    def cell(self) -> Cell:
        """Where it belongs."""
        return cell_of(self.relevant, self.protected)


class ProbeQuery(BaseModel):
    """A query with its items.

    Attributes:
        id: Of the topic.
        query: What a ranker is asked.
        items: In the collection's initial order; no id twice.
        short: How many items each cell lacks of what it should have; cells that are full are left
            out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    query: str
    items: tuple[ProbeItem, ...]
    short: dict[Cell, _Count] = {}

    @model_validator(mode="after")
    def _ids_are_distinct(self) -> ProbeQuery:
        if len({item.id for item in self.items}) < len(self.items):
            raise ValueError("an item stands twice")
        return self

    def of_cell(self, cell: Cell) -> list[ProbeItem]:
        """Return the items of a cell, in order."""
        return [item for item in self.items if item.cell == cell]


class ProbeManifest(BaseModel):
    """How a probe collection was built.

    Attributes:
        format: Of the folder.
        name: What results call it, e.g. ``notables, gender: female``.
        source: The collection it was built from, as ``find_collection`` takes it.
        split: Its judgements, where there are several.
        source_fingerprint: A hash over the documents, topics and judgements it was built from.
        attribute: Of the schema.
        protected: What stands for the protected group, e.g. ``female`` or ``non-European``; the
            word that sensitive instructions use.
        unprotected: The same for the others.
        protected_groups: The groups of the schema that count as protected.
        unprotected_groups: Those that do not.
        size: How many items each query should have.
        order: The initial order.
        seed: Of the draws and of ``shuffled``.
        texts: Whether texts were kept beside titles.
        queries: How many queries it has.
        dropped: Why topics were left out, with how many: ``no_relevant_item``.
        short: By cell, how many queries have fewer items in it than they should, and how many items
            are missing together.
        undecided: How many documents that are relevant for any topic were left out since they
            belong to both sides alike, or to neither: their group is unknown.
        missing: How many of these the corpus lacks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
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
    queries: _Count
    dropped: dict[str, _Count] = {}
    short: Short = {}
    undecided: _Count = 0
    missing: _Count = 0


class ProbeCollection(BaseModel):
    """Queries with items, and how they were made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: ProbeManifest
    queries: tuple[ProbeQuery, ...]


def cell_of(relevant: bool, protected: bool) -> Cell:
    """Return where an item belongs."""
    if relevant:
        return "relevant_protected" if protected else "relevant_unprotected"
    return "irrelevant_protected" if protected else "irrelevant_unprotected"


def shortfalls(queries: Iterable[ProbeQuery]) -> Short:
    """Return what queries lack together, by cell; cells that are full everywhere are left out."""
    found: Short = {}
    for query in queries:
        for cell, items in query.short.items():
            total = found.setdefault(cell, {"queries": 0, "items": 0})
            total["queries"] += 1
            total["items"] += items
    return {cell: found[cell] for cell in CELLS if cell in found}
