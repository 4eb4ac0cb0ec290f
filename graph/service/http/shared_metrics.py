"""The folder in which the workers of a command keep their metrics, so that each can report all.

It imports nothing of Prometheus: its client looks for the folder when it is imported.
"""

from __future__ import annotations

import atexit
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder."""

PREFIX = "fairqr-metrics-"
"""The start of such a folder's name; the number of the process that made it follows."""


def share_metrics() -> None:
    """Make a folder for the processes that are forked later; this one removes it when it ends."""
    process = os.getpid()
    _remove_abandoned()
    folder = mkdtemp(prefix=f"{PREFIX}{process}-")
    os.environ[SHARED_FOLDER] = folder

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def _remove_abandoned() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(gettempdir()).glob(f"{PREFIX}*-*"):
        process = folder.name.removeprefix(PREFIX).partition("-")[0]
        if process.isdecimal() and not _lives(int(process)):
            with suppress(OSError):  # another user's
                shutil.rmtree(folder)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def are_shared() -> bool:
    """Return whether there is such a folder."""
    return SHARED_FOLDER in os.environ


def forget_worker(process: int) -> None:
    """Remove the metrics of a process that has ended which only count while it lives."""
    if are_shared():
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(process, os.environ[SHARED_FOLDER])  # type: ignore[no-untyped-call]
