"""Inequality among useful documents: against pairs of draws counted one by one."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.evaluation.rag.measures.inequality import (
    Inequality,
    most_unequal,
    use_inequality,
    useful_inequality,
)
from fairqr.evaluation.scores import Reason, Undefined

quick = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize(
    ("n", "m", "k"), [(n, m, k) for n in range(2, 6) for m in range(1, n + 1) for k in range(1, 6)]
)
def test_the_greatest_inequality_is_that_of_some_fixed_ranking(n: int, m: int, k: int) -> None:
    values = []
    for order in itertools.permutations(range(n), min(k, n)):
        shown = [float(i in order) for i in range(m)]
        values.append(sum((x - statistics.fmean(shown)) ** 2 for x in shown))
    assert most_unequal(n, m, k) == pytest.approx(max(values))


def _split(
    draws: Sequence[tuple[tuple[int, ...], frozenset[int], frozenset[int]]], useful: Sequence[int]
) -> list[float]:
    """Count total, retrieval, picking and repetition over ordered pairs of different draws."""
    count, m = len(draws), len(useful)
    pairs = list(itertools.permutations(range(count), 2))
    different = [(s, t) for s, t in pairs if draws[s][0] != draws[t][0]]
    both_read = sum(len(draws[s][1]) * len(draws[t][1]) for s, t in different)
    if both_read:
        rate = sum(len(draws[s][2]) * len(draws[t][2]) for s, t in different) / both_read
    else:
        rate = 0.0
    sums = [0.0, 0.0, 0.0, 0.0]
    for s, t in pairs:
        (one, read_s, used_s), (other, read_t, used_t) = draws[s], draws[t]
        of_use = len(used_s & used_t) - len(used_s) * len(used_t) / m
        of_reading = len(read_s & read_t) - len(read_s) * len(read_t) / m
        sums[0] += of_use
        sums[1] += rate * of_reading
        sums[3 if one == other else 2] += of_use - rate * of_reading
    return [value / (count * (count - 1)) for value in sums]


@st.composite
def answered(draw: Any) -> tuple[list[Any], list[int], list[list[Any]], list[bool]]:
    n = draw(st.integers(2, 5))
    k = draw(st.integers(1, n))
    every = list(itertools.permutations(range(n), k))
    rankings = draw(st.lists(st.sampled_from(every), min_size=1, max_size=5, unique=True))
    times = [draw(st.integers(1, 3)) for _ in rankings]
    verdict = st.sampled_from([True, False, None])
    verdicts = [draw(st.lists(verdict, min_size=k, max_size=k)) for _ in rankings]
    useful = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return rankings, times, verdicts, useful


@quick
@given(answered())
def test_the_parts_are_what_counting_pairs_gives_and_sum_to_the_total(
    case: tuple[list[Any], list[int], list[list[Any]], list[bool]],
) -> None:
    rankings, times, verdicts, useful = case
    attributed = [[bool(v) for v in row] for row in verdicts]
    judged = [[v is not None for v in row] for row in verdicts]
    found = use_inequality(rankings, times, attributed, judged, useful)
    places = [i for i, is_useful in enumerate(useful) if is_useful]
    if len(places) < 2:
        reason = Reason.FEW_RELEVANT if places else Reason.NO_RELEVANT
        assert found == Undefined(reason)
        return
    if sum(times) < 2:
        assert found == Undefined(Reason.ONE_RANKING)
        return
    if not any(map(any, judged)):
        assert found == Undefined(Reason.NO_VERDICT)
        return
    draws = []
    for ranking, count, row in zip(rankings, times, verdicts, strict=True):
        there = [(i, v) for i, v in zip(ranking, row, strict=True) if i in places]
        read = frozenset(i for i, v in there if v is not None)
        used = frozenset(i for i, v in there if v)
        draws += [(ranking, read, used)] * count
    if len({ranking for ranking, read, _ in draws if read}) == 1:
        # Its own rate, squared, would be too large on average.
        assert found == Undefined(Reason.ONE_RANKING)
        return
    assert isinstance(found, Inequality)
    total, retrieval, picking, repetition = _split(draws, places)
    assert found.total == pytest.approx(total, abs=1e-12)
    assert found.retrieval == pytest.approx(retrieval, abs=1e-12)
    assert found.picking == pytest.approx(picking, abs=1e-12)
    assert found.repetition == pytest.approx(repetition, abs=1e-12)
    parts = found.retrieval + found.picking + found.repetition
    assert parts == pytest.approx(found.total, abs=1e-12)


def test_exposure_of_few_samples_is_measured_without_bias() -> None:
    """A policy that shows one of three useful documents at random: every triple of samples."""
    useful = [True, True, True, False]
    values = [
        useful_inequality([(i,) for i in sample], useful)
        for sample in itertools.product(range(3), repeat=3)
    ]
    assert np.mean(np.array(values, dtype=float)) == pytest.approx(0, abs=1e-12)


def test_a_fixed_ranking_that_splits_the_useful_in_half_is_the_most_unequal() -> None:
    assert useful_inequality([(0, 1)], [True] * 4 + [False], fixed=True) == pytest.approx(1)
    assert useful_inequality([(0, 1)] * 9, [True] * 4 + [False]) == pytest.approx(1)
    assert useful_inequality([(0, 1)], [True, True, False], fixed=True) == pytest.approx(0)


@pytest.mark.parametrize(
    ("samples", "useful", "reason"),
    [
        ([(0,), (1,)], [False, False], Reason.NO_RELEVANT),
        ([(0,), (1,)], [True, False], Reason.FEW_RELEVANT),
        ([(0,)], [True, True], Reason.ONE_RANKING),
        ([(0, 1), (1, 0)], [True, True], Reason.NO_ROOM),
    ],
)
def test_where_there_is_no_inequality_there_is_a_reason(
    samples: list[tuple[int, ...]], useful: list[bool], reason: Reason
) -> None:
    assert useful_inequality(samples, useful) == Undefined(reason)


def _simulate(pick: Any, weights: Sequence[float]) -> Inequality:
    """Draw many samples of three of six documents, four useful; ``pick`` says what is used."""
    random = np.random.default_rng(3)
    counted: dict[tuple[int, ...], int] = {}
    for _ in range(3000):
        noise = random.gumbel(size=6)
        ranking = tuple(int(i) for i in np.argsort(-(np.log(weights) + noise))[:3])
        counted[ranking] = counted.get(ranking, 0) + 1
    rankings = list(counted)
    used = [[pick(i, ranking, random) for i in ranking] for ranking in rankings]
    found = use_inequality(
        rankings,
        list(counted.values()),
        used,
        np.ones((len(rankings), 3), dtype=bool),
        [True] * 4 + [False] * 2,
    )
    assert isinstance(found, Inequality)
    return found


def test_unequal_rankings_that_are_used_evenly_are_all_retrieval() -> None:
    found = _simulate(lambda i, ranking, random: True, [8, 4, 1, 1, 1, 1])
    assert found.retrieval > 0.1
    assert found.retrieval == pytest.approx(found.total)
    assert found.picking == pytest.approx(0, abs=1e-9)
    assert found.repetition == pytest.approx(0, abs=1e-9)


def test_even_rankings_of_which_one_document_is_preferred_are_all_picking() -> None:
    found = _simulate(lambda i, ranking, random: i == 0, [1] * 6)
    assert found.retrieval == pytest.approx(0, abs=5e-4)
    assert found.picking > 0.05


@pytest.mark.parametrize("weights", [[1] * 6, [8, 4, 1, 1, 1, 1]])
def test_picking_at_random_is_no_picking(weights: list[float]) -> None:
    """The mean over many queries is 0, although each answer uses but some documents.

    What unequal rankings leave is all retrieval's, whose mean is ρ² times their inequality.
    """
    picking, retrieval, shown = [], [], []
    useful = [True] * 4 + [False] * 2
    for seed in range(600):
        random = np.random.default_rng(seed)
        noise = np.log(weights) + random.gumbel(size=(8, 6))
        rankings = list(dict.fromkeys(tuple(map(int, row[:3])) for row in np.argsort(-noise)))
        used = random.random((len(rankings), 3)) < 0.4
        once = [1] * len(rankings)
        found = use_inequality(rankings, once, used, np.ones_like(used), useful)
        all_ = use_inequality(rankings, once, np.ones_like(used), np.ones_like(used), useful)
        assert isinstance(found, Inequality)
        assert isinstance(all_, Inequality)
        picking.append(found.picking)
        retrieval.append(found.retrieval)
        shown.append(all_.total)
    error = statistics.stdev(picking) / len(picking) ** 0.5
    assert abs(statistics.fmean(picking)) < 3 * error
    expected = 0.4**2 * statistics.fmean(shown)
    assert statistics.fmean(retrieval) == pytest.approx(expected, abs=0.01)
