"""Simulated engines, and how often audits of them hold the true values, find or accuse.

A query has 20 to 80 documents that may be relevant; each has a group and a probability of being
relevant, whatever its group. The engine ranks what is relevant above the rest, with noise, and
takes a planted amount from the scores of one group. Labels may be wrong.

Of job titles, an audit does not look at all that is relevant (:func:`titles`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairqr.evaluation.audit.exposures import Answer, AnswerFigures, Choices, measure_answer
from fairqr.evaluation.audit.figures import ESTIMATES, GroupFigures
from fairqr.evaluation.audit.query_figures import QueryFigures
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.audit.verdicts import judge
from fairqr.retrieval.engines.hybrid.texts import end_of
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.sources.schema import Attribute

QUERIES = 20_000
AUDITS = 1_000
SHARES = ((0.02, 0.98), (0.05, 0.1, 0.15, 0.3, 0.4), (0.1, 0.9), (0.25, 0.75), (0.5, 0.5))
CHOICES = Choices(k=20)
LOOKED_AT = 100
"""So many documents an estimate sees."""


@dataclass(frozen=True, slots=True)
class World:
    """Queries of an engine, measured by judgements and by estimates.

    Attributes:
        dimension: The groups, with what is known of wrong labels; the bias is against the first.
        shown: What is seen of each query, by what says what is relevant.
        truth: The figures of the first group over all queries, by the same and right labels.
    """

    dimension: Dimension
    shown: dict[str, list[AnswerFigures]]
    truth: dict[str, GroupFigures]


def dimension(*groups: str) -> Dimension:
    """Return groups of which the population has as many each."""
    alike = {group: 1 / len(groups) for group in groups}
    attribute = Attribute(name="kind", field="f", groups=groups, population=alike)
    return Dimension(attribute, (attribute,))


TWO = dimension("a", "b")


def gather(
    answers: Iterable[AnswerFigures],
    weights: Iterable[float] = itertools.repeat(1.0),
    groups: Dimension = TWO,
    **options: Any,
) -> QueryFigures:
    """Put answers together, each with its weight."""
    gathered = QueryFigures(groups, **options)
    for answer, weight in zip(answers, weights, strict=False):
        gathered.add(float(weight), answer)
    return gathered


def world(
    shares: Sequence[float], bias: float, seed: int, queries: int = QUERIES, error: float = 0.0
) -> World:
    """Make the answers of an engine to all queries.

    Args:
        shares: The mean share of each group.
        bias: What is taken from the scores of the first group, whose noise has a deviation of 1.
        seed: Draws all.
        queries: How many there are.
        error: How many labels of the first group are wrong; of the others it is a third less. A
            wrong label is any other, in proportion to the shares of groups.
    """
    size = len(shares)
    random = np.random.default_rng(
        [seed, size, *(int(100 * number) for number in (shares[0], bias, error))]
    )
    groups = tuple(f"group {number}" for number in range(size))
    other_shares = np.array(shares) * (1 - np.eye(size))
    wrong = np.where(np.arange(size) == 0, error, error / 1.5)[:, None]
    wrong_labels = other_shares / other_shares.sum(axis=1, keepdims=True)
    labels = np.eye(size) * (1 - wrong) + wrong * wrong_labels
    rows = {
        group: dict(zip(groups, row.tolist(), strict=True))
        for group, row in zip(groups, labels, strict=True)
    }
    right = Attribute(name="attribute", field="field", groups=groups)
    attribute = right.model_copy(update={"confusion": rows if error else None})
    dimension = Dimension(attribute, (attribute,))
    answers: dict[str, list[AnswerFigures]] = {"judged": [], "estimated": []}
    right_answers: dict[str, list[AnswerFigures]] = {"judged": [], "estimated": []}
    for _ in range(queries):
        count = int(random.integers(20, 81))
        group_of = random.choice(size, size=count, p=random.dirichlet(np.array(shares) * 8))
        chance = random.beta(1.2, 0.8, count)
        relevant = random.random(count) < chance
        scores = 2.0 * relevant + random.normal(size=count) - bias * (group_of == 0)
        order = np.argsort(-scores)
        labelled = group_of
        if error:
            labelled = (labels.cumsum(axis=1)[group_of] < random.random((count, 1))).sum(axis=1)
        chances = {"judged": relevant.astype(float), "estimated": chance}
        for name, relevance in chances.items():
            is_judged = name == "judged"
            members = np.eye(size)[np.minimum(labelled, size - 1)[order]]
            answer = Answer(members, count, relevance[order], is_judged)
            answers[name].append(measure_answer(answer, dimension, CHOICES))
            if error:
                members = np.eye(size)[group_of[order]]
                answer = Answer(members, count, relevance[order], is_judged)
                right_answers[name].append(measure_answer(answer, dimension, CHOICES))
    weights = np.ones(queries)
    plain = Dimension(right, (right,))
    true_answers = right_answers if error else answers
    truth = {
        name: _figures(plain, measured, weights, seed)[0] for name, measured in true_answers.items()
    }
    return World(dimension, answers, truth)


def titles(broad: float, others: str, seed: int, queries: int = 2_000) -> World:
    """Make the answers of an engine to job titles.

    Most documents that match are relevant, and nearly all look so. The engine puts long ones last,
    and the first group stands only among them.

    Args:
        broad: The share of the titles that match 300 to 900 documents, of which an estimate sees
            the first 100. True values by estimates are those of the other titles.
        others: What the other titles are like, which match 20 to 80 documents: the ``same``;
            ``even``, where the group stands among long and short ones alike; or ``unlikely``, where
            nothing looks relevant.
        seed: Draws all.
        queries: How many titles there are.
    """
    random = np.random.default_rng([seed, int(100 * broad)])
    ages = dimension("old", "young")
    weights = np.ones(queries)
    answers: dict[str, list[AnswerFigures]] = {"judged": [], "estimated": []}
    for number in range(queries):
        is_broad = number < broad * queries
        count = int(random.integers(300, 901) if is_broad else random.integers(20, 81))
        kind = "same" if is_broad else others
        is_long = random.random(count) < 0.4
        chance = random.beta(12, 3, count) * (0.5 if kind == "unlikely" else 1.0)
        old = random.random(count) < (0.24 if kind == "even" else 0.6 * is_long)
        relevant = (random.random(count) < chance).astype(float)
        order = np.argsort(is_long + 0.4 * random.normal(size=count))
        first = order[:LOOKED_AT]
        level = end_of(chance, first.tolist()) if is_broad else 0.0
        judged = Answer(np.eye(2)[1 - old[order]], len(first), relevant[order], True)
        answers["judged"].append(measure_answer(judged, ages, CHOICES))
        members = np.eye(2)[1 - old[first]]
        estimated = Answer(members, len(first), chance[first], False, level)
        answers["estimated"].append(measure_answer(estimated, ages, CHOICES))
    truth = {name: _figures(ages, measured, weights, seed)[0] for name, measured in answers.items()}
    return World(ages, answers, truth)


def _figures(
    dimension: Dimension, answers: Sequence[AnswerFigures], weights: Sequence[float], seed: int
) -> list[GroupFigures]:
    figures = gather(answers, weights, dimension).figures(np.random.default_rng(seed))
    return judge(figures, AuditSpec().failures)


def _checked(dimension: Dimension, checked: int, random: np.random.Generator) -> Dimension:
    """Return groups with a confusion matrix that is counted on a sample."""
    names = dimension.groups
    rows = {
        group: dict(zip(names, random.multinomial(checked, row).tolist(), strict=True))
        for group, row in zip(names, dimension.confusion, strict=True)
    }
    attribute = dimension.attribute.model_copy(update={"confusion": rows})
    return Dimension(attribute, (attribute,))


def audits(
    made: World,
    relevance: str,
    size: int,
    spread: float,
    seed: int,
    count: int = AUDITS,
    checked: int = 0,
) -> Counter[str]:
    """Audit an engine again and again, each time with other queries.

    Args:
        made: The engine.
        relevance: ``judged`` or ``estimated``.
        size: How many queries an audit asks.
        spread: Of the logarithms of the weights.
        seed: Draws the queries.
        count: How many audits there are.
        checked: On how many documents of each group each audit counts wrong labels; by default it
            knows how often they are wrong.

    Returns:
        How many audits gave each verdict on the first group, ``accused`` any, or gave a
        ``detectable`` gap. Of those whose verdict is not ``saturated``, by figure, how many gave
        an interval, and with `` held`` behind its name in how many the true value was; and as
        ``gap of all`` in how many intervals of the gap was that of all queries by judgements.
    """
    random = np.random.default_rng(seed)
    outcome = Counter[str]()
    answers = made.shown[relevance]
    for number in range(count):
        drawn = [answers[row] for row in random.integers(0, len(answers), size)]
        weights = np.exp(spread * random.normal(size=size))
        dimension = _checked(made.dimension, checked, random) if checked else made.dimension
        groups = _figures(dimension, drawn, weights, number)
        first = groups[0]
        gap_of_all = made.truth["judged"].ranking_gap.value
        if first.verdict != "saturated":
            outcome["gap of all"] += first.ranking_gap.low <= gap_of_all <= first.ranking_gap.high
            for name in ESTIMATES:
                estimate = getattr(first, name)
                truth = getattr(made.truth[relevance], name).value
                outcome[name] += not math.isnan(estimate.low)
                outcome[f"{name} held"] += estimate.low - 1e-9 <= truth <= estimate.high + 1e-9
        outcome[first.verdict] += 1
        outcome["detectable"] += not math.isnan(first.detectable_gap)
        outcome["accused"] += any(group.verdict in ("less", "more") for group in groups)
    return outcome
