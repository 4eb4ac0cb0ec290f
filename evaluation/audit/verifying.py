"""Checking a finished audit without its engine: the hashes of its files, and every figure."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fairqr.base.errors import FairqrError, InputError, first_problem, one_line
from fairqr.base.files import sha256_of
from fairqr.evaluation.audit.bundle import (
    HASH,
    MANIFEST,
    NEEDED,
    AuditManifest,
    contents_of,
    shown_name,
)

ROUNDING = 1e-10
"""Figures have 12 digits; where two machines round otherwise, the last digit may differ by one."""

TABLE_ROUNDING = 1e-5
"""Tables of queries have 6 digits."""

DIFFERENCES_SHOWN = 5

Recompute = Callable[[Path], Mapping[str, bytes]]
"""Computes what files of figures must hold, by their names."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What checking an audit found.

    Attributes:
        digest: The SHA-256 of its manifest.
        files: How many files have the hash that the manifest says.
        recomputed: Whether the figures were computed again.
        problems: One sentence each; none if the audit is as it was made.
    """

    digest: str
    files: int
    recomputed: bool
    problems: tuple[str, ...]


def verify(
    folder: Path, digest: str | None = None, recompute: Recompute | None = None
) -> Verification:
    """Check that an audit is as it was made, without the engine.

    Hashes alone show what was damaged. Who changes a file on purpose can change its hash in the
    manifest, too: then the digest, which the audit printed, or the recomputed figures show it.

    Args:
        folder: The folder of the audit.
        digest: What the audit printed at its end.
        recompute: Returns what the files of figures must hold, from ``raw/`` and the manifest.

    Raises:
        InputError: The folder holds no audit, or the digest is none.
    """
    wanted = None if digest is None else digest.strip().lower().removeprefix("sha256:")
    if wanted is not None and not HASH.fullmatch(wanted):
        raise InputError(
            f"'{one_line(wanted, 100)}' is no digest; give the 64 hexadecimal digits that the "
            "audit printed."
        )
    try:
        content = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise InputError(
            f"{folder} holds no audit ({error.strerror}); make one with 'fairqr audit'."
        ) from None
    own = hashlib.sha256(content).hexdigest()
    problems: list[str] = []
    if wanted not in (None, own):
        problems.append(
            f"The digest of the audit is {own}, not {wanted}: the manifest was changed, or is that "
            "of another audit."
        )
    try:
        manifest = AuditManifest.model_validate_json(content)
    except ValidationError as error:
        where, why = first_problem(error)
        at = f" at {shown_name(where)}" if where else ""
        problems.append(f"The manifest cannot be read{at}: {one_line(why)}.")
        return Verification(own, 0, False, tuple(problems))
    if manifest.text.encode() != content:
        problems.append("The manifest was changed: it is not written as fairqr writes it.")
    if not manifest.finished:
        problems.append("The audit is not finished; run it again to go on with it.")
        return Verification(own, 0, False, tuple(problems))
    intact = _check_files(folder, manifest, problems)
    if recompute is not None:
        _check_figures(folder, recompute, problems)
    return Verification(own, intact, recompute is not None, tuple(problems))


def _check_files(folder: Path, manifest: AuditManifest, problems: list[str]) -> int:
    files, others = contents_of(folder)
    for name in NEEDED:
        if name not in manifest.files:
            problems.append(f"The manifest does not list {name}, which every audit has.")
    intact = 0
    for name, wanted in manifest.files.items():
        if name in others:
            problems.append(f"{shown_name(name)} is a link or a device, and no file.")
        elif name not in files:
            problems.append(f"The file {shown_name(name)} is missing.")
        else:
            try:
                is_intact = sha256_of(files[name]) == wanted
                problem = "was changed"
            except OSError as error:
                is_intact, problem = False, f"cannot be read ({error.strerror})"
            intact += is_intact
            if not is_intact:
                problems.append(f"The file {shown_name(name)} {problem}.")
    known = manifest.files.keys() | {MANIFEST}
    problems += [
        f"The file {shown_name(name)} was added: the manifest does not list it."
        for name in [*files, *others]
        if name not in known
    ]
    return intact


def _check_figures(folder: Path, recompute: Recompute, problems: list[str]) -> None:
    try:
        again = recompute(folder)
        different = [it for name, held in again.items() for it in _compared(folder, name, held)]
    except (
        ArithmeticError,
        FairqrError,
        LookupError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        why = one_line(error).rstrip(".") or type(error).__name__
        problems.append(f"The figures cannot be computed again: {why}.")
        return
    problems += different[:DIFFERENCES_SHOWN]
    if len(different) > DIFFERENCES_SHOWN:
        problems.append(f"Further figures that differ: {len(different) - DIFFERENCES_SHOWN:,}.")


def _compared(folder: Path, name: str, again: bytes) -> Iterator[str]:
    """Yield a sentence for each figure of a file that is another one than computed again."""
    try:
        kept = (folder / name).read_bytes()
    except OSError as error:
        yield f"The figures cannot be compared: {name}: {error.strerror}."
        return
    if again == kept:
        return
    # Another machine may round otherwise.
    if name.endswith(".csv"):
        yield from _differences(_Kept(name, TABLE_ROUNDING), _cells(kept), _cells(again))
    else:
        yield from _differences(_Kept(name, ROUNDING), json.loads(kept), json.loads(again))


def _cells(table: bytes) -> dict[str, dict[str, float | str]]:
    """Return the cells of a table by their lines and columns, numbers as such."""
    rows = csv.DictReader(io.StringIO(table.decode()), restkey="a cell beyond the columns")
    return {
        f"line {number}": {name: _number(cell) for name, cell in row.items()}
        for number, row in enumerate(rows, start=2)
    }


def _number(cell: object) -> float | str:
    try:
        return float(str(cell))
    except ValueError:
        return str(cell)


class _Kept(NamedTuple):
    """A file of figures.

    Attributes:
        name: Of the file.
        rounding: What two machines may differ by, as a share of a number.
    """

    name: str
    rounding: float


def _differences(file: _Kept, kept: Any, again: Any, where: str = "") -> Iterator[str]:
    """Yield a sentence for each difference of two JSON documents, apart from rounding."""
    if isinstance(kept, dict) and isinstance(again, dict):
        for name in dict.fromkeys([*kept, *again]):
            at = f"{where}.{name}" if where else name
            if name not in again:
                yield f"{file.name} has {shown_name(at)}, which raw/ does not give."
            elif name not in kept:
                yield f"{file.name} lacks {shown_name(at)}, which raw/ gives."
            else:
                yield from _differences(file, kept[name], again[name], at)
    elif isinstance(kept, list) and isinstance(again, list) and len(kept) == len(again):
        for place, (one, other) in enumerate(zip(kept, again, strict=True)):
            yield from _differences(file, one, other, f"{where}[{place}]")
    elif not _are_equal(kept, again, file.rounding):
        said, given = (one_line(json.dumps(value), 60) for value in (kept, again))
        yield f"{file.name} says {said} at {shown_name(where)}, and raw/ gives {given}."


def _are_equal(kept: Any, again: Any, rounding: float) -> bool:
    numbers = [
        isinstance(value, int | float) and not isinstance(value, bool) for value in (kept, again)
    ]
    if all(numbers):
        return math.isclose(kept, again, rel_tol=rounding, abs_tol=rounding / 100)
    return type(kept) is type(again) and bool(kept == again)
