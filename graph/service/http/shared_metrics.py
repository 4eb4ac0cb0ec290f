"""The folder in which the workers of a command keep their metrics, so that each can tell all.

It imports nothing of Prometheus: its client looks for the folder when it is imported.
"""

from __future__ import annotations

import atexit
import os
import shutil
from tempfile import mkdtemp

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder."""


def share_metrics() -> None:
    """Make a folder for the processes that are forked later; this one removes it when it ends."""
    folder = os.environ[SHARED_FOLDER] = mkdtemp(prefix="fairqr-metrics-")
    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def are_shared() -> bool:
    """Return whether there is such a folder."""
    return SHARED_FOLDER in os.environ


def forget_worker(process: int) -> None:
    """Forget what only holds for a process that lives, as it has ended."""
    if are_shared():
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(process, os.environ[SHARED_FOLDER])  # type: ignore[no-untyped-call]
