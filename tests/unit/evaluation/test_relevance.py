"""Measures of relevance: against ir_measures, which runs trec_eval."""

from __future__ import annotations

import ir_measures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.evaluation.evaluate import evaluate

AT_10 = [measure @ 10 for measure in (ir_measures.nDCG, ir_measures.R, ir_measures.AP)]
MEASURES = [*AT_10, ir_measures.nDCG, ir_measures.AP, ir_measures.RR]
MEASURES += [ir_measures.P @ 5, ir_measures.P @ 40]
"""A kept library's measures, which ours are read from."""

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
    ours = evaluate(run, qrels, MEASURES)
    theirs = list(ir_measures.iter_calc(MEASURES, qrels, run))
    assert len(theirs) == len(MEASURES) * len(qrels)
    for query, measure, value in theirs:
        assert ours[str(measure)].values[query] == pytest.approx(value, abs=1e-9), measure
