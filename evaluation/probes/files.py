"""The folder of a probe collection: ``probe.json``, and one query a line in ``queries.jsonl``."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.evaluation.probes.collection import (
    CELLS,
    ProbeCollection,
    ProbeManifest,
    ProbeQuery,
    shortfalls,
)
from fairqr.retrieval.files import write_beside

__all__ = ["MANIFEST", "QUERIES", "check_folder", "read_probe_collection", "write_probe_collection"]

MANIFEST, QUERIES = "probe.json", "queries.jsonl"
BUILT_WITH = "fairqr probe build"


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
            what the manifest says; the sentence tells which.
    """
    manifest = _manifest(folder)
    path = folder / QUERIES
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); build the collection again with "
            f"'{BUILT_WITH}'."
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
    path = folder / MANIFEST
    try:
        return ProbeManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{folder} holds no probe collection ({error.strerror}); build one with "
            f"'{BUILT_WITH} -o {folder}'."
        ) from None
    except ValidationError as error:
        where, _ = first_problem(error)
        at = f" (at {one_line(where)})" if where else ""
        raise InputError(
            f"{path} is damaged or of another version{at}; build the collection again into "
            "another folder."
        ) from None


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
