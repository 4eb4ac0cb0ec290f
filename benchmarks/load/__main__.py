"""The load test of the service: ``make load``, or ``python -m benchmarks.load``.

It starts real servers on loopback, loads the service, soaks it with runs, and makes its servers
fail one after the other. What counts are ratios of figures of the same run, and whether each run
that was accepted ended once, with a result or a typed error; the exit code is 1 if one did not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.load.faults import CHAOS, FAULTS, missing_for, survive
from benchmarks.load.shares import shares
from benchmarks.load.soak import soak
from benchmarks.load.speed import durable, speed
from benchmarks.load.world import World
from benchmarks.measuring import keep, machine, table

EVERYTHING = ("speed", "durable", "shares", "soak", *FAULTS, *CHAOS)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done.

    Attributes:
        runs: The runs of the soak.
        minutes: The most minutes of the soak.
        documents: The documents in each index.
        requests: The requests around each fault.
        delay: The seconds that a model takes.
        chaos: How many faults a chaos has; None for all.
        retention: The seconds that runs are kept.
    """

    runs: int = 10_000
    minutes: float = 12.0
    documents: int = 10_000
    requests: int = 60
    delay: float = 0.02
    chaos: int | None = None
    retention: float = 20.0


# With few requests, faults must still meet runs that are under way, so the model is slower.
QUICK = Sizes(
    runs=300, minutes=0.5, documents=2_000, requests=12, delay=0.4, chaos=5, retention=5.0
)


async def run_part(world: World, name: str, sizes: Sizes) -> dict[str, Any]:
    """Do one part, and return its figures, with its ``violations``."""
    if name == "speed":
        return await speed(world, 5 * sizes.requests)
    if name == "durable":
        return await durable(world, sizes.requests)
    if name == "shares":
        return await shares(world, 2 * sizes.requests)
    if name == "soak":
        return await soak(world, sizes.runs, sizes.minutes * 60, sizes.retention)
    return await survive(world, name, sizes.requests, sizes.chaos)


def rows_of(name: str, part: dict[str, Any]) -> list[dict[str, object]]:
    """Return the rows of a part's table."""
    if "rows" in part:
        rows: list[dict[str, object]] = part["rows"]
        return rows
    if name == "soak":
        return _soak_rows(part)

    verdict = part["verdict"]
    problems = [f"{count} {slug}" for slug, count in verdict["problems"].items()]
    recovered = "never"
    if part["recovered"] is not None:
        recovered = f"{part['recovered']:.1f} s"
    row = {
        "fault": part["fault"],
        "lasted": f"{part['lasted']:.1f} s",
        **verdict,
        "problems": ", ".join(problems) or "none",
        "broken": len(part["violations"]),
        "served again after": recovered,
    }
    return [row]


def _soak_rows(part: dict[str, Any]) -> list[dict[str, object]]:
    """Return what the process had early and late, and how often clients were told what."""
    rows: list[dict[str, object]] = []
    for name, early in part["early"].items():
        if name != "busy":
            late = part["late"][name]
            rows.append({"what": name, "second tenth": f"{early:.0f}", "last tenth": f"{late:.0f}"})
    for outcome, count in sorted(part["told"].items()):
        rows.append({"what": outcome, "second tenth": "", "last tenth": count})
    return rows


def _arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", metavar="NAME", help=", ".join(EVERYTHING))
    parser.add_argument("--runs", type=int, help="of the soak; 10000 where not given")
    parser.add_argument("--minutes", type=float, help="of the soak at the most; 12")
    parser.add_argument("--quick", action="store_true", help="a small part of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("-o", "--output", type=Path, help="a folder that keeps ratios")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - set(EVERYTHING)
    if unknown:
        parser.error(f"there is no part {min(unknown)}; there are {', '.join(EVERYTHING)}")
    return arguments


def _run_parts(names: list[str], sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Do parts one after the other, and print each; one that breaks off is a violation."""
    start = time.monotonic()
    parts: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairqr-load-"))
        world = World(Path(folder), sizes.documents, sizes.delay, stack)
        world.model.start()
        for name in names:
            lacking = missing_for(name)
            if lacking:
                print(f"{name} is left out: {lacking}", file=sys.stderr)
                continue
            print(f"{time.monotonic() - start:4.0f} s  {name} …", file=sys.stderr)
            try:
                parts[name] = asyncio.run(run_part(world, name, sizes))
                print(f"## {name}\n\n{table(rows_of(name, parts[name]))}\n", flush=True)
            except Exception as error:
                # The figures of earlier parts are not lost.
                traceback.print_exc()
                violation = f"broke off: {type(error).__name__}: {error}"[:300]
                parts[name] = {"violations": [violation]}
    return parts


def main() -> int:
    """Do the parts that the user chose, print them, and return the exit code."""
    start = time.monotonic()
    arguments = _arguments()
    sizes = QUICK if arguments.quick else Sizes()
    if arguments.runs:
        sizes = replace(sizes, runs=arguments.runs)
    if arguments.minutes:
        sizes = replace(sizes, minutes=arguments.minutes)
    chosen = arguments.only or EVERYTHING
    parts = _run_parts([name for name in EVERYTHING if name in chosen], sizes)

    violations = []
    rows = []
    for name, part in parts.items():
        violations += [f"{name}: {violation}" for violation in part["violations"]]
        rows += part.get("rows", ())
    for violation in violations:
        print(f"BROKEN: {violation}")
    seconds = time.monotonic() - start
    host = machine()
    hardware = f"{host['cores']} cores with {host['gigabytes']} GB"
    print(f"{seconds:.0f} s on {hardware}; promises broken: {len(violations) or 'none'}")

    if arguments.json:
        report = {
            "machine": host,
            "seconds": round(seconds, 1),
            "parts": parts,
            "violations": violations,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.output:
        rows.append({"what": "promises broken", "ours": len(violations)})
        keep(arguments.output, rows, "what")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
