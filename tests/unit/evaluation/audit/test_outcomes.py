"""What comes out of an audit, as numbers."""

from __future__ import annotations

import pytest

from fairqr.evaluation.audit.measuring import Unanswered, measure
from tests.unit.evaluation.audit.examples import SCHEMA, observations_of, queries_of, spec_of


def test_queries_without_figures_are_listed_with_the_reason() -> None:
    queries = queries_of(12)
    found = measure(
        spec_of(),
        SCHEMA,
        {query.id: query for query in queries.queries},
        observations_of(queries, empty=["q3"], failed=["q1"]),
    )
    assert found.unanswered == [
        Unanswered("q1", "failed", "The engine did not answer in time."),
        Unanswered("q3", "empty", ""),
    ]
    assert found.counts.answered == 10


def test_the_curve_says_what_each_group_would_get() -> None:
    queries = queries_of(12)
    by_id = {query.id: query for query in queries.queries}
    figures = measure(spec_of(mend=12), SCHEMA, by_id, observations_of(queries))
    today, *fairer = figures.costs["gender"]
    female = next(it for it in figures.groups if it.group == "female")
    # All queries are mended here, so that today's exposure is that of the audit.
    assert today.exposure[0].value == pytest.approx(female.exposure.value)
    for point in (today, *fairer):
        assert sum(it.value for it in point.exposure) == pytest.approx(1)
    gaps = [abs(point.exposure[0].value - female.target.value) for point in (today, *fairer)]
    assert gaps[-1] < 0.2 * gaps[0]


def test_candidates_without_a_label_are_counted() -> None:
    queries = queries_of(12)
    by_id = {query.id: query for query in queries.queries}
    observations = observations_of(queries, unlabelled=0.25)
    figures = measure(spec_of(), SCHEMA, by_id, observations)
    counted = 0.0
    for it in observations:
        rows = it.groups["gender"]["rows"]
        labelled = [sum(it.groups["gender"]["patterns"][row]) for row in rows]
        counted += sum(
            r for r, label in zip(it.relevance or (), labelled, strict=True) if not label
        )
    assert figures.unlabelled["gender"] == pytest.approx(counted)
    assert figures.unlabelled["origin"] == 0
    # Without relevance the candidates are what was answered.
    found = measure(
        spec_of(target="uniform:1"),
        SCHEMA,
        by_id,
        observations_of(queries, unlabelled=0.25, with_relevance=False),
        relevance="unknown",
    )
    assert 12 * 30 * 0.15 < found.unlabelled["gender"] < 12 * 30 * 0.35
