"""Checking a finished audit without its engine: the hashes of its files, and all that it says."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

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
from fairqr.evaluation.experiments.folder import versions

ROUNDING = {".json": 1e-9, ".csv": 1e-5}
"""What numbers of two machines may differ by: figures have ten digits, tables of queries six."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")

DIFFERENCES_SHOWN = 5

MakeAgain = Callable[[Path, Path], object]
"""Writes all files of an audit again, from its folder into another one."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What checking an audit found.

    Attributes:
        digest: The SHA-256 of its manifest.
        files: How many files have the hash that the manifest says.
        problems: One sentence each; none if the audit is as it was made.
        unchecked: What could not be checked, one sentence each.
    """

    digest: str
    files: int
    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = ()


def verify(
    folder: Path, digest: str | None = None, make_again: MakeAgain | None = None
) -> Verification:
    """Check that an audit is as it was made, without the engine.

    Hashes alone show what was damaged. Who changes a file on purpose can change its hash in the
    manifest, too: then the digest, which the audit printed, or the files that are made again show
    it.

    Args:
        folder: The folder of the audit.
        digest: What the audit printed at its end.
        make_again: Writes figures, tables and the report again, from ``raw/`` and the manifest.

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
        return Verification(own, 0, tuple(problems))
    if manifest.text.encode() != content:
        problems.append("The manifest was changed: it is not written as fairqr writes it.")
    if not manifest.finished:
        problems.append("The audit is not finished; run it again to go on with it.")
        return Verification(own, 0, tuple(problems))
    intact = _check_files(folder, manifest, problems)
    unchecked = _check_figures(folder, manifest, make_again, problems) if make_again else []
    return Verification(own, intact, tuple(problems), tuple(unchecked))


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


def _check_figures(
    folder: Path, manifest: AuditManifest, make_again: MakeAgain, problems: list[str]
) -> list[str]:
    """Make figures, tables and the report again, compare them, and say what was not compared."""
    unchecked = [
        "What the engine answered: run the audit again, or compare the digest that you were given."
    ]
    drawn_by, own = manifest.versions.get("matplotlib"), versions().get("matplotlib")
    if drawn_by != own:
        unchecked.append(
            f"Pictures and the report with them: matplotlib {drawn_by} drew them, not {own}."
        )
    try:
        with TemporaryDirectory() as place:
            make_again(folder, Path(place))
            made = {name: path.read_bytes() for name, path in contents_of(Path(place))[0].items()}
        compared = {
            name: again
            for name, again in made.items()
            if drawn_by == own or name.endswith((".csv", ".json"))
        }
        different = [it for name in compared for it in _compared(folder, name, compared[name])]
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
        return unchecked
    problems += [
        f"The file {shown_name(name)} is none that an audit makes."
        for name in manifest.files
        if name not in made and not name.startswith("raw/")
    ]
    problems += different[:DIFFERENCES_SHOWN]
    if len(different) > DIFFERENCES_SHOWN:
        problems.append(f"Further lines that differ: {len(different) - DIFFERENCES_SHOWN:,}.")
    return unchecked


def _compared(folder: Path, name: str, again: bytes) -> Iterator[str]:
    """Yield a sentence for each line of a file that is another one than made again."""
    kept = (folder / name).read_bytes()
    if again == kept:
        return
    # Figures have more digits than two machines agree on; what people read has less.
    rounding = ROUNDING.get(Path(name).suffix, 0.0)
    lines = itertools.zip_longest(*(it.decode().splitlines() for it in (kept, again)), fillvalue="")
    for number, (said, given) in enumerate(lines, start=1):
        if said != given and not _are_equal(said, given, rounding):
            one, other = (one_line(it.strip(), 60) for it in _apart(said, given))
            yield f"{name}, line {number}, says '{shown_name(one)}', and raw/ gives '{other}'."


def _apart(said: str, given: str) -> tuple[str, str]:
    """Return where two lines begin to differ."""
    places = enumerate(zip(said, given, strict=False))
    start = max(next((at for at, (one, other) in places if one != other), 0) - 20, 0)
    return said[start:], given[start:]


def _are_equal(said: str, given: str, rounding: float) -> bool:
    """Return whether two lines differ in nothing but the last digits of numbers."""
    one, other = ([float(it) for it in _NUMBER.findall(line)] for line in (said, given))
    return _NUMBER.split(said) == _NUMBER.split(given) and all(
        math.isclose(*pair, rel_tol=rounding, abs_tol=rounding)
        for pair in zip(one, other, strict=True)
    )
