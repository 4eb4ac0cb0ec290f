"""Signing the manifest of a run by an SSH key, through the installed ``ssh-keygen``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.evaluation.experiments.folder import SealedFolder

NAMESPACE = "fairqr"
"""Keeps what the key signed for other purposes from passing as the signature of a run."""


def check_key(key: Path) -> None:
    """Check that a key can be read, before a run takes its time.

    Raises:
        InputError: It cannot, or ssh-keygen is not installed.
    """
    if _ssh_keygen("-l", "-f", str(key), given=b"").returncode:
        raise InputError(
            f"There is no SSH key {key}; make one with: ssh-keygen -t ed25519 -f {key}"
        )


def sign_folder(folder: SealedFolder[Any], key: Path) -> Path:
    """Sign the manifest of a finished run, and return the file with the signature.

    ssh-keygen asks for a passphrase on the terminal, or uses the agent; with the agent, the key may
    be the public one.

    Raises:
        InputError: The folder holds no finished run, or the key cannot sign.
    """
    check_key(key)
    if not folder.manifest().finished:
        raise InputError(f"The {folder.what} in {folder.folder} is not finished; run it again.")
    if damaged := next(folder.damage(), ""):
        raise InputError(f"{damaged} Sign the {folder.what} as it was made.")
    with TemporaryDirectory() as place:
        copy = shutil.copy(folder.folder / folder.name, place)
        if _ssh_keygen("-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, copy).returncode:
            raise InputError(f"ssh-keygen could not sign with {key}; it says why above.")
        write_beside(folder.signature, Path(f"{copy}.sig").read_bytes())
    return folder.signature


def signer_of(manifest: bytes, signature: Path, allowed: Path) -> str | None:
    """Return who signed a manifest; None if no signer that is allowed did.

    Args:
        manifest: The content of the file.
        signature: Its signature.
        allowed: The file of allowed signers, in the format of ssh-keygen(1).

    Raises:
        InputError: There is no such file, or ssh-keygen is not installed.
    """
    if not allowed.is_file():
        raise InputError(f"There is no file {allowed}; write a name and a public key into it.")
    files = ("-f", str(allowed), "-s", str(signature))
    names = _ssh_keygen("-Y", "find-principals", *files, given=b"").stdout
    for name in names.decode(errors="replace").splitlines():
        verified = _ssh_keygen("-Y", "verify", *files, "-n", NAMESPACE, "-I", name, given=manifest)
        if not verified.returncode:
            return name
    return None


def _ssh_keygen(*arguments: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run it on what is given, or on the terminal, where it may ask for a passphrase or a touch."""
    command, is_silent = ["ssh-keygen", *arguments], given is not None
    try:
        return subprocess.run(command, input=given, capture_output=is_silent, check=False)  # noqa: S603
    except FileNotFoundError:
        raise InputError(
            "Signatures need ssh-keygen; install OpenSSH, such as Debian's openssh-client."
        ) from None
