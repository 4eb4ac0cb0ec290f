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
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import keep, table
from fairqr.evaluation import estimates
from fairqr.evaluation.audit.figures import ESTIMATES
from tests.unit.evaluation.audit.simulated import AUDITS, SHARES, audits, titles, world

SIZES = (6, 12, 25, 50, 100)
BIASES = (0.0, 1.0)
SPREADS = {"equal": 0.0, "like a log": 1.0}
"""The deviation of the logarithms of the weights."""
WRONG = (0.05, 0.15, 0.3)
"""Shares of wrong labels of the first group, whose confusion matrix is known."""
CHECKED = 200
TITLES = ((1.0, "same"), (0.5, "unlikely"), *itertools.product((0.15, 0.05), ("same", "even")))
"""Shares of job titles that are saturated, and what the others are like."""
COUNTS = ("less", "accused", "saturated", "detectable", "gap of all")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--audits", type=int, default=AUDITS, help="How many in each cell.")
    parser.add_argument("--only", default="", help="Run the engines whose names contain this.")
    parser.add_argument("-o", "--output", type=Path, help="A folder that keeps the figures.")
    given = parser.parse_args()
    # An audit draws 20,000 assignments of signs; fewer tell enough here, in a tenth of the time.
    estimates.PERMUTATIONS = 2_000
    engines = {}
    for error, shares, bias in itertools.product((0.0, *WRONG), SHARES, BIASES):
        name = f"{shares[0]:4.0%} of {len(shares)} -{bias} ±{error:.0%}"
        engines[name] = partial(world, shares, bias, error=error)
    engines |= {f"saturated {it[0]:.0%}, others {it[1]}": partial(titles, *it) for it in TITLES}
    every = list[dict[str, Any]]()
    for engine in filter(lambda name: given.only in name, engines):
        made, rows = engines[engine](seed=given.seed), list[dict[str, Any]]()
        sizes, spreads = (SIZES, SPREADS) if "±0%" in engine else ((12, 50), {"equal": 0.0})
        for relevance, (how, spread), size, checked in itertools.product(
            made.shown, spreads.items(), sizes, (0, CHECKED) if "±15%" in engine else (0,)
        ):
            it = audits(made, relevance, size, spread, given.seed, given.audits, checked)
            row = dict.fromkeys(("cell", *ESTIMATES), "") | {name: str(it[name]) for name in COUNTS}
            row["cell"] = f"{relevance} {how} {size}" + f" checked {checked}" * bool(checked)
            for name in filter(it.get, ESTIMATES):
                few = f" of {it[name]}" * (it[name] < given.audits)
                row[name] = f"{it[f'{name} held'] / it[name] * 1000:.0f}{few}"
            rows.append(row)
        print(engine, table(rows), sep="\n", flush=True)
        every += [{"engine": engine.strip(), **row} for row in rows]
    if given.output:
        keep(given.output, every, "engine", "cell")


if __name__ == "__main__":
    main()
