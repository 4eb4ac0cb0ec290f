"""Checking a finished run without its engine: hashes of its files, what they say, and a signer.

Signatures of the manifest are made and checked by the installed ``ssh-keygen``.
"""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fairqr.base.errors import InputError, one_line
from fairqr.base.files import sha256_of, write_beside
from fairqr.evaluation.experiments.folder import THEN, Folder, shown_name, versions

ROUNDING = {".json": 1e-9, ".csv": 1e-5}
"""What numbers of two machines may differ by: figures have ten digits, tables of queries six."""

PARTS = re.compile(r'[^\s,"<>{}\[\]]+|.', re.DOTALL)
"""What is compared one by one: words, numbers, and all that stands between them."""

PICTURE = re.compile(r"(<svg[^>]*>)(.*?)</svg>", re.DOTALL)

NAMESPACE = "fairqr"
"""Keeps what the key signed for other purposes from passing as the signature of a run."""


class Verification(NamedTuple):
    """What checking a sealed run found.

    Attributes:
        digest: The SHA-256 of its manifest.
        files: How many files the manifest lists; 0 if the manifest is not the run's.
        problems: One sentence each; none if the run is as it was made.
        unchecked: What could not be checked, one sentence each.
        signed_by: The signer of the manifest, if that was checked.
    """

    digest: str
    files: int
    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    signed_by: str | None = None


def verify(
    folder: Folder[Any],
    digest: str | None = None,
    make_again: Callable[[Path, Path], object] | None = None,
    allowed_signers: Path | None = None,
) -> Verification:
    """Check that a finished run is as it was made: manifest, then files, then what these say.

    Hashes alone show what was damaged. Who changes a file on purpose can change its hash in the
    manifest, too: then the digest, which the run printed, a signature, or the files that are made
    again show it.

    Args:
        folder: The folder of the run.
        digest: What the run printed at its end.
        make_again: Writes all files that follow from ``raw/`` and the manifest in the folder into
            another one.
        allowed_signers: A file of those who may have signed the manifest, as ssh-keygen(1) reads.

    Raises:
        InputError: The folder holds no run, or a damaged one, or no signature can be checked.
    """
    path = folder.folder / folder.name
    with contextlib.suppress(FileNotFoundError):  # told below
        folder.require_file(folder.name)
    actual = sha256_of(path) if folder.exists() else ""
    signature = signature_of(path)
    with contextlib.suppress(FileNotFoundError):  # told below
        folder.require_file(signature.name)
    signer = signer_of(path, allowed_signers) if allowed_signers else None

    unchecked = ["What was asked and answered: only another run can show that."]
    if not allowed_signers and signature.exists():
        unchecked.append(f"The signature {signature.name}: name its signers by --signed-by.")
    if digest is None and not signer:
        unchecked.append("When and how it was made: give the digest that it printed, by --digest.")
    expected = actual if digest is None else digest.strip().lower().removeprefix("sha256:")
    problem = ""
    if actual and expected != actual:
        problem = f"The digest of the {folder.what} is {actual}, not {one_line(expected, 64)}."
    elif actual and allowed_signers and not signer:
        problem = f"There is no {signature.name} of the manifest by a signer in {allowed_signers}."
    if problem:
        return Verification(actual, 0, (problem,), tuple(unchecked))

    manifest = folder.manifest()
    problems = [*folder.damage()]
    if not manifest.finished:
        problems = [f"The {folder.what} is not finished; run it again."]
    if make_again and not problems:
        checked = _made_again(folder, make_again)
        problems += checked.problems
        unchecked += checked.unchecked
    return Verification(actual, len(manifest.files), tuple(problems), tuple(unchecked), signer)


class _MadeAgain(NamedTuple):
    """What comparing a run with its files that were made again found.

    Attributes:
        problems: One sentence each.
        unchecked: What could not be compared, one sentence each.
    """

    problems: list[str]
    unchecked: list[str]


def _made_again(folder: Folder[Any], make_again: Callable[[Path, Path], object]) -> _MadeAgain:
    """Make the files of a run again, and compare them."""
    manifest = folder.manifest()
    made_by = {name: version.split(THEN)[-1] for name, version in manifest.versions.items()}
    drawn_by = made_by.get("matplotlib", "none")
    is_drawn_alike = drawn_by == versions().get("matplotlib", "none")
    unchecked: list[str] = []
    if not is_drawn_alike:
        unchecked.append(f"The lines of pictures, which matplotlib {drawn_by} drew.")
    try:
        with TemporaryDirectory() as made:
            make_again(folder.folder, Path(made))
            problems = [*_unlike(folder, Path(made), is_drawn_alike)]
    except Exception as error:  # whatever forged observations may lead to
        reason = one_line(error).rstrip(".") or type(error).__name__
        problems = [f"The figures cannot be computed again: {reason}."]
    version = made_by.get("fairqr")
    if problems and version != versions()["fairqr"]:
        unchecked.append(f"Words and figures of fairqr {version}: verify with that version.")
    return _MadeAgain(problems, unchecked)


def _unlike(folder: Folder[Any], made: Path, is_drawn_alike: bool) -> Iterator[str]:
    """Yield a sentence on each file that is not as it was made again.

    Args:
        folder: The run.
        made: The files that were made again.
        is_drawn_alike: Whether the same version draws pictures; else their lines may differ.
    """
    again = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    listed = folder.manifest().files.keys() - folder.evidence
    for name in listed - again:
        yield f"The file {shown_name(name)} does not follow from raw/."
    for name in again - listed:
        yield f"The file {shown_name(name)} is missing."
    for name in again & listed:
        kept = _parts_of(folder.folder / name, is_drawn_alike)
        remade = _parts_of(made / name, is_drawn_alike)
        rounding = ROUNDING.get(Path(name).suffix, 0)
        for position, (first, second) in enumerate(zip_longest(kept, remade, fillvalue="")):
            if not _are_alike(first, second, rounding):
                line = kept[:position].count("\n") + 1
                written = shown_name(one_line(first, 60))
                computed = shown_name(one_line(second, 60))
                yield f"{name}, line {line}, says '{written}', and raw/ gives '{computed}'."
                break


def _parts_of(path: Path, is_drawn_alike: bool) -> list[str]:
    """Return the words and numbers of a file; of pictures what all versions draw alike."""
    text = path.read_bytes().decode(errors="backslashreplace")
    if not is_drawn_alike:
        text = PICTURE.sub(_outline, text)
    return PARTS.findall(text)


def _outline(picture: re.Match[str]) -> str:
    """Return what every version draws alike: the frame, the kinds of elements, and all words."""
    frame = re.sub(r"[\d.]+", "", picture[1])
    kinds = sorted(set(re.findall(r"<([\w:]+)", picture[2])))
    words = re.findall(r">\s*([^<>\s][^<>]*)<", picture[2])
    return "\n".join([frame, *kinds, *words])


def _are_alike(first: str, second: str, rounding: float) -> bool:
    """Return whether two parts differ in nothing, or in the last digits of a number at most."""
    with contextlib.suppress(ValueError):
        # Whole numbers are ids and counts.
        are_whole = (first + second).isdigit()
        if rounding and first != second and not are_whole:
            return math.isclose(float(first), float(second), rel_tol=rounding, abs_tol=rounding)
    return first == second


def signature_of(manifest: Path) -> Path:
    """Return the file that signs a manifest; it is made after it, and not listed in it."""
    return manifest.with_name(f"{manifest.name}.sig")


def sign(manifest: Path, key: Path) -> Path:
    """Sign the manifest of a finished run, and return the signature.

    ssh-keygen asks for a passphrase on the terminal, or uses the agent; with the agent, the key may
    be the public one.

    Raises:
        InputError: The key cannot sign.
    """
    signature = signature_of(manifest)
    arguments = ("-q", "-Y", "sign", "-f", key, "-n", NAMESPACE)
    process = _ssh_keygen(*arguments, stdin=manifest.read_bytes(), stderr=None)
    if process.returncode:
        raise InputError(f"ssh-keygen could not sign with {key}; it says why above.")
    write_beside(signature, process.stdout)
    return signature


def signer_of(manifest: Path, allowed: Path) -> str | None:
    """Return who signed a manifest; None if no signer that is allowed did.

    Args:
        manifest: The file.
        allowed: The file of allowed signers, in the format of ssh-keygen(1).
    """
    files = ("-f", allowed, "-s", signature_of(manifest))
    content = manifest.read_bytes()
    principals = _ssh_keygen("-Y", "find-principals", *files)
    for name in principals.stdout.decode().splitlines():
        arguments = ("-Y", "verify", *files, "-n", NAMESPACE, "-I", name)
        process = _ssh_keygen(*arguments, stdin=content)
        if not process.returncode:
            return name
    return None


def _ssh_keygen(
    *arguments: str | Path, stdin: bytes = b"", stderr: int | None = subprocess.DEVNULL
) -> subprocess.CompletedProcess[bytes]:
    command = ["ssh-keygen", *arguments]
    return subprocess.run(command, input=stdin, stdout=subprocess.PIPE, stderr=stderr)  # noqa: S603
