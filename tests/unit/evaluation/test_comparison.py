"""Comparisons: what they are over, which way they go, and what they say."""

from __future__ import annotations

import numpy as np
import pytest

from fairqr.agents.statistics import corrected_by_holm
from fairqr.evaluation.estimates import paired_t
from fairqr.evaluation.evaluate import evaluate
from fairqr.evaluation.results import Evaluation, Missing, compare
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.runs import SystemRun

QUERIES = [f"q{number}" for number in range(10)]
QRELS = {query: {"a": 1, "b": 0, "c": 0} for query in QUERIES}


def ranking_with_a_at(rank: int) -> list[Ranking]:
    ids = ["b", "c", "d", "e"]
    ids.insert(rank - 1, "a")
    return [Ranking(ids, [float(-place) for place in range(len(ids))])]


def run(name: str, ranks: list[int]) -> SystemRun:
    return SystemRun(name, {q: ranking_with_a_at(r) for q, r in zip(QUERIES, ranks, strict=True)})


LOW = run("low", [3, 4, 3, 5, 4, 3, 4, 5, 3, 4])
HIGH = run("high", [1, 2, 1, 1, 2, 1, 1, 1, 2, 1])
MIXED = run("mixed", [4, 3, 4, 4, 5, 4, 3, 4, 4, 3])


def evaluations(
    *runs: SystemRun, measures: str = "RR,nDCG@5,P@1", missing: Missing = "zero"
) -> list[Evaluation]:
    return [evaluate(it, QRELS, measures, missing=missing) for it in runs]


def test_differences_are_of_the_other_run_and_paired_by_query() -> None:
    first, second = evaluations(LOW, HIGH)
    found = compare(first, [second])
    row = found.rows[0]
    ours = np.array([second["RR"].values[q] for q in QUERIES])
    differences = ours - [first["RR"].values[q] for q in QUERIES]
    assert (row.baseline, row.run, row.count) == ("low", "high", 10)
    assert row.difference == pytest.approx(differences.mean())
    assert row.t == pytest.approx(paired_t(differences))
    # All ten differences are positive: of 2^10 assignments two are as far from 0.
    assert row.randomisation == pytest.approx(2 / 2**10)
    assert row.exact
    assert row.interval is not None
    assert row.interval.low <= row.difference <= row.interval.high


def test_the_correction_is_over_all_runs_and_measures() -> None:
    low, high, mixed = evaluations(LOW, HIGH, MIXED)
    found = compare(low, [high, mixed])
    assert found.tests == 6
    raw = [row.randomisation for row in found.rows if row.randomisation is not None]
    assert [row.randomisation_corrected for row in found.rows] == pytest.approx(
        corrected_by_holm(raw)
    )
    with_t = [row.t for row in found.rows if row.t is not None]
    corrected = [row.t_corrected for row in found.rows if row.t is not None]
    assert corrected == pytest.approx(corrected_by_holm(with_t))


def test_it_says_which_differences_hold() -> None:
    low, high, mixed = evaluations(LOW, HIGH, MIXED, measures="RR")
    found = compare(low, [high, mixed], alpha=0.01)
    holding, not_holding = found.sentences()
    assert holding.startswith("RR: high is 0.")
    assert "above low (better) over 10 queries; the difference holds at 0.01" in holding
    assert "Holm-corrected for 2" in holding
    assert "does not hold at 0.01" in not_holding
    assert [row.holds(0.01) for row in found.rows] == [True, False]


def test_more_comparisons_need_more_queries() -> None:
    """The least p of an exact test over 6 queries is 1/32: enough alone, not among six."""
    low, high = (
        SystemRun(one.name, {query: one.rankings[query] for query in QUERIES[:6]})
        for one in (LOW, HIGH)
    )
    first, *others = evaluations(low, *[high] * 6, measures="RR", missing="undefined")
    alone, among = compare(first, others[:1]), compare(first, others)
    assert alone.rows[0].holds(0.05)
    assert not alone.too_few(alone.rows[0])
    assert [among.too_few(row) for row in among.rows] == [True] * 6
    assert "over 6 queries; these are too few to show any difference" in among.sentences()[0]
    assert among.as_json()["rows"][0]["too_few"] is True


def test_a_divergence_is_better_where_it_is_lower() -> None:
    first, second = evaluations(HIGH, LOW, measures="EE-L@3,EE-R@3,RR")
    sentences = compare(first, [second]).sentences()
    assert "above high (worse)" in sentences[0]
    assert "below high (worse)" in sentences[1]
    assert "below high (worse)" in sentences[2]


def test_only_queries_with_a_value_in_both_count() -> None:
    few = SystemRun("few", {query: HIGH.rankings[query] for query in QUERIES[:4]})
    first, second = evaluations(LOW, few, measures="RR,EE-R@3", missing="undefined")
    found = compare(first, [second])
    assert [row.count for row in found.rows] == [4, 4]
    nothing = SystemRun("nothing", {"elsewhere": HIGH.rankings["q0"]})
    first, second = evaluations(LOW, nothing, measures="RR", missing="undefined")
    found = compare(first, [second])
    assert found.rows[0].difference is None
    assert found.tests == 0
    assert found.sentences() == ["RR: no query has a value in both nothing and low."]
