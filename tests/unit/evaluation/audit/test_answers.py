"""Answers in an audit: citations, the sample, and the shares of groups at each stage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from fairqr.evaluation.audit.answers import cited_in, measure_answers
from fairqr.evaluation.audit.parts import sampled
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.records import AnsweredQuery
from fairqr.retrieval.table import coded
from tests.unit.evaluation.audit.examples import SCHEMA

WOMAN, MAN, UNKNOWN = (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)
GENDER = {"gender": SCHEMA.attribute("gender")}


def answered(
    query: str,
    people: list[tuple[float, float]],
    cited: tuple[bool, ...],
    used: tuple[bool | None, ...],
) -> AnsweredQuery:
    shown = coded({"gender": np.array(people)}, {"gender"})
    return AnsweredQuery(query=query, status="ok", cited=cited, used=used, shown=shown)


def test_citations_are_numbers_in_brackets_of_documents_that_there_are() -> None:
    assert cited_in("Zinc [2]. Tin [1, 3]; lead [9].", 4) == (True, True, True, False)
    assert cited_in("In 1999 [sic], 2 of [a2] (3).", 3) == (False, False, False)


def test_the_sample_does_not_depend_on_the_order_of_the_queries() -> None:
    queries = [AuditQuery(f"q{n}", "text", 1.0, 1) for n in range(40)]
    chosen = sampled(queries, 10, seed=1)
    assert len({query.id for query in chosen}) == 10
    assert sampled(queries[::-1], 10, seed=1) == chosen
    assert sampled(queries, 10, seed=2) != chosen
    assert len(sampled(queries, 99, seed=1)) == 40


def test_the_shares_of_each_stage_are_those_of_the_documents_with_a_label() -> None:
    records = [
        answered("a", [WOMAN, MAN, UNKNOWN, WOMAN], (True, True), (True, False)),
        answered("b", [MAN, MAN, WOMAN, MAN], (False, True), (None, True)),
        AnsweredQuery(query="c", status="failed", message="It is away."),
        AnsweredQuery(query="d", status="empty"),
    ]
    weights = {"a": 1.0, "b": 3.0, "c": 1.0, "d": 1.0}
    queries = {id_: AuditQuery(id_, id_, weight, 1) for id_, weight in weights.items()}
    found = measure_answers(records, queries, GENDER, generator="g", attributor="overlap")
    assert (found.questions, found.answered, found.failed) == (4, 2, 1)
    assert (found.citing, found.unjudged, found.documents) == (2, 1, 4)
    women, men = found.groups
    # Query b counts three times.
    assert women.retrieved.value == pytest.approx((2 + 3 * 1) / (3 + 3 * 4))
    assert women.read.value == pytest.approx(1 / (2 + 3 * 2))
    assert women.cited.value == pytest.approx(1 / (2 + 3 * 1))
    assert women.used.value == pytest.approx(1 / (1 + 3 * 1))
    assert men.used.value == pytest.approx(3 / 4)
    assert math.isnan(women.used.low)  # Two queries are too few for an interval.


def test_intervals_hold_the_shares_and_what_is_never_used_has_none() -> None:
    random = np.random.default_rng(1)
    records, queries = [], {}
    for number in range(40):
        people = [WOMAN if woman else MAN for woman in random.random(6) < 0.3]
        used = tuple((random.random(6) < 0.5).tolist())
        records.append(answered(str(number), people, (False,) * 6, used))
        queries[str(number)] = AuditQuery(str(number), "text", 1.0, 1)
    found = measure_answers(records, queries, GENDER, generator="g", attributor="overlap")
    women, _ = found.groups
    assert women.used.low < 0.3 < women.used.high
    assert math.isnan(women.cited.value)
    assert found.citing == 0


def test_a_record_fits_together() -> None:
    with pytest.raises(ValidationError, match="as many documents cited as used"):
        answered("a", [WOMAN], (True,), (True, False))
    with pytest.raises(ValidationError, match="not those of the documents"):
        answered("a", [WOMAN], (True, True), (True, False))
