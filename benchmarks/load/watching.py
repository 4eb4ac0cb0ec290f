"""What a process has taken, as the system counts it: memory, open files, threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process has at one moment.

    Attributes:
        resident: Memory in MB, with the pages of mapped files.
        own: Memory in MB that is its own.
        files: Open descriptors.
        threads: How many.
    """

    resident: float
    own: float
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Sample:
        """Return what a process has now; of Linux only."""
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        values = dict(line.split(":", 1) for line in lines)
        kilobytes = {name: int(values[name].split()[0]) for name in ("VmRSS", "RssAnon")}
        return cls(
            kilobytes["VmRSS"] / 1024,
            kilobytes["RssAnon"] / 1024,
            len(list(Path(f"/proc/{pid}/fd").iterdir())),
            int(values["Threads"]),
        )


def busy_seconds(pid: int) -> float:
    """Return the processor time that a process has taken so far, in seconds; only on Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch:
    """Looks at a process now and then.

    Args:
        pid: Of the process.
        every: Seconds between two looks.
    """

    def __init__(self, pid: int, every: float) -> None:
        self._pid = pid
        self._every = every
        self.samples: list[Sample] = []

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Watch]:
        """Look while this is open."""
        task = asyncio.create_task(self._look())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            self.samples.append(Sample.of(self._pid))
            await asyncio.sleep(self._every)

    def part(self, number: int, name: str) -> float:
        """Return the median of a figure over one tenth of the time, the first of which is 0."""
        size = max(1, len(self.samples) // 10)
        chosen = self.samples[number * size : (number + 1) * size] or self.samples[-size:]
        return median(float(getattr(sample, name)) for sample in chosen)
