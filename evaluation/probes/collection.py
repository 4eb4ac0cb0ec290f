"""A probe collection: for each query, items that are relevant or not, of a group or not.

Its folder has ``probe.json``, which says how it was built, and in ``queries.jsonl`` one query a
line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.base.files import write_beside
from fairqr.evaluation.experiments.folder import read_settings

Cell = Literal[
    "relevant_unprotected",
    "relevant_protected",
    "irrelevant_unprotected",
    "irrelevant_protected",
]
"""Where an item of a query belongs (DELTR, Zehlike & Castillo 2020)."""

CELLS: tuple[Cell, ...] = get_args(Cell)
"""In the order in which the discriminatory list has them."""

Order = Literal["shuffled", "bm25", "discriminatory"]
"""The order in which a ranker sees the items first."""

Short = dict[Cell, dict[Literal["queries", "items"], int]]
"""By cell, how many queries lack items in it, and how many items that is together."""

_Count = Annotated[int, Field(ge=0)]

MANIFEST, QUERIES = "probe.json", "queries.jsonl"


class ProbeItem(BaseModel):
    """A document in the list of a query.

    Attributes:
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
        query: The text that a ranker gets.
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
            raise ValueError("an item appears twice")
        return self

    def of_cell(self, cell: Cell) -> list[ProbeItem]:
        """Return the items of a cell, in order."""
        return [item for item in self.items if item.cell == cell]


class ProbeManifest(BaseModel):
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


def write_probe_collection(collection: ProbeCollection, folder: Path) -> None:
    """Write a probe collection; the same one gives the same bytes.

    Where a folder has it already, or a part of it that a kill left, it is written again.

    Args:
        collection: What to write.
        folder: It is made where it is missing.

    Raises:
        InputError: The folder holds something else, or cannot be written to.
    """
    check_folder(folder, collection.manifest)
    lines = (json.dumps(query.model_dump(), ensure_ascii=False) for query in collection.queries)
    try:
        # This one first: it says whose a half written folder is.
        write_beside(folder / MANIFEST, collection.manifest.model_dump_json(indent=1) + "\n")
        write_beside(folder / QUERIES, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise InputError(
            f"The folder {folder} cannot be written to ({error.strerror}); choose another."
        ) from None


def check_folder(folder: Path, manifest: ProbeManifest | None = None) -> None:
    """Check that a probe collection can be written to a folder; nothing is written.

    Args:
        folder: Empty, missing, or with the same collection.
        manifest: Of what will be written; where it is not known yet, any collection may be there.

    Raises:
        InputError: The folder holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder.")
    if not folder.is_dir():
        return
    if not (folder / MANIFEST).is_file():
        # A kill may have left the file that was to become the manifest.
        if any(not path.name.startswith(f".{MANIFEST}.") for path in folder.iterdir()):
            raise InputError(
                f"The folder {folder} is not empty and has no probe collection; choose another."
            )
        return
    there = _manifest(folder)
    if manifest is None or there == manifest:
        return
    one, other = there.model_dump(), manifest.model_dump()
    names = ", ".join(name for name in one if one[name] != other[name])
    raise InputError(
        f"The folder {folder} holds another probe collection ({names}); choose another folder, or "
        "remove this one."
    )


def read_probe_collection(folder: Path) -> ProbeCollection:
    """Read a probe collection.

    Raises:
        InputError: There is none, it is of another version, a line is damaged, or the lines are not
            what the manifest says; the sentence says which.
    """
    manifest = _manifest(folder)
    path = folder / QUERIES
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); run the probe that wrote it again."
        ) from None
    queries = tuple(
        _query(line, f"{path}, line {number},", manifest)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if len({query.id for query in queries}) < len(queries):
        raise InputError(f"{path} has a query twice; build the collection again.")
    if len(queries) != manifest.queries or shortfalls(queries) != manifest.short:
        raise InputError(
            f"{path} has {len(queries)} queries with other counts than {MANIFEST} says "
            f"({manifest.queries} queries); build the collection again."
        )
    return ProbeCollection(manifest=manifest, queries=queries)


def _manifest(folder: Path) -> ProbeManifest:
    again = "build the collection again"
    made_with = "name a folder within 'collections' of a run of 'fairqr probe'"
    return read_settings(folder / MANIFEST, ProbeManifest, "probe collection", made_with, again)


def _query(line: bytes, where: str, manifest: ProbeManifest) -> ProbeQuery:
    try:
        query = ProbeQuery.model_validate_json(line)
    except ValidationError as error:
        _, reason = first_problem(error)
        raise InputError(
            f"{where} is damaged ({one_line(reason, 120)}); build the collection again."
        ) from None
    each = manifest.size // len(CELLS)
    counts = {cell: len(query.of_cell(cell)) for cell in CELLS}
    if sum(count > 0 for count in counts.values()) < 2:
        raise InputError(
            f"{where} has items in fewer than two cells, so there is nothing to compare; build "
            "the collection again."
        )
    short = {cell: each - count for cell, count in counts.items() if count != each}
    if short != query.short:
        raise InputError(
            f"{where} has other numbers of items than {MANIFEST} and the line itself say; build "
            "the collection again."
        )
    return query
