"""How things are measured here: side by side, in turns, by medians."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import platform
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from fairqr.retrieval.sources.corpus import Corpus
from tests.servers.elasticsearch_server import running_server
from tests.servers.filled_elasticsearch import fill, write_source


async def in_turns(rounds: int, **calls: Callable[[int], object]) -> dict[str, list[float]]:
    """Time several calls in turns, so that what else the machine does falls on all of them.

    Args:
        rounds: How often each is timed, after a tenth as many that are not.
        calls: Each is given the number of the round, and may be awaitable.

    Returns:
        Milliseconds, by name.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-max(1, rounds // 10), rounds):
        # The order is reversed each time, so that none always comes after the same neighbour.
        order = [*calls] if number % 2 else [*reversed(calls)]
        is_timed = number >= 0
        for name in order:
            start = time.perf_counter()
            result = calls[name](abs(number))
            if inspect.isawaitable(result):
                await result
            milliseconds = (time.perf_counter() - start) * 1000
            if is_timed:
                taken[name].append(milliseconds)
    return taken


def row(
    measured: str,
    ours: float,
    unit: str,
    peer: str = "",
    theirs: float | None = None,
    target: str = "",
    *,
    judged: bool = True,
) -> dict[str, Any]:
    """Return one line of the table.

    Args:
        measured: What was measured.
        ours: The figure.
        unit: Of both figures.
        peer: What it is compared with.
        theirs: The peer's figure in the same run.
        target: The limit, such as ``≤ 5 ms``, or ``≥ 1.5×`` of the peer's.
        judged: Whether the target holds for this run, which may be a small one.
    """
    cells = {
        "what": measured,
        "ours": figure(ours, unit),
        "peer": peer,
        "peer's": "",
        "ratio": "",
        "target": target,
        "reached": "",
    }
    if theirs is not None:
        cells["peer's"] = figure(theirs, unit)
        cells["ratio"] = f"{ours / theirs:.2f}×"
    if target and judged:
        cells["reached"] = "yes" if _is_reached(ours, theirs, target) else "NO"
    return cells


def _is_reached(ours: float, theirs: float | None, target: str) -> bool:
    """Return whether a figure reaches a target; without a peer's, a factor is the limit itself."""
    sign, number = target.split(" ")[:2]
    limit = float(number.rstrip("×"))
    if "×" in number:
        limit *= theirs or 1.0
    return ours <= limit if sign == "≤" else ours >= limit


def figure(value: float, unit: str) -> str:
    """Return a figure with three digits and its unit."""
    digits = 2
    if value == int(value) or value >= 100:
        digits = 0
    elif value >= 10:
        digits = 1
    return f"{value:,.{digits}f} {unit}".rstrip()


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as a table in columns."""
    return pd.DataFrame(rows).to_string(index=False)


@contextmanager
def on_elasticsearch(name: str, corpus: Corpus) -> Iterator[tuple[str, Path]]:
    """Start a real Elasticsearch of the tests with a corpus in it.

    Yields:
        Its URL, and the file of the source, which has the name.
    """
    with running_server() as server, ExitStack() as stack, TemporaryDirectory() as folder:
        yield server.url, write_source(fill(stack, server.url, name, corpus), Path(folder))


def keep(folder: Path, rows: Sequence[Mapping[str, object]], *ids: str) -> None:
    """Write the numbers in rows as ``measures.csv``, for :mod:`benchmarks.results`.

    Args:
        folder: Where to write it; made if it does not exist.
        rows: The rows of a table.
        ids: The columns that distinguish rows.
    """
    measures = pd.DataFrame(rows).melt([*ids], var_name="measure")
    texts = measures["value"].astype(str).str.replace(",", "")
    numbers = texts.str.extract(r"^(-?[0-9.]+)")[0]
    folder.mkdir(parents=True, exist_ok=True)
    # Cells without a number, such as a unit alone, are left out.
    measures.assign(value=numbers).dropna().to_csv(folder / "measures.csv", index=False)


def over_collections(
    description: str | None, work: Callable[[Sequence[str], Path], Coroutine[Any, Any, None]]
) -> None:
    """Let the command line name collections and a folder, and do some work with them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="+", help="of collections")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(work(arguments.names, arguments.output))


def machine() -> dict[str, Any]:
    """Return what the figures depend on, and nothing that says whose machine it is."""
    kilobytes = Path("/proc/meminfo").read_text(encoding="ascii").split()[1]
    return {
        "cores": os.cpu_count(),
        "gigabytes": round(int(kilobytes) / 1024**2),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def taken_by(pid: int) -> dict[str, float]:
    """Return the memory, files, threads and processor time of a process, as Linux counts them.

    The memory is in MB: its own, and with the pages of mapped files, which the system takes back
    when it needs them. ``busy`` is the processor time in seconds so far.
    """
    process = Path(f"/proc/{pid}")
    lines = (process / "status").read_text(encoding="ascii").splitlines()
    status = dict(line.split(":", 1) for line in lines)

    def megabytes(name: str) -> float:
        # A process that has just ended has no memory any more.
        return int(status.get(name, "0").split()[0]) / 1024

    fields = (process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    user_ticks = int(fields[11])
    system_ticks = int(fields[12])
    return {
        "own": megabytes("RssAnon"),
        "resident": megabytes("VmRSS"),
        "files": len(list((process / "fd").iterdir())),
        "threads": float(status["Threads"]),
        "busy": (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK"),
    }
