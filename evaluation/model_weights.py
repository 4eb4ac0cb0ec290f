"""Fits how much a model's words count, from the lists that each choice of weights leads to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.agents.profiles.profile import Change
from fairqr.evaluation.estimates import Estimate, means, ratios
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import EvidenceWeights

NOISE = 0.25
"""What counts as equal, in standard errors of a difference. With the replies of a large model on
TREC Fair 2022, weights that were chosen with 0, .25, .5 and 1 brought 4.3, 4.1, 3.8 and 3.0 % on
the topics held back, in the mean over twenty divisions; on notables 4.7, 4.4, 4.3 and 4.4 %."""

KINDS = tuple(EvidenceWeights.model_fields)
EQUAL = ("topic", "group")
"""The kinds of words that count as much as the query, unless topics say otherwise. Other ways to
ask say the same again, and passages harm where relevance is exact."""

STEPS = (0.0, 0.5, 1.0)
"""The weights that are tried for each kind of words."""

MOST_LOST = 0.005
"""How much no attribute or form of query may lose, as a share of the product without the model."""


def candidates(kinds: Sequence[str] = KINDS) -> list[EvidenceWeights]:
    """Return the weights to try: equal ones first, then those with the lowest sum.

    A few topics say little of a weight. So the words of the topic and those of the groups count as
    much as the query, unless the topics say clearly otherwise.

    Args:
        kinds: The kinds of words that the model gave; the others have a weight of 0.
    """
    equal = EvidenceWeights(**{kind: 1.0 for kind in EQUAL if kind in kinds})
    tried = []
    for steps in itertools.product(STEPS, repeat=len(kinds)):
        tried.append(EvidenceWeights(**dict(zip(kinds, steps, strict=True))))
    tried.sort(key=lambda weights: sum(weights.model_dump().values()))
    return [equal, *(weights for weights in tried if weights != equal)]


def cautious_candidates(kinds: Sequence[str], usual: EvidenceWeights) -> list[EvidenceWeights]:
    """Return the weights to try with few topics: the usual ones first, or some of them 0.

    So a few lucky topics never raise what an unmeasured model counts.

    Args:
        kinds: The kinds of words that the model gave.
        usual: The weights of a model that nobody measured.
    """
    own = usual.model_dump()
    counted = [kind for kind in kinds if own[kind] > 0]
    tried = []
    for kept in itertools.product((True, False), repeat=len(counted)):
        weights = {kind: own[kind] for kind, is_kept in zip(counted, kept, strict=True) if is_kept}
        tried.append(EvidenceWeights(**weights))
    return tried


def fit_weights(products: FloatArray, baseline: FloatArray) -> int:
    """Return which of the candidates to use.

    The score of a candidate is the mean over cells of its product, as a share of the cell's
    product without the model. Candidates that lose more than :data:`MOST_LOST` in any cell are
    left out. The first one stays unless the best one's score is more than one standard error above
    it. Otherwise, we take the
    simplest one whose score is within :data:`NOISE` standard errors of the best one's. The standard
    error is that of the difference of both, over topics.

    Args:
        products: nDCG × AWRF by topic, cell and candidate, shape (n, cells, C), those first that
            are preferred; NaN where a topic has no target. A topic without any does not count.
        baseline: The same without the model, shape (n, cells).

    Returns:
        The position of the candidate.
    """
    has_any = ~np.isnan(baseline).all(axis=1)
    products = products[has_any]
    baseline = baseline[has_any]
    usual = np.nanmean(baseline, axis=0)
    shares = (products - baseline[:, :, None]) / usual[None, :, None]
    by_cell = np.nanmean(shares, axis=0)
    is_safe = (by_cell >= -MOST_LOST).all(axis=0)
    if not is_safe.any():
        return 0
    scores = np.where(is_safe, by_cell.mean(axis=0), -np.inf)
    best = int(scores.argmax())
    # The share of a topic: the mean over its cells.
    by_topic = np.nanmean(shares, axis=1)
    differences = by_topic[:, [best]] - by_topic
    errors = (differences.std(axis=0, ddof=1) / np.sqrt(len(differences))).round(12)
    if is_safe[0] and scores[best] - scores[0] <= errors[0]:
        return 0
    is_near = is_safe & (scores >= scores[best] - NOISE * errors)
    return int(np.flatnonzero(is_near)[0])


@dataclass(frozen=True, slots=True)
class Halves:
    """The topics in two halves.

    Attributes:
        fitted: The positions of those that weights are fitted on.
        reported: The positions of the others.
    """

    fitted: list[int]
    reported: list[int]


def halve(topics: int, seed: int) -> Halves:
    """Divide the positions of topics at random into halves; of an odd number, one more reports."""
    order = np.random.default_rng(seed).permutation(topics).tolist()
    middle = topics // 2
    return Halves(sorted(order[:middle]), sorted(order[middle:]))


def relative_change(after: FloatArray, before: FloatArray) -> Change:
    """Return by how many per cent the mean changed, with an interval over topics.

    Args:
        after: By topic and cell, shape (n, cells); NaN where a topic has no value.
        before: The same without the model.
    """
    above = _by_topic(after)
    below = _by_topic(before)
    (ratio,) = ratios(above, below, np.ones(len(above)))
    value, low, high = (100 * (end - 1) for end in (ratio.value, ratio.low, ratio.high))
    return _as_change(Estimate(value, low, high, ratio.queries))


def absolute_change(after: FloatArray, before: FloatArray) -> Change:
    """Return by how much the mean changed, with an interval over topics; see above."""
    differences = _by_topic(after) - _by_topic(before)
    (mean,) = means(differences, np.ones(len(differences)))
    return _as_change(mean)


def closed_share(after: FloatArray, before: FloatArray, lacking: FloatArray) -> float:
    """Return how much of what searches lack the model brings, in [0, 1].

    Args:
        after: The product by topic and cell, shape (n, cells).
        before: The same without the model.
        lacking: 1 − p·F of the search without the model, where it expects p and F of its list.
    """
    gained = float(np.nansum(after - before))
    total = float(lacking[~np.isnan(before)].sum())
    if total <= 0:
        return 0.0
    return min(1.0, max(0.0, gained / total))


def _by_topic(values: FloatArray) -> FloatArray:
    """Return the mean over the cells of each topic that has any, shape (m, 1)."""
    has_any = ~np.isnan(values).all(axis=1)
    return np.asarray(np.nanmean(values[has_any], axis=1, keepdims=True))


def _as_change(estimate: Estimate) -> Change:
    """Return an estimate for a profile, with few digits."""
    return Change(
        value=_rounded(estimate.value) or 0.0,
        low=_rounded(estimate.low),
        high=_rounded(estimate.high),
    )


def _rounded(number: float) -> float | None:
    return None if np.isnan(number) else round(number, 4)
