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
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.load.durable import Durable, durable
from benchmarks.load.faults import FAULTS, Survived, missing_for, survive
from benchmarks.load.report import (
    durable_lines,
    fault_lines,
    machine,
    soak_lines,
    speed_lines,
    table,
)
from benchmarks.load.soak import Soak, soak
from benchmarks.load.speed import speed
from benchmarks.load.world import World
from benchmarks.measuring import Row

SPEED, DURABLE, SOAK = "speed", "durable", "soak"
EVERYTHING = (SPEED, DURABLE, SOAK, *FAULTS)
MODEL_DELAY = 0.05
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done.

    Attributes:
        runs: Of the soak.
        minutes: That the soak may take.
        documents: In each index.
        requests: By which speed is measured.
        under_fault: Requests before, during and after each fault.
        chaos: The faults of a chaos; None means all.
        retention: Of runs in the soak, in seconds.
    """

    runs: int
    minutes: float
    documents: int = 10_000
    requests: int = 60
    under_fault: int = 60
    chaos: int | None = None
    retention: float = 20.0


@dataclass(slots=True)
class Findings:
    """What was found."""

    speed: list[Row] = field(default_factory=list)
    durable: Durable | None = None
    soak: Soak | None = None
    faults: list[Survived] = field(default_factory=list)
    broken_off: list[str] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        """The promises that were broken."""
        broken = [*self.broken_off]
        if self.durable and self.durable.failed:
            broken.append(f"durable: {self.durable.failed} searches failed")
        if self.soak:
            broken += [f"soak: {violation}" for violation in self.soak.violations]
        for found in self.faults:
            broken += [f"{found.fault}: {violation}" for violation in found.violations]
        return broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, print it, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", metavar="NAME", help=", ".join(EVERYTHING))
    parser.add_argument("--runs", type=int, help="of the soak; 10000 where not given")
    parser.add_argument("--minutes", type=float, help="of the soak at the most; 12")
    parser.add_argument("--quick", action="store_true", help="a small part of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.only) - set(EVERYTHING):
        parser.error(f"there is no part {min(unknown)}; there are {', '.join(EVERYTHING)}")
    chosen = Sizes(asked.runs or 10_000, asked.minutes or 12.0)
    if asked.quick:
        chosen = Sizes(
            asked.runs or 300, asked.minutes or 0.5, 2_000, 12, 12, chaos=5, retention=5.0
        )

    begun = time.monotonic()
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairqr-load-"))
        world = World(Path(place), chosen.documents, stack)
        world.model.start()
        found = find(world, asked.only or EVERYTHING, chosen, begun)
    report = {
        "machine": machine(),
        "seconds": round(time.monotonic() - begun, 1),
        "speed": [row.as_json() for row in found.speed],
        "durable": found.durable and found.durable.as_json(),
        "soak": found.soak and found.soak.as_json(),
        "faults": [each.as_json() for each in found.faults],
        "violations": found.violations,
    }
    show(found, report)
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if found.violations else 0


def find(world: World, names: Sequence[str], sizes: Sizes, begun: float) -> Findings:
    """Do what is named, in order.

    Args:
        world: With its model server running.
        names: Of the parts.
        sizes: How much of each.
        begun: When all began, to tell how far it is.
    """
    found = Findings()
    for name in EVERYTHING:
        if name not in names:
            continue
        if lacking := missing_for(name):
            print(f"{name} is left out: {lacking}", file=sys.stderr)
            continue
        print(f"{time.monotonic() - begun:4.0f} s  {name} …", file=sys.stderr)
        try:
            if name == SPEED:
                found.speed += speed(world, searches=5 * sizes.requests)
            elif name == DURABLE:
                found.durable = asyncio.run(
                    durable(world, searches=sizes.requests, delay=MODEL_DELAY)
                )
            elif name == SOAK:
                found.soak = asyncio.run(
                    soak(world, sizes.runs, sizes.minutes * 60, sizes.retention)
                )
            else:
                lived = survive(world, name, sizes.under_fault, only=sizes.chaos)
                found.faults.append(asyncio.run(lived))
        except Exception as error:
            # What was found before is not lost.
            traceback.print_exc()
            found.broken_off.append(f"{name} broke off: {type(error).__name__}: {error}"[:300])
    return found


def show(found: Findings, report: dict[str, Any]) -> None:
    """Print what was found."""
    if found.speed:
        print(f"## Speed\n\n{table(speed_lines(found.speed))}\n")
    if found.durable:
        print(f"## Durable runs\n\n{table(durable_lines(found.durable))}\n")
    if found.soak:
        soaked = found.soak
        print(
            f"## Soak\n\n{table(soak_lines(soaked))}\n\n"
            f"{soaked.runs:,} runs in {soaked.seconds:,.0f} s. The database was "
            f"{soaked.largest / 1e6:.1f} MB at its largest; once the time of retention was over, "
            f"{soaked.kept} runs were left in {soaked.left / 1e6:.1f} MB.\n"
        )
        told = [[*what.split(": ", 1), str(count)] for what, count in sorted(soaked.told.items())]
        print(table([["asked for as", "told", "runs"], *told]) + "\n")
    if found.faults:
        print(f"## Faults\n\n{table(fault_lines(found.faults))}\n")
    broken = found.violations
    for violation in broken[:MOST_SHOWN]:
        print(f"BROKEN: {violation}")
    made = report["machine"]
    print(
        f"{report['seconds']:.0f} s on {made['cores']} cores with {made['gigabytes']} GB; "
        f"{len(broken) or 'no'} promise{'s' * (len(broken) != 1)} broken"
    )


if __name__ == "__main__":
    sys.exit(main())
