"""How often intervals of an audit hold the true value, and how often it finds, or accuses.

``python -m benchmarks.audit`` simulates engines. A query has 20 to 80 documents that may be
relevant; each has a group and a probability of being relevant, whatever its group. The engine ranks
what is relevant above the rest, with noise, and takes a planted amount from the scores of one
group. An audit draws queries from 20,000 with weights of its own, as from a log in which some are
asked much more often than others, and measures the first 20 documents. The true value of a figure
is that of all 20,000 with equal weights, by true relevance or by the same estimates. Each cell is
1,000 audits.

For each figure of the first group: in how many per 1,000 intervals of 95 % its true value is, and
how many of the 1,000 audits give an interval, if not all. *Found*: the audit says that the group
surely gets less. *Accused*: without any planted lean it says of any group that it surely gets less
or more.
"""

from __future__ import annotations

import argparse
import itertools
import math

from fairqr.evaluation.audit import estimates
from fairqr.evaluation.audit.figures import ESTIMATES
from tests.unit.evaluation.audit.simulated import AUDITS, SHARES, audits, world

SIZES = (6, 12, 25, 50, 100)
LEANS = (0.0, 1.0)
SPREADS = {"equal": 0.0, "like a log": 1.0}
"""The deviation of the logarithms of the weights."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    # An audit draws 20,000 assignments of signs; fewer tell enough here, in a tenth of the time.
    estimates.PERMUTATIONS = 2_000
    print("cell".ljust(42), *(name.rjust(14) for name in (*ESTIMATES, "found", "accused")))
    for shares, lean in itertools.product(SHARES, LEANS):
        made = world(shares, lean, seed)
        for relevance, (how, spread), size in itertools.product(made.shown, SPREADS.items(), SIZES):
            it = audits(made, relevance, size, spread, seed)
            cell = f"{shares[0]:4.0%} of {len(shares)} -{lean} {relevance} {how} {size}"
            held = (
                f"{it[f'{name} held'] / it[name] * 1000 if it[name] else math.nan:.0f}"
                + (f" of {it[name]}" if it[name] < AUDITS else "")
                for name in ESTIMATES
            )
            row = (*held, str(it["found"]), "" if lean else str(it["accused"]))
            print(cell.ljust(42), *(text.rjust(14) for text in row), flush=True)


if __name__ == "__main__":
    main()
