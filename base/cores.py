"""How many processor cores there are for us."""

from __future__ import annotations

import os

__all__ = ["usable_cores"]


def usable_cores() -> int:
    """Return how many cores this process may use.

    ``OMP_NUM_THREADS`` says it where it is set, as for other programs that compute: threads that
    spin on a core that others use as well are slower than fewer threads. macOS and Windows only
    say how many cores there are.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if wanted.isascii() and wanted.isdigit() and int(wanted):
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
