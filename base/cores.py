"""How many processor cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many cores this process may use.

    ``OMP_NUM_THREADS`` decides if it is set, as for other numeric programs: threads that share a
    core are slower than fewer threads. macOS and Windows only report how many cores the machine
    has.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if wanted.isascii() and wanted.isdigit() and int(wanted):
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
