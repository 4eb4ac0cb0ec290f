"""Measures of relevance: against ir_measures, which runs trec_eval."""

from __future__ import annotations

import ir_measures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.evaluation.evaluate import evaluate

THEIRS = {
    "nDCG@10(gains=graded)": ir_measures.nDCG @ 10,
    "nDCG(gains=graded)": ir_measures.nDCG,
    "P@5": ir_measures.P @ 5,
    "P@40": ir_measures.P @ 40,
    "R@10": ir_measures.R @ 10,
    "AP": ir_measures.AP,
    "AP@10": ir_measures.AP @ 10,
    "RR": ir_measures.RR,
}
"""A kept library's measures, by the text of ours that has to give the same."""


Case = tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]


@st.composite
def judged_runs(draw: st.DrawFn) -> Case:
    """Runs with distinct scores, and judgements with at least one relevant document a query."""
    run, qrels = {}, {}
    for query in range(draw(st.integers(1, 4))):
        ids = [f"d{number}" for number in range(30)]
        ranked = draw(st.permutations(ids))[: draw(st.integers(1, 25))]
        grades = st.dictionaries(st.sampled_from(ids), st.integers(0, 3), min_size=1, max_size=20)
        judged = draw(grades)
        judged[draw(st.sampled_from(sorted(judged)))] = 1
        run[f"q{query}"] = {id_: float(-place) for place, id_ in enumerate(ranked)}
        qrels[f"q{query}"] = judged
    return run, qrels


@settings(max_examples=40)
@given(judged_runs())
def test_they_agree_with_ir_measures(case: Case) -> None:
    """For each query, on runs without ties and judgements with a relevant document."""
    run, qrels = case
    ours = evaluate(run, qrels, list(THEIRS))
    theirs = {
        (metric.query_id, str(metric.measure)): metric.value
        for metric in ir_measures.iter_calc(list(THEIRS.values()), qrels, run)
    }
    for text, measure in THEIRS.items():
        for query, value in ours[text].values.items():
            assert value == pytest.approx(theirs[query, str(measure)], abs=1e-9), (text, query)
