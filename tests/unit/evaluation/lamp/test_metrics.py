"""The utilities of LaMP's tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.evaluation.lamp import metrics
from fairqr.evaluation.lamp.tasks import TASKS
from fairqr.evaluation.rag.collection import Utility

LABELS = TASKS[1].labels
UTILITIES: list[Utility] = [*dict.fromkeys(it.utility for it in TASKS), metrics.Rouge("rouge1")]
UTILITIES.append(metrics.NamesRelevant())
GOLDS = {"accuracy": "[1]", "4 − |error|": "3"}
PEOPLE = ["Leó Szilárd", "Marie Curie", "Jean-Paul Sartre", "…"]
named = partial(metrics.NamesRelevant(), golds=PEOPLE)
tag = partial(metrics.tag_label, labels=LABELS)
READ: list[tuple[Callable[[str], object], object, list[str]]] = [
    (metrics.citation_label, "[1]", ["[1]", "(1)"]),
    (metrics.citation_label, "[2]", ["[ 2 ]", "2", "Reference 2.", "Reference [2], about 1 topic"]),
    (metrics.citation_label, None, ["[1] and not [2]", "1 or 2", "12", "1.2", "[3]", "first", ""]),
    (tag, "sci-fi", [" Sci-Fi."]),
    (tag, "dark comedy", ["The tag is “dark  comedy”."]),
    (tag, "based on a book", ["based on\na book"]),
    (tag, None, ["comedy, or dark comedy", "reaction", "drama", ""]),
    (metrics.rating_of, 4, ["4", "4.0", "4 stars"]),
    (metrics.rating_of, None, ["4/5", "1 to 2", "0", "6", "-3", "10", "nan", "1e0", "four"]),
    (named, 1, ["Leo Szilard", "LEÓ  SZILÁRD.", "Marie Curie and Nobody", "Jean Paul Sartre"]),
    (named, 0, ["Szilárd", "Leo Szilardo", "physicist", "…", ""]),
]


@pytest.mark.parametrize(("read", "expected", "answers"), READ)
def test_an_answer_is_read_as_stated(
    read: Callable[[str], object], expected: object, answers: list[str]
) -> None:
    assert {read(answer) for answer in answers} == {expected}


@pytest.mark.parametrize(("gold", "utility"), [("1", 0), ("2", 1), ("3", 2), ("4", 1), ("5", 0)])
def test_what_is_no_rating_counts_as_the_worse_end(gold: str, utility: float) -> None:
    """|5 − 1|, |5 − 2|, |5 − 3| = |1 − 3|, |1 − 4|, |1 − 5|, each taken from 4."""
    assert metrics.FourMinusError()("good", [gold]) == utility
    assert utility == min(metrics.FourMinusError()(str(it), [gold]) for it in range(1, 6))


@pytest.mark.parametrize("utility", UTILITIES, ids=lambda utility: utility.name)
@given(answer=st.text(max_size=30))
def test_utilities_stay_in_their_range_and_empty_is_0(utility: Utility, answer: str) -> None:
    gold = [GOLDS.get(utility.name, "a fair rank")]
    assert 0 <= utility(answer, gold) <= utility.greatest
    assert utility(" \n", gold) == 0
