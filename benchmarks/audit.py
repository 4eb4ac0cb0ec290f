"""How often an audit finds a planted lean, holds its size, and accuses an engine without one.

``python -m benchmarks.audit`` simulates engines. A query has 20 to 80 documents that may be
relevant; each has a group and a probability of being relevant, whatever its group. The engine ranks
what is relevant above the rest, with noise, and takes a planted amount from the scores of one
group. An audit draws queries from 20,000 with weights of its own, as from a log in which some are
asked much more often than others, and measures the first 20 documents. The true lean is the mean
over all 20,000 by true relevance. Each cell is 1,000 audits.

*No interval*: the weights leave too few queries to tell anything. *Held*: the true lean of the
group is in the interval of 95 %, per 1,000 audits with an interval. *Found*: the audit says that
the group surely gets less. *Accused*: without any planted lean it says of any group that it surely
gets less or more.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np

from fairqr.evaluation.audit import estimates
from fairqr.evaluation.audit.exposures import Answer, Choices, Shown, shown_by
from fairqr.evaluation.audit.figures import Gathered, corrected
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Attribute

estimates.PERMUTATIONS = 2_000
"""An audit draws 20,000 assignments of signs; fewer tell enough here, in a tenth of the time."""

QUERIES = 20_000
AUDITS = 1_000
SIZES = (25, 50, 200)
LEANS = (0.0, 0.25, 1.0)
"""Taken from scores whose noise has a deviation of 1."""
SPREADS = {"equal": 0.0, "like a log": 1.0}
"""The deviation of the logarithms of the weights."""
CHOICES = Choices(k=20)


@dataclass(frozen=True, slots=True)
class World:
    """Queries of an engine, measured by judgements and by estimates.

    Attributes:
        dimension: The groups; the lean is against the first.
        judged: By true relevance.
        estimated: By the probabilities alone.
        truth: The mean lean of each group by true relevance, shape (G,).
    """

    dimension: Dimension
    judged: list[Shown]
    estimated: list[Shown]
    truth: FloatArray


def dimension_of(shares: FloatArray) -> Dimension:
    """Return as many groups as there are shares."""
    groups = tuple(f"group {number}" for number in range(len(shares)))
    attribute = Attribute(name="attribute", field="field", groups=groups)
    return Dimension(attribute, (attribute,))


def world(shares: FloatArray, lean: float, random: np.random.Generator) -> World:
    """Make the answers of an engine to all queries.

    Args:
        shares: The mean share of each group, shape (G,).
        lean: What is taken from the scores of the first group.
        random: Draws all.
    """
    dimension = dimension_of(shares)
    judged, estimated = [], []
    for _ in range(QUERIES):
        count = int(random.integers(20, 81))
        groups = random.choice(len(shares), size=count, p=random.dirichlet(shares * 8))
        chance = random.beta(1.2, 0.8, count)
        relevant = random.random(count) < chance
        scores = 2.0 * relevant + random.normal(size=count) - lean * (groups == 0)
        order = np.argsort(-scores)
        members = np.eye(len(shares))[groups[order]]
        truth = Answer(members, count, relevant[order].astype(float), is_judged=True)
        judged.append(shown_by(truth, dimension, CHOICES))
        guess = Answer(members, count, chance[order])
        estimated.append(shown_by(guess, dimension, CHOICES))
    all_of_them = Gathered(dimension)
    for shown in judged:
        all_of_them.add(1.0, shown)
    return World(dimension, judged, estimated, np.nanmean(all_of_them.leans()[0], axis=0))


@dataclass(slots=True)
class Outcome:
    """What 1,000 audits said."""

    without_interval: int = 0
    held: int = 0
    found: int = 0
    accused: int = 0


def audits(world_: World, shown: list[Shown], size: int, spread: float, seed: int) -> Outcome:
    """Audit an engine again and again, each time with other queries.

    Args:
        world_: The engine.
        shown: What is seen of each query.
        size: How many queries an audit asks.
        spread: Of the logarithms of the weights.
        seed: Draws the queries.
    """
    random, outcome = np.random.default_rng(seed), Outcome()
    for _ in range(AUDITS):
        gathered = Gathered(world_.dimension)
        for place in random.integers(0, QUERIES, size):
            gathered.add(float(np.exp(spread * random.normal())), shown[place])
        groups = corrected(gathered.listed(random))
        first = groups[0].lean
        outcome.without_interval += math.isnan(first.low)
        outcome.held += first.low <= world_.truth[0] <= first.high
        outcome.found += groups[0].verdict == "less"
        outcome.accused += any(it.verdict in ("less", "more") for it in groups)
    return outcome


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    print(
        f"{'groups, share of the first':28} {'planted':>8} {'true lean':>10} {'relevance':>10} "
        f"{'weights':>11} {'queries':>8} {'no interval':>12} {'held':>6} {'found':>6} "
        f"{'accused':>8}"
    )
    for shares in (np.array([0.25, 0.75]), np.array([0.05, 0.1, 0.15, 0.3, 0.4])):
        for lean in LEANS:
            made = world(shares, lean, np.random.default_rng([seed, len(shares), int(100 * lean)]))
            for relevance, shown in (("judged", made.judged), ("estimated", made.estimated)):
                for name, spread in SPREADS.items():
                    for size in SIZES:
                        it = audits(made, shown, size, spread, seed)
                        accused = f"{it.accused:8}" if not lean else f"{'':8}"
                        held = it.held / (AUDITS - it.without_interval) * 1000
                        print(
                            f"{f'{len(shares)}, {shares[0]:.0%}':28} {lean:8.2f} "
                            f"{made.truth[0]:10.4f} {relevance:>10} {name:>11} {size:8} "
                            f"{it.without_interval:12} {held:6.0f} {it.found if lean else '':>6} "
                            f"{accused}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
