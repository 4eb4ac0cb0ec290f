"""Simulated engines, and how often audits of them hold the true values, find or accuse.

A query has 20 to 80 documents that may be relevant; each has a group and a probability of being
relevant, whatever its group. The engine ranks what is relevant above the rest, with noise, and
takes a planted amount from the scores of one group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.evaluation.audit.exposures import Answer, Choices, Shown, shown_by
from fairqr.evaluation.audit.figures import ESTIMATES, Gathered, GroupFigures, corrected
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.schema import Attribute

QUERIES = 20_000
AUDITS = 1_000
SHARES = ((0.02, 0.98), (0.05, 0.1, 0.15, 0.3, 0.4), (0.1, 0.9), (0.25, 0.75), (0.5, 0.5))
CHOICES = Choices(k=20)


@dataclass(frozen=True, slots=True)
class World:
    """Queries of an engine, measured by judgements and by estimates.

    Attributes:
        dimension: The groups; the lean is against the first.
        shown: What is seen of each query, by what says what is relevant.
        truth: The figures of the first group over all queries, by the same.
    """

    dimension: Dimension
    shown: dict[str, list[Shown]]
    truth: dict[str, GroupFigures]


def world(shares: Sequence[float], lean: float, seed: int, queries: int = QUERIES) -> World:
    """Make the answers of an engine to all queries.

    Args:
        shares: The mean share of each group.
        lean: What is taken from the scores of the first group, whose noise has a deviation of 1.
        seed: Draws all.
        queries: How many there are.
    """
    random = np.random.default_rng([seed, len(shares), int(100 * shares[0]), int(100 * lean)])
    groups = tuple(f"group {number}" for number in range(len(shares)))
    attribute = Attribute(name="attribute", field="field", groups=groups)
    dimension = Dimension(attribute, (attribute,))
    shown: dict[str, list[Shown]] = {"judged": [], "estimated": []}
    for _ in range(queries):
        count = int(random.integers(20, 81))
        own = random.choice(len(shares), size=count, p=random.dirichlet(np.array(shares) * 8))
        chance = random.beta(1.2, 0.8, count)
        relevant = random.random(count) < chance
        scores = 2.0 * relevant + random.normal(size=count) - lean * (own == 0)
        order = np.argsort(-scores)
        members = np.eye(len(shares))[own[order]]
        truth = Answer(members, count, relevant[order].astype(float), is_judged=True)
        shown["judged"].append(shown_by(truth, dimension, CHOICES))
        guess = Answer(members, count, chance[order])
        shown["estimated"].append(shown_by(guess, dimension, CHOICES))
    every = np.ones(queries)
    truth = {name: _figures(dimension, held, every, seed)[0] for name, held in shown.items()}
    return World(dimension, shown, truth)


def _figures(
    dimension: Dimension, shown: Sequence[Shown], weights: Sequence[float], seed: int
) -> list[GroupFigures]:
    gathered = Gathered(dimension)
    for weight, one in zip(weights, shown, strict=True):
        gathered.add(float(weight), one)
    return corrected(gathered.listed(np.random.default_rng(seed)))


def audits(
    made: World, relevance: str, size: int, spread: float, seed: int, count: int = AUDITS
) -> Counter[str]:
    """Audit an engine again and again, each time with other queries.

    Args:
        made: The engine.
        relevance: ``judged`` or ``estimated``.
        size: How many queries an audit asks.
        spread: Of the logarithms of the weights.
        seed: Draws the queries.
        count: How many audits there are.

    Returns:
        How many audits ``found`` or ``accused``; by figure, how many gave an interval, and with
        `` held`` behind its name in how many the true value was.
    """
    random, outcome, shown = np.random.default_rng(seed), Counter[str](), made.shown[relevance]
    for number in range(count):
        drawn = [shown[place] for place in random.integers(0, len(shown), size)]
        weights = np.exp(spread * random.normal(size=size))
        groups = _figures(made.dimension, drawn, weights, number)
        for name in ESTIMATES:
            found, truth = getattr(groups[0], name), getattr(made.truth[relevance], name).value
            outcome[name] += not math.isnan(found.low)
            outcome[f"{name} held"] += found.low - 1e-9 <= truth <= found.high + 1e-9
        outcome["found"] += groups[0].verdict == "less"
        outcome["accused"] += any(it.verdict in ("less", "more") for it in groups)
    return outcome
