"""The benchmarks of fairqr: our figures beside those of its peers, in one run.

``python benchmarks/bench.py [--quick] [--json FILE] [NAME …]``. The machine may be busy:
what counts is the ratio of two figures that were taken in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from attached import attached_rows
from baselines import baseline_rows
from checkpoints import checkpoint_rows
from concurrency import concurrency_rows
from evaluating import evaluating_rows
from labels import label_rows
from looping import graph_rows, tracing_rows
from measuring import Row, cells
from memory import memory_rows
from metrics import metric_rows
from reranking import rerank_rows
from sampling import sampling_rows
from searching import search_rows, update_rows
from starting import help_rows, opening_rows
from workspace import Workspace

# Updates come last, since they change the index.
BENCHMARKS: dict[str, Callable[[Workspace], Iterator[Row]]] = {
    "help": help_rows,
    "memory": memory_rows,
    "labels": label_rows,
    "opening": opening_rows,
    "search": search_rows,
    "rerank": rerank_rows,
    "metrics": metric_rows,
    "evaluating": evaluating_rows,
    "sampling": sampling_rows,
    "baselines": baseline_rows,
    "graph": graph_rows,
    "tracing": tracing_rows,
    "checkpoints": checkpoint_rows,
    "concurrency": concurrency_rows,
    "attached": attached_rows,
    "update": update_rows,
}
PACKAGES = ("fairqr", "tantivy", "langgraph", "langchain-openai", "openai", "numpy", "typer")
HEADINGS = ("what", "ours", "peer", "peer's", "ratio", "target", "reached")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks that are named, all if none is, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {min(unknown)}; there are {', '.join(BENCHMARKS)}")

    start = time.perf_counter()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="fairqr-bench-") as folder:
        workspace = Workspace(Path(folder), quick=asked.quick)
        for name, benchmark in BENCHMARKS.items():
            if not asked.names or name in asked.names:
                print(f"{time.perf_counter() - start:4.0f} s  {name} …", file=sys.stderr)
                rows += benchmark(workspace)
    seconds = time.perf_counter() - start

    print(table(rows))
    missed = sum(row.reached is False for row in rows)
    print(
        f"\n{seconds:.0f} s; {missed or 'no'} target{'s' * (missed != 1)} missed; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    if asked.json:
        report = {
            "machine": machine(),
            "quick": asked.quick,
            "seconds": round(seconds, 1),
            "rows": [row.as_json() for row in rows],
        }
        asked.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text."""
    lines = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    numbers = (1, 3, 4)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def machine() -> dict[str, object]:
    """Return what the figures depend on, and nothing that says whose machine it is."""
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


if __name__ == "__main__":
    main()
