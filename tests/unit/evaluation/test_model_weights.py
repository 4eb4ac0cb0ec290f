"""How much a model's words count, fitted from lists that were judged."""

from __future__ import annotations

import numpy as np
import pytest

from fairqr.evaluation.model_weights import (
    absolute_change,
    candidates,
    cautious_candidates,
    closed_share,
    fit_weights,
    halve,
    relative_change,
)
from fairqr.retrieval.fairness.relevance import EvidenceWeights

TOPICS = 20


def products(*gains: list[float], noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Products of searches by topic, cell and candidate; the first candidate gains nothing.

    Args:
        gains: For each cell, the gain of each further candidate.
        noise: How much the gain of the last candidate differs between topics.
    """
    baseline = np.full((TOPICS, len(gains)), 0.5)
    values = baseline[:, :, None] + np.array([[0.0, *of_cell] for of_cell in gains])[None]
    values[:, :, -1] += noise * np.resize([-1, 1], TOPICS)[:, None]
    return values, baseline


def test_candidates_begin_with_equal_weights() -> None:
    equal, *tried = candidates(("topic", "group"))
    assert equal == EvidenceWeights(topic=1, group=1)
    assert len({repr(weights) for weights in tried} - {repr(equal)}) == 8
    assert tried[0] == EvidenceWeights()
    totals = [weights.topic + weights.group for weights in tried]
    assert totals == sorted(totals)


def test_equal_weights_stay_unless_topics_say_clearly_otherwise() -> None:
    rng = np.random.default_rng(3)
    baseline = rng.uniform(0.4, 0.6, (TOPICS, 2))
    noise = rng.normal(0, 0.05, (TOPICS, 2, 2))
    a_little = np.stack([baseline + 0.02, baseline + 0.025], axis=2) + noise
    assert fit_weights(a_little, baseline) == 0
    much = np.stack([baseline + 0.02, baseline + 0.2], axis=2) + noise
    assert fit_weights(much, baseline) == 1


def test_a_topic_without_any_value_does_not_count() -> None:
    baseline = np.full((TOPICS, 2), 0.5)
    products = np.stack([baseline, baseline + 0.1], axis=2)
    baseline[0] = np.nan
    products[0] = np.nan
    assert fit_weights(products, baseline) == 1


def test_few_topics_can_only_lower_the_usual_weights() -> None:
    usual = EvidenceWeights(topic=0.25, group=0.25)
    assert cautious_candidates(("topic", "passage", "group"), usual) == [
        usual,
        EvidenceWeights(topic=0.25),
        EvidenceWeights(group=0.25),
        EvidenceWeights(),
    ]


@pytest.mark.parametrize(
    ("gains", "noise", "chosen"),
    [
        ([[0.1, 0.2]], 0.0, 2),
        ([[0.1, 0.1]], 0.0, 1),
        ([[0.198, 0.2]], 0.1, 1),
        ([[0.01, 0.02]], 0.1, 0),
        ([[-0.1, -0.2]], 0.0, 0),
        ([[0.01, 0.3], [0.01, -0.01]], 0.0, 1),
    ],
    ids=[
        "the best",
        "the simpler of equals",
        "nearly equal",
        "nothing clear",
        "no words",
        "harms a cell",
    ],
)
def test_which_weights_are_chosen(gains: list[list[float]], noise: float, chosen: int) -> None:
    assert fit_weights(*products(*gains, noise=noise)) == chosen


def test_topics_without_a_target_do_not_count() -> None:
    values, baseline = products([0.1, 0.2], [0.1, 0.2])
    values[0, 1] = baseline[0, 1] = np.nan
    assert fit_weights(values, baseline) == 2


def test_the_halves_are_drawn_by_the_seed() -> None:
    first = halve(7, seed=0)
    assert sorted([*first.fitted, *first.reported]) == list(range(7))
    assert (len(first.fitted), len(first.reported)) == (3, 4)
    assert first == halve(7, seed=0)
    assert first != halve(7, seed=1)


def test_changes_have_intervals() -> None:
    before = np.linspace(0.2, 0.8, 10)[:, None]
    after = before * 1.1 + np.resize([-0.01, 0.01], 10)[:, None]
    gain = relative_change(after, before)
    assert gain.value == pytest.approx(10)
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low < 10 < gain.high
    assert absolute_change(after, before).value == pytest.approx(0.05)


def test_the_share_of_what_lacks_is_never_negative() -> None:
    before = np.full((4, 1), 0.5)
    lacking = np.full((4, 1), 0.4)
    assert closed_share(before + 0.1, before, lacking) == pytest.approx(0.25)
    assert closed_share(before - 0.1, before, lacking) == 0
    assert closed_share(before, before, np.zeros((4, 1))) == 0
