"""What a load test found, as aligned text, as Markdown and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load.durable import Durable
from benchmarks.load.faults import Survived
from benchmarks.load.soak import Soak
from benchmarks.measuring import Row, cells


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines, the first of which are the headings, as a table of Markdown in columns."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]

    def row(line: Sequence[str]) -> str:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        return f"| {' | '.join(cells)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([row(lines[0]), rule, *map(row, lines[1:])])


def speed_lines(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table of what the service adds."""
    headings = ["what", "ours", "peer", "peer's", "ratio", "target", "reached"]
    return [headings, *(list(cells(row)) for row in rows)]


def durable_lines(found: Durable) -> list[list[str]]:
    """Return the table of durable runs."""
    return [
        ["what", "p50", "p95"],
        ["ephemeral search", f"{found.ephemeral:.0f} ms", ""],
        ["durable search", f"{found.durable:.0f} ms", ""],
        ["durable / ephemeral", f"{found.ratio:.2f}", ""],
        ["transactions of a durable search", f"{found.transactions:.1f}", ""],
        [
            "event on another worker",
            f"{found.delay_p50:.0f} ms",
            f"{found.delay_p95:.0f} ms",
        ],
    ]


def soak_lines(soak: Soak) -> list[list[str]]:
    """Return the table of a soak."""

    def megabytes(size: float) -> str:
        return f"{size:.0f} MB"

    return [
        ["what", "second tenth", "last tenth", "ratio"],
        ["memory of its own", megabytes(soak.early), megabytes(soak.late), f"{soak.growth:.2f}"],
        [
            "with mapped files",
            megabytes(soak.resident_early),
            megabytes(soak.resident_late),
            f"{soak.resident_late / soak.resident_early:.2f}",
        ],
        ["open files", f"{soak.files_early:g}", f"{soak.files_late:g}", ""],
        ["threads", f"{soak.threads_early:g}", f"{soak.threads_late:g}", ""],
    ]


def fault_lines(survived: Sequence[Survived]) -> list[list[str]]:
    """Return the table of faults."""
    headings = ["fault", "lasted", "accepted", "results", "typed errors", "turned away"]
    headings += ["resumed", "asked again", "equal to unbroken"]
    headings += ["promises broken", "served again after"]
    lines = [headings]
    for found in survived:
        verdict = found.verdict
        often = sorted(verdict.problems.items(), key=lambda item: -item[1])
        problems = ", ".join(f"{count} {slug}" for slug, count in often)
        lines.append(
            [
                found.fault,
                f"{found.lasted:.1f} s",
                str(verdict.accepted),
                str(verdict.results),
                problems or "none",
                str(verdict.refused),
                str(verdict.resumed),
                str(verdict.again),
                f"{verdict.equal} of {verdict.durable}",
                str(len(found.violations)),
                "never" if found.recovered is None else f"{found.recovered:.1f} s",
            ]
        )
    return lines


def machine() -> dict[str, Any]:
    """Return what the figures depend on, and nothing that says whose machine it is."""
    kilobytes = Path("/proc/meminfo").read_text(encoding="ascii").split()[1]
    return {
        "cores": os.cpu_count(),
        "gigabytes": round(int(kilobytes) / 1024**2),
        "load": round(os.getloadavg()[0], 1),
        "system": platform.system(),
        "python": platform.python_version(),
    }
