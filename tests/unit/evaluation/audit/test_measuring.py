"""From observations to figures."""

from __future__ import annotations

import pytest

from fairqr.evaluation.audit.measuring import AuditFigures, measure
from tests.unit.evaluation.audit.examples import SCHEMA, observations_of, queries_of, spec_of


def test_only_queries_that_are_in_a_lean_contribute_to_it() -> None:
    queries = queries_of(30)
    observed = observations_of(queries)
    # Nothing that this query finds is likely to be relevant, so that its supply is not known.
    weightiest = observed[-1]
    faint = tuple(0.4 * probability for probability in weightiest.relevance or ())
    observed[-1] = weightiest.model_copy(update={"relevance": faint})
    asked = {query.id: query for query in queries.queries}
    found: AuditFigures = measure(spec_of(), SCHEMA, asked, observed)
    (gender,) = (part for part in found.by_query if part.dimension.name == "gender")
    leans = dict(zip(gender.queries, gender.leans()[0][:, 0].tolist(), strict=True))
    against_women = [it for it in found.contributions if it.group == "female"]
    assert len(against_women) == 10
    assert weightiest.query not in {it.query for it in against_women}
    for it in against_women:
        assert it.lean == pytest.approx(leans[it.query])
    assert sum(it.share for it in against_women) < 1
