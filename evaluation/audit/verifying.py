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

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.base.files import sha256_of
from fairqr.evaluation.audit.bundle import (
    MANIFEST,
    SIGNATURE,
    AuditManifest,
    contents_of,
    shown_name,
)
from fairqr.evaluation.audit.signing import signer_of
from fairqr.evaluation.experiments.folder import versions

ROUNDING = {".json": 1e-9, ".csv": 1e-5}
"""What numbers of two machines may differ by: figures have ten digits, tables of queries six."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")

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
        signed_by: The signer of the manifest, if that was checked.
    """

    digest: str
    files: int
    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    signed_by: str | None = None


def verify(
    folder: Path,
    digest: str | None = None,
    make_again: MakeAgain | None = None,
    allowed_signers: Path | None = None,
) -> Verification:
    """Check that an audit is as it was made, without the engine.

    Hashes alone show what was damaged. Who changes a file on purpose can change its hash in the
    manifest, too: then the digest, which the audit printed, a signature, or the files that are made
    again show it.

    Args:
        folder: The folder of the audit.
        digest: What the audit printed at its end.
        make_again: Writes figures, tables and the report again, from ``raw/`` and the manifest.
        allowed_signers: A file of those who may have signed the manifest, as ssh-keygen(1) reads.

    Raises:
        InputError: The folder holds no audit, or no signature can be checked.
    """
    wanted = None if digest is None else digest.strip().lower().removeprefix("sha256:")
    try:
        content = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise InputError(
            f"{folder} holds no audit ({error.strerror}); make one with 'fairqr audit'."
        ) from None
    own = hashlib.sha256(content).hexdigest()
    problems: list[str] = []
    if wanted is not None and wanted != own:
        problems.append(
            f"The digest of the audit is {own}, not {one_line(wanted, 64)}: the manifest was "
            "changed, or is that of another audit."
        )
    signed_by = None
    if allowed_signers is not None:
        signed_by = signer_of(content, folder / SIGNATURE, allowed_signers)
        if signed_by is None:
            problems.append(
                f"{SIGNATURE} is missing, or no signature of this manifest by a signer in "
                f"{allowed_signers}."
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
    others = "" if wanted or signed_by else ", or compare the digest that you were given"
    unchecked = [f"What was asked and answered: run the audit again{others}."]
    if make_again:
        unchecked += _check_figures(folder, manifest, make_again, problems)
    if allowed_signers is None and (folder / SIGNATURE).exists():
        unchecked.append(f"The signature {SIGNATURE}: name the allowed signers by --signed-by.")
    return Verification(own, intact, tuple(problems), tuple(unchecked), signed_by)


def _check_files(folder: Path, manifest: AuditManifest, problems: list[str]) -> int:
    files, others = contents_of(folder)
    intact = 0
    for name, wanted in manifest.files.items():
        try:
            if name in others:
                problem = "is a link or a device, and no file"
            elif name not in files:
                problem = "is missing"
            elif sha256_of(files[name]) == wanted:
                intact += 1
                continue
            else:
                problem = "was changed"
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        problems.append(f"The file {shown_name(name)} {problem}.")
    known = manifest.files.keys() | {MANIFEST} | ({SIGNATURE} & files.keys())
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
    unchecked = []
    drawn_by, own = manifest.versions.get("matplotlib"), versions().get("matplotlib")
    if drawn_by != own:
        unchecked.append(
            f"Pictures and the report with them: matplotlib {drawn_by} drew them, not {own}."
        )
    try:
        with TemporaryDirectory() as place:
            make_again(folder, Path(place))
            made = {name: path.read_bytes() for name, path in contents_of(Path(place))[0].items()}
        problems += [
            found
            for name, again in made.items()
            if drawn_by == own or name.endswith((".csv", ".json"))
            for found in _differing(name, (folder / name).read_bytes(), again)
        ]
    except Exception as error:  # whatever forged observations may lead to
        why = one_line(error).rstrip(".") or type(error).__name__
        problems.append(f"The figures cannot be computed again: {why}.")
        return unchecked
    problems += [
        f"The file {shown_name(name)} is none that an audit makes."
        for name in manifest.files
        if name not in made and not name.startswith("raw/")
    ]
    return unchecked


def _differing(name: str, kept: bytes, again: bytes) -> Iterator[str]:
    """Yield a sentence on the lines of a file that are others than made again, if there are any."""
    if again == kept:
        return
    # Figures have more digits than two machines agree on; what people read has less.
    rounding = ROUNDING.get(Path(name).suffix, 0.0)
    lines = itertools.zip_longest(*(it.decode().splitlines() for it in (kept, again)), fillvalue="")
    different = [
        (number, said, given)
        for number, (said, given) in enumerate(lines, start=1)
        if said != given and not _are_equal(said, given, rounding)
    ]
    for number, said, given in different[:1]:
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(said, given, strict=False))
        start = max(sum(1 for _ in same) - 20, 0)
        one, other = (shown_name(one_line(it[start:].strip(), 60)) for it in (said, given))
        more = f"; {len(different):,} lines differ" if different[1:] else ""
        yield f"{name}, line {number}, says '{one}', and raw/ gives '{other}'{more}."


def _are_equal(said: str, given: str, rounding: float) -> bool:
    """Return whether two lines differ in nothing but the last digits of numbers."""
    one, other = ([float(it) for it in _NUMBER.findall(line)] for line in (said, given))
    return _NUMBER.split(said) == _NUMBER.split(given) and all(
        math.isclose(*pair, rel_tol=rounding, abs_tol=rounding)
        for pair in zip(one, other, strict=True)
    )
