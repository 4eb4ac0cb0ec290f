"""How often intervals of an audit hold the true value, and how often it finds, or accuses.

``python -m benchmarks.audit`` simulates engines. A query has 20 to 80 documents that may be
relevant; each has a group and a probability of being relevant, whatever its group. The engine ranks
what is relevant above the rest, with noise, and takes a planted amount from the scores of one
group. An audit draws queries from 20,000 with weights of its own, as from a log in which some are
asked much more often than others, and measures the first 20 documents. The true value of a figure
is its value over all 20,000 with equal weights, by true relevance or by the same estimates. Each
cell is 1,000 audits.

In further cells labels are wrong. Their confusion matrix is known, or each audit counts it on 200
documents of each group; the true value is by the right labels.

In the last cells, queries are job titles. Some match hundreds of relevant documents; an
estimate sees only the first 100, and the group stands among the last. These queries are saturated;
by estimates, the true value is the other queries'. ``--only saturated`` runs these alone.

For each figure of the first group: in how many per 1,000 intervals of 95 % its true value is, and
how many of the 1,000 audits give an interval, if not all. *Less*: the audit says that the group
surely gets less. *Accused*: it says of any group that it surely gets less or more, which is wrong
where no bias is planted. *Saturated*: it cannot tell, since it looked at too little; no figure of
such an audit is counted. *Detectable*: it says which gap it would find. *Gap of all*: its
interval of the ranking gap holds the gap of all queries, saturated or not, by true relevance.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import keep, table
from fairqr.evaluation import estimates
from fairqr.evaluation.audit.figures import ESTIMATES
from tests.unit.evaluation.audit.simulated import AUDITS, SHARES, World, audits, titles, world

SIZES = (6, 12, 25, 50, 100)
BIASES = (0.0, 1.0)
SPREADS = {"equal": 0.0, "like a log": 1.0}
"""The deviation of the logarithms of the weights."""

FEW_SIZES = (12, 50)
FEW_SPREADS = {"equal": 0.0}
"""What is measured if labels are wrong, or queries saturated."""

WRONG = (0.05, 0.15, 0.3)
"""Shares of wrong labels of the first group, whose confusion matrix is known."""

CHECKED = 200
"""On how many documents of each group an audit counts wrong labels."""

TITLES = ((1.0, "same"), (0.5, "unlikely"), *itertools.product((0.15, 0.05), ("same", "even")))
"""Shares of job titles that are saturated, and what the others are like."""

COUNTS = ("less", "accused", "saturated", "detectable", "gap of all")


class Engine(NamedTuple):
    """A simulated engine, and the cells to measure of it.

    Attributes:
        make: Makes it from a seed.
        sizes: The numbers of queries of an audit.
        spreads: The deviations of the logarithms of the weights, by name.
        checked: On how many documents of each group audits count wrong labels; 0 if they know how
            often labels are wrong.
    """

    make: Callable[..., World]
    sizes: Sequence[int] = FEW_SIZES
    spreads: Mapping[str, float] = FEW_SPREADS
    checked: Sequence[int] = (0,)


def engines() -> dict[str, Engine]:
    """Return the engines by name."""
    by_name = {}
    for error, shares, bias in itertools.product((0.0, *WRONG), SHARES, BIASES):
        make = partial(world, shares, bias, error=error)
        if error == 0.0:
            engine = Engine(make, SIZES, SPREADS)
        elif error == 0.15:
            engine = Engine(make, checked=(0, CHECKED))
        else:
            engine = Engine(make)
        by_name[f"{shares[0]:4.0%} of {len(shares)} -{bias} ±{error:.0%}"] = engine
    for saturated, others in TITLES:
        make = partial(titles, saturated, others)
        by_name[f"saturated {saturated:.0%}, others {others}"] = Engine(make)
    return by_name


def measure(engine: Engine, seed: int, count: int) -> list[dict[str, str]]:
    """Return a row for each cell of an engine.

    Args:
        engine: The engine.
        seed: The seed of the engine and of the queries.
        count: How many audits each cell has.
    """
    simulated = engine.make(seed=seed)
    rows = []
    for relevance, spread, size, checked in itertools.product(
        simulated.shown, engine.spreads, engine.sizes, engine.checked
    ):
        deviation = engine.spreads[spread]
        outcome = audits(simulated, relevance, size, deviation, seed, count, checked)
        cell = f"{relevance} {spread} {size}"
        if checked:
            cell += f" checked {checked}"
        rows.append({"cell": cell, **_figures(outcome, count)})
    return rows


def _figures(outcome: Mapping[str, int], count: int) -> dict[str, str]:
    """Return in how many per 1,000 intervals each true value is, and how many audits said what."""
    figures = dict.fromkeys(ESTIMATES, "")
    for name in ESTIMATES:
        intervals = outcome[name]
        if intervals:
            held = outcome[f"{name} held"]
            figures[name] = f"{held / intervals * 1000:.0f}"
            if intervals < count:
                figures[name] += f" of {intervals}"
    return figures | {name: str(outcome[name]) for name in COUNTS}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--audits", type=int, default=AUDITS, help="How many in each cell.")
    parser.add_argument("--only", default="", help="Run the engines whose names contain this.")
    parser.add_argument("-o", "--output", type=Path, help="A folder that keeps the figures.")
    arguments = parser.parse_args()
    # An audit draws 20,000 assignments of signs; fewer are enough here, in a tenth of the time.
    estimates.PERMUTATIONS = 2_000
    all_rows: list[dict[str, Any]] = []
    for name, engine in engines().items():
        if arguments.only not in name:
            continue
        rows = measure(engine, arguments.seed, arguments.audits)
        print(name, table(rows), sep="\n", flush=True)
        all_rows += [{"engine": name.strip(), **row} for row in rows]
    if arguments.output:
        keep(arguments.output, all_rows, "engine", "cell")


if __name__ == "__main__":
    main()
