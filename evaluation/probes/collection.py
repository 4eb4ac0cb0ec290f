"""A probe collection: for each query, items that are relevant or not, of a group or not."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CELLS", "Cell", "Order", "ProbeCollection", "ProbeItem", "ProbeManifest", "ProbeQuery"]

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

_Count = Annotated[int, Field(ge=0)]


class ProbeItem(BaseModel):
    """A document in the list of a query.

    Attributes:
        id: Of the document.
        title: Its title.
        text: Its text; empty where only titles were kept.
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
        relevance = "relevant" if self.relevant else "irrelevant"
        return f"{relevance}_{'protected' if self.protected else 'unprotected'}"  # type: ignore[return-value]


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

    def of_cell(self, cell: Cell) -> list[ProbeItem]:
        """Return the items of a cell, in order."""
        return [item for item in self.items if item.cell == cell]


class ProbeManifest(BaseModel):
    """How a probe collection was built.

    Attributes:
        format: Of the folder.
        name: What results call it, e.g. ``notables, gender``.
        source: The collection it was built from, as ``find_collection`` takes it.
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
        dropped: Why topics were left out, with how many: ``fewer_than_two_cells``, …
        short: By cell, how many queries have fewer items in it than they should, and how many items
            are missing together.
        undecided: How many documents were left out since they belong to both sides alike, or to a
            group that is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    name: str
    source: str
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
    queries: int
    dropped: dict[str, int] = {}
    short: dict[Cell, dict[Literal["queries", "items"], int]] = {}
    undecided: int = 0


class ProbeCollection(BaseModel):
    """Queries with items, and how they were made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: ProbeManifest
    queries: tuple[ProbeQuery, ...]
