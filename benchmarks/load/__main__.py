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
from pathlib import Path
from typing import Any

from benchmarks.load.faults import CHAOS, FAULTS, missing_for, survive
from benchmarks.load.shares import shares
from benchmarks.load.soak import soak
from benchmarks.load.speed import durable, speed
from benchmarks.load.world import World
from benchmarks.measuring import keep, machine, table

EVERYTHING = ("speed", "durable", "shares", "soak", *FAULTS, *CHAOS)
SIZES = {
    "runs": (10_000, 300),
    "minutes": (12.0, 0.5),
    "documents": (10_000, 2_000),
    "requests": (60, 12),
    "delay": (0.02, 0.4),  # with few requests, faults must still meet runs that are under way
    "chaos": (None, 5),
    "retention": (20.0, 5.0),
}
"""How much is done, and with ``--quick``: runs and minutes of the soak, documents in each index,
requests around each fault, faults of a chaos, seconds that a model takes and that runs are kept."""


async def find(world: World, name: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Do one part, and return what was found, with its ``violations``."""
    if name == "speed":
        return await speed(world, 5 * sizes["requests"])
    if name == "durable":
        return await durable(world, sizes["requests"])
    if name == "shares":
        return await shares(world, 2 * sizes["requests"])
    if name == "soak":
        return await soak(world, sizes["runs"], sizes["minutes"] * 60, sizes["retention"])
    return await survive(world, name, sizes["requests"], sizes["chaos"])


def shown(name: str, found: dict[str, Any]) -> list[dict[str, object]]:
    """Return the rows of a part's table."""
    if "rows" in found:
        rows: list[dict[str, object]] = found["rows"]
        return rows
    if name == "soak":
        rows = [
            {"what": it, "second tenth": f"{early:.0f}", "last tenth": f"{found['late'][it]:.0f}"}
            for it, early in found["early"].items()
            if it != "busy"
        ]
        told = sorted(found["told"].items())
        return rows + [{"what": it, "second tenth": "", "last tenth": count} for it, count in told]
    verdict, back = found["verdict"], found["recovered"]
    problems = ", ".join(f"{count} {slug}" for slug, count in verdict["problems"].items())
    ends = {"problems": problems or "none", "broken": len(found["violations"])}
    after = "never" if back is None else f"{back:.1f} s"
    lasted = {"fault": found["fault"], "lasted": f"{found['lasted']:.1f} s"}
    return [{**lasted, **verdict, **ends, "served again after": after}]


def main() -> int:
    """Run what is asked for, print it, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", metavar="NAME", help=", ".join(EVERYTHING))
    parser.add_argument("--runs", type=int, help="of the soak; 10000 where not given")
    parser.add_argument("--minutes", type=float, help="of the soak at the most; 12")
    parser.add_argument("--quick", action="store_true", help="a small part of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("-o", "--output", type=Path, help="a folder that keeps ratios")
    asked = parser.parse_args()
    if unknown := set(asked.only) - set(EVERYTHING):
        parser.error(f"there is no part {min(unknown)}; there are {', '.join(EVERYTHING)}")
    sizes: dict[str, Any] = {name: both[asked.quick] for name, both in SIZES.items()}
    sizes |= {name: vars(asked)[name] for name in ("runs", "minutes") if vars(asked)[name]}
    begun, parts = time.monotonic(), dict[str, dict[str, Any]]()
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairqr-load-"))
        world = World(Path(place), sizes["documents"], sizes["delay"], stack)
        world.model.start()
        for name in [it for it in EVERYTHING if it in (asked.only or EVERYTHING)]:
            if lacking := missing_for(name):
                print(f"{name} is left out: {lacking}", file=sys.stderr)
                continue
            print(f"{time.monotonic() - begun:4.0f} s  {name} …", file=sys.stderr)
            try:
                parts[name] = asyncio.run(find(world, name, sizes))
                print(f"## {name}\n\n{table(shown(name, parts[name]))}\n", flush=True)
            except Exception as error:
                # What was found before is not lost.
                traceback.print_exc()
                broken = f"broke off: {type(error).__name__}: {error}"[:300]
                parts[name] = {"violations": [broken]}
    violations = [f"{name}: {it}" for name, part in parts.items() for it in part["violations"]]
    for violation in violations:
        print(f"BROKEN: {violation}")
    seconds, made = time.monotonic() - begun, machine()
    where = f"{made['cores']} cores with {made['gigabytes']} GB"
    print(f"{seconds:.0f} s on {where}; promises broken: {len(violations) or 'none'}")
    if asked.json:
        report = {"machine": made, "seconds": round(seconds, 1), "parts": parts}
        text = json.dumps(report | {"violations": violations}, indent=1)
        asked.json.write_text(text + "\n", encoding="utf-8")
    if asked.output:
        rows = [row for part in parts.values() for row in part.get("rows", ())]
        keep(asked.output, [*rows, {"what": "promises broken", "ours": len(violations)}], "what")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
