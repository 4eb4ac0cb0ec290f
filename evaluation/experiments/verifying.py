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
    own = sha256_of(path) if folder.exists() else ""
    signature = signature_of(path)
    with contextlib.suppress(FileNotFoundError):  # told below
        folder.require_file(signature.name)
    signer = signer_of(path, allowed_signers) if allowed_signers else None
    given = own if digest is None else digest.strip().lower().removeprefix("sha256:")
    unchecked = ["What was asked and answered: only another run can show that."]
    if not allowed_signers and signature.exists():
        unchecked.append(f"The signature {signature.name}: name its signers by --signed-by.")
    if digest is None and not signer:
        unchecked.append("When and how it was made: give the digest that it printed, by --digest.")
    if own and (given != own or (allowed_signers and not signer)):
        told = f"The digest of the {folder.what} is {own}, not {one_line(given, 64)}."
        if given == own:
            told = f"There is no {signature.name} of the manifest by a signer in {allowed_signers}."
        return Verification(own, 0, (told,), tuple(unchecked))
    manifest, problems = folder.manifest(), [*folder.damage()]
    if not manifest.finished:
        problems = [f"The {folder.what} is not finished; run it again."]
    if make_again and not problems:
        made_by = {name: it.split(THEN)[-1] for name, it in manifest.versions.items()}
        drawn_by = made_by.get("matplotlib", "none")
        is_drawn_alike = drawn_by == versions().get("matplotlib", "none")
        if not is_drawn_alike:
            unchecked.append(f"The lines of pictures, which matplotlib {drawn_by} drew.")
        try:
            with TemporaryDirectory() as made:
                make_again(folder.folder, Path(made))
                problems = [*_unlike(folder, Path(made), is_drawn_alike)]
        except Exception as error:  # whatever forged observations may lead to
            why = one_line(error).rstrip(".") or type(error).__name__
            problems = [f"The figures cannot be computed again: {why}."]
        if problems and (version := made_by.get("fairqr")) != versions()["fairqr"]:
            unchecked.append(f"Words and figures of fairqr {version}: verify with that version.")
    return Verification(own, len(manifest.files), tuple(problems), tuple(unchecked), signer)


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
        both = [folder.folder / name, made / name]
        texts = [it.read_bytes().decode(errors="backslashreplace") for it in both]
        texts = texts if is_drawn_alike else [PICTURE.sub(_outline, it) for it in texts]
        parts, rounding = [*map(PARTS.findall, texts)], ROUNDING.get(both[0].suffix, 0)
        for place, (one, other) in enumerate(zip_longest(*parts, fillvalue="")):
            if not _are_alike(one, other, rounding):
                line = parts[0][:place].count("\n") + 1
                said, given = (shown_name(one_line(it, 60)) for it in (one, other))
                yield f"{name}, line {line}, says '{said}', and raw/ gives '{given}'."
                break


def _outline(picture: re.Match[str]) -> str:
    """Return what every version draws alike: the frame, the kinds of elements, and all words."""
    frame, elements = re.sub(r"[\d.]+", "", picture[1]), set(re.findall(r"<([\w:]+)", picture[2]))
    return "\n".join([frame, *sorted(elements), *re.findall(r">\s*([^<>\s][^<>]*)<", picture[2])])


def _are_alike(said: str, given: str, rounding: float) -> bool:
    """Return whether two parts differ in nothing, or in the last digits of a number at most."""
    with contextlib.suppress(ValueError):
        # Whole numbers are ids and counts.
        if rounding and said != given and not (said + given).isdigit():
            return math.isclose(float(said), float(given), rel_tol=rounding, abs_tol=rounding)
    return said == given


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
    content, signature = manifest.read_bytes(), signature_of(manifest)
    done = _ssh_keygen("-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, given=content, stderr=None)
    if done.returncode:
        raise InputError(f"ssh-keygen could not sign with {key}; it says why above.")
    write_beside(signature, done.stdout)
    return signature


def signer_of(manifest: Path, allowed: Path) -> str | None:
    """Return who signed a manifest; None if no signer that is allowed did.

    Args:
        manifest: The file.
        allowed: The file of allowed signers, in the format of ssh-keygen(1).
    """
    files = ("-f", allowed, "-s", signature_of(manifest))
    content = manifest.read_bytes()
    for name in _ssh_keygen("-Y", "find-principals", *files).stdout.decode().splitlines():
        checked = _ssh_keygen("-Y", "verify", *files, "-n", NAMESPACE, "-I", name, given=content)
        if not checked.returncode:
            return name
    return None


def _ssh_keygen(
    *arguments: str | Path, given: bytes = b"", stderr: int | None = subprocess.DEVNULL
) -> subprocess.CompletedProcess[bytes]:
    command = ["ssh-keygen", *arguments]
    return subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=stderr)  # noqa: S603
