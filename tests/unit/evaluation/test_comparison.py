"""Comparisons: what they are over, which way they go, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fairqr.agents.statistics import corrected_by_holm
from fairqr.base.errors import InputError
from fairqr.evaluation.evaluate import evaluate
from fairqr.evaluation.results import Evaluation, compare

QUERIES = [f"q{number}" for number in range(10)]
QRELS = {query: {"a": 1, "b": 0, "c": 0} for query in QUERIES}
RANKS = {
    "low": [3, 4, 3, 5, 4, 3, 4, 5, 3, 4],
    "high": [1, 2, 1, 1, 2, 1, 1, 1, 2, 1],
    "mixed": [4, 3, 4, 4, 5, 4, 3, 4, 4, 3],
}
"""Where each run has the relevant document of each query."""


def measured(
    name: str, measures: str = "RR", queries: Sequence[str] = QUERIES, **options: Any
) -> Evaluation:
    run = {}
    for query, rank in zip(queries, RANKS[name], strict=False):
        run[query] = ["b", "c", "d", "e"]
        run[query].insert(rank - 1, "a")
    return evaluate(run, QRELS, measures, name=name, **options)


def test_differences_are_of_the_other_run_and_paired_by_query() -> None:
    """By the measures that both have, in either direction."""
    first, second = measured("low", "AP,RR,P@1"), measured("high", "R@1,RR")
    (row,) = second.compare(first).rows
    ours = np.array([second.results["RR"].values[q] for q in QUERIES])
    differences = ours - [first.results["RR"].values[q] for q in QUERIES]
    assert (row.baseline, row.run, row.count) == ("low", "high", 10)
    assert row.difference == pytest.approx(differences.mean())
    # All ten differences are positive: of 2^10 assignments two are as far from 0.
    assert row.randomisation == pytest.approx(2 / 2**10)
    assert row.interval is not None
    assert row.interval.low <= row.difference <= row.interval.high
    assert first.compare(second).rows[0].difference == -row.difference
    with pytest.raises(InputError, match="No measure was computed for both high and low"):
        first.compare(measured("high", "P@2"))


def test_a_target_is_the_same_where_a_shared_measure_has_one() -> None:
    groups = {it: {"gender": "f" if it in "ad" else "m"} for it in "abcde"}
    both = measured("low", "AWRF@2,RR", groups=groups)
    others = {
        it: measured("high", it, groups=groups, target="uniform:1") for it in ("RR", "AWRF@2")
    }
    assert [str(row.measure) for row in both.compare(others["RR"]).rows] == ["RR"]
    assert [str(row.measure) for row in others["RR"].compare(both).rows] == ["RR"]
    with pytest.raises(InputError, match="measured with two targets"):
        both.compare(others["AWRF@2"])


@pytest.mark.promise("evaluation")
def test_the_correction_is_over_all_runs_and_measures() -> None:
    """Holm's correction is over all comparisons of the call."""
    low, *others = (measured(name, "RR,nDCG@5,P@1") for name in RANKS)
    found = compare(low, others)
    assert found.tests == 6
    p = [row.randomisation for row in found.rows]
    assert [row.randomisation_corrected for row in found.rows] == corrected_by_holm(p)


@pytest.mark.promise("evaluation")
def test_it_says_which_differences_hold() -> None:
    """A comparison says which differences hold after the correction."""
    low, *others = map(measured, RANKS)
    found = compare(low, others)
    holding, not_holding = found.sentences()
    assert holding.startswith("RR: high is 0.")
    assert "above low (better) over 10 queries; the difference holds at 0.05" in holding
    assert "Holm-corrected for 2" in holding
    assert "does not hold at 0.05" in not_holding
    assert [row.holds for row in found.rows] == [True, False]
    losses = compare(measured("high", "EE-L@3,EE-R@3"), [measured("low", "EE-L@3,EE-R@3")])
    assert "above high (worse)" in losses.sentences()[0]
    assert "below high (worse)" in losses.sentences()[1]


def test_more_comparisons_need_more_queries() -> None:
    """The least p of an exact test over 6 queries is 1/32: enough alone, not among six."""
    low, high = (measured(it, queries=QUERIES[:6], missing="undefined") for it in ("low", "high"))
    alone, among = compare(low, [high]), compare(low, [high] * 6)
    assert alone.rows[0].holds
    assert not alone.too_few(alone.rows[0])
    assert [among.too_few(row) for row in among.rows] == [True] * 6
    assert "over 6 queries; these are too few to show any difference" in among.sentences()[0]


def test_only_queries_with_a_value_in_both_count() -> None:
    low = measured("low", "RR,EE-R@3")
    few = measured("high", "RR,EE-R@3", QUERIES[:4], missing="undefined")
    assert [row.count for row in compare(low, [few]).rows] == [4, 4]
    found = compare(low, [measured("high", "RR", (), missing="undefined")])
    assert (found.rows[0].difference, found.tests) == (None, 0)
    assert found.sentences() == ["RR: no query has a value in both high and low."]
