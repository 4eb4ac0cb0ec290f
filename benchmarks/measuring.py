"""How things are measured here: side by side, in turns, by medians."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        benchmark: The name that the command takes.
        what: What was measured.
        ours: The figure.
        unit: Of both figures.
        peer: What it is compared with; empty if there is no peer.
        theirs: The peer's figure in the same run.
        target: What is to be reached, in words; empty if the row is there to be read only.
        reached: Whether it was.
    """

    benchmark: str
    what: str
    ours: float
    unit: str
    peer: str = ""
    theirs: float | None = None
    target: str = ""
    reached: bool | None = None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's."""
        return self.ours / self.theirs if self.theirs else None

    def as_json(self) -> dict[str, Any]:
        """Return the row as an object for JSON."""
        return {**asdict(self), "ratio": self.ratio}


def cells(row: Row) -> tuple[str, ...]:
    """Return one row's texts."""
    return (
        row.what,
        figure(row.ours, row.unit),
        row.peer,
        "" if row.theirs is None else figure(row.theirs, row.unit),
        "" if row.ratio is None else share(row.ratio),
        row.target,
        {None: "", True: "yes", False: "NO"}[row.reached],
    )


def share(ratio: float) -> str:
    """Return a ratio with two digits, and a small one as a part of one."""
    return f"{ratio:.2f}×" if ratio >= 0.1 else f"1/{1 / ratio:,.0f}"


def figure(value: float, unit: str) -> str:
    """Return a figure with three digits and its unit."""
    digits = 0 if value == int(value) or value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(np.median(values))


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return float(np.percentile(values, 95))


def in_turns(
    calls: Mapping[str, Callable[[int], object]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Time several calls in turns, so that what else the machine does falls on all of them.

    Args:
        calls: By name; each is given the number of the round.
        rounds: How often each is timed.
        warm_up: Rounds before those that are timed.

    Returns:
        Milliseconds, by name.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-warm_up, rounds):
        # The order turns about, so that nobody always comes after the same neighbour.
        for name in _order(calls, number):
            start = time.perf_counter()
            calls[name](abs(number))
            if number >= 0:
                taken[name].append((time.perf_counter() - start) * 1000)
    return taken


async def in_turns_async(
    calls: Mapping[str, Callable[[int], Awaitable[object]]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Time awaitable calls in turns; see :func:`in_turns`."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-warm_up, rounds):
        for name in _order(calls, number):
            start = time.perf_counter()
            await calls[name](abs(number))
            if number >= 0:
                taken[name].append((time.perf_counter() - start) * 1000)
    return taken


def _order(calls: Mapping[str, object], number: int) -> list[str]:
    names = list(calls)
    return names if number % 2 == 0 else names[::-1]


class PeakMemory:
    """Watches the memory of this process while it is open, every few milliseconds.

    Attributes:
        megabytes: The most that was resident, in MB.
        own_megabytes: The most that was its own: without the pages of mapped files, which the
            system takes back when it needs them.
    """

    def __init__(self) -> None:
        self.megabytes = self.own_megabytes = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self._look()

    def _look(self) -> None:
        own, most = _resident()
        self.own_megabytes = max(self.own_megabytes, own)
        self.megabytes = max(self.megabytes, most)


def _resident() -> tuple[float, float]:
    """Return what this process has of its own now, and the most it had resident so far, in MB.

    Only Linux tells them apart. There ``ru_maxrss`` of a child counts what its parent had, too.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        unit = 1 << (20 if sys.platform == "darwin" else 10)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        return peak, peak
    kilobytes = dict(line.split(":", 1) for line in lines)
    own, most = (int(kilobytes[name].split()[0]) for name in ("RssAnon", "VmHWM"))
    return own / 1024, most / 1024
