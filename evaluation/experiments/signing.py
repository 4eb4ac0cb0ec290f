"""Signing the manifest of a finished run, and checking who did, by the installed ``ssh-keygen``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside

NAMESPACE = "fairqr"
"""Keeps what the key signed for other purposes from passing as the signature of a run."""


def signature_of(manifest: Path) -> Path:
    """Return the file that signs a manifest; it is made after it, and not listed in it."""
    return manifest.with_name(f"{manifest.name}.sig")


def check_key(key: Path) -> None:
    """Check that a key can be read, before a run takes its time.

    Raises:
        InputError: It cannot, or ssh-keygen is not installed.
    """
    if _ssh_keygen("-l", "-f", key).returncode:
        raise InputError(
            f"There is no SSH key {key}; make one with: ssh-keygen -t ed25519 -f {key}"
        )


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

    Raises:
        InputError: There is no such file, or ssh-keygen is not installed.
    """
    if not allowed.is_file():
        raise InputError(f"There is no file {allowed}; write a name and a public key into it.")
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
    try:
        return subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=stderr)  # noqa: S603
    except FileNotFoundError:
        raise InputError(
            "Signatures need ssh-keygen; install OpenSSH, such as Debian's openssh-client."
        ) from None
