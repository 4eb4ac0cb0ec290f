"""LaMP's own measures in the report: over which answers they are."""

from __future__ import annotations

import dataclasses

import pytest

from fairqr.evaluation.lamp.metrics import FourMinusError
from fairqr.evaluation.rag.measuring import MeasuredRag
from fairqr.evaluation.rag.report import values_of
from fairqr.evaluation.rag.store import AnswerRecord
from fairqr.evaluation.reports.writer import render
from tests.unit.evaluation.rag.made_records import Made, made


def rated(replies: list[tuple[str, str]]) -> MeasuredRag:
    """Measure ratings; see :func:`rated_records`."""
    return rated_records(replies).measured()


def rated_records(replies: list[tuple[str, str]]) -> Made:
    """Make ratings: of each query the status and the text of the deterministic answers.

    The gold is 4 everywhere.
    """
    built = made(queries=len(replies), generators=["small"], retrievers=["bm25"])
    films = built.collections["films"]
    built.collections["films"] = dataclasses.replace(
        films,
        task=dataclasses.replace(films.task, utility=FourMinusError()),
        queries=tuple(dataclasses.replace(query, golds=("4",)) for query in films.queries),
    )
    by_query = {query.id: reply for query, reply in zip(films.queries, replies, strict=True)}
    again = []
    for record in built.records:
        if record.policy == "deterministic":
            status, text = by_query[record.query]
            worth = None if status not in ("ok", "empty") else 1.0
            answer = AnswerRecord(
                ranking=record.samples[0],
                times=1,
                status=status,
                text=text,
                utility=worth,
                used=(False,) * record.k if worth is not None else (),
            )
            record = record.model_copy(update={"answers": (answer,)})
            # Another seed has the same ranking, and counts no second time.
            again.append(record.model_copy(update={"seed": 1}))
        again.append(record)
    built.records = again
    return built


def test_each_query_counts_once_and_failures_not_at_all() -> None:
    """MAE and RMSE of 5, 1 and nothing, which counts as the worse end, beside a gold of 4."""
    measured = rated([("ok", "5"), ("ok", "1"), ("empty", ""), ("timeout", "")])
    (found,) = measured.official.itertuples()
    assert (found.collection, found.generator, found.retriever) == ("films", "small", "bm25")
    assert (found.answers, found.failed) == (3, 1)
    assert pytest.approx((1 + 3 + 3) / 3) == found.MAE
    assert pytest.approx(((1 + 9 + 9) / 3) ** 0.5) == found.RMSE


def test_the_seed_with_an_answer_counts() -> None:
    """A generation that failed under one seed costs nothing where another seed has the answer."""
    built = rated_records([("timeout", ""), ("ok", "3")])
    records = []
    for record in built.records:
        if record.policy == "deterministic" and record.seed == 1 and record.query == "q0":
            (answer,) = record.answers
            answer = answer.model_copy(
                update={"status": "ok", "text": "4", "utility": 4.0, "used": (False,) * record.k}
            )
            record = record.model_copy(update={"answers": (answer,)})
        records.append(record)
    built.records = records
    (found,) = built.measured().official.itertuples()
    assert (found.answers, found.failed, found.MAE) == (2, 0, 0.5)


def test_the_report_shows_them() -> None:
    """In a table of their own, with the number of answers."""
    values = values_of(rated([("ok", "5"), ("timeout", "")]))
    assert "takes an answer for a rating only if it is nothing else" in render("fair_rag", values)
    table = values["parts"][0]["official"]
    assert table.to_dict("records") == [
        {
            "generator": "small",
            "retriever": "bm25",
            "MAE": "1.0000",
            "RMSE": "1.0000",
            "answers": 1,
            "failed": 1,
        }
    ]


def test_other_collections_have_none() -> None:
    """A utility that is none of LaMP's has no official measure beside it."""
    assert made().measured().official.empty
