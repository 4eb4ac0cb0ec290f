"""The utilities of LaMP's tasks, and LaMP's own measures over many answers."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.evaluation.lamp import metrics
from fairqr.evaluation.lamp.metrics import (
    Accuracy,
    FourMinusError,
    NamesRelevant,
    Rouge,
    official_metrics,
    rating_of,
    tag_label,
)
from fairqr.evaluation.lamp.tasks import TASKS
from fairqr.evaluation.rag.collection import Utility

LABELS = TASKS[1].labels
UTILITIES: list[Utility] = [
    Accuracy(),
    Accuracy(LABELS),
    FourMinusError(),
    Rouge("rouge1"),
    Rouge("rougeL"),
    NamesRelevant(),
]
GOLDS = {"accuracy": "[1]", "4 − |error|": "3"}


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("[1]", "[1]"),
        ("[ 2 ]", "[2]"),
        ("2", "[2]"),
        ("(1)", "[1]"),
        ("Reference 2.", "[2]"),
        ("Reference [2], which is about 1 topic", "[2]"),
        ("[1] and not [2]", None),
        ("1 or 2", None),
        ("12", None),
        ("1.2", None),
        ("[3]", None),
        ("the first", None),
        ("", None),
    ],
)
def test_the_reference_is_read_out_of_an_answer(answer: str, label: str | None) -> None:
    assert metrics.citation_label(answer) == label
    assert Accuracy()(answer, ["[1]"]) == float(label == "[1]")


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("comedy", "comedy"),
        (" Sci-Fi.", "sci-fi"),
        ("The tag is “dark  comedy”.", "dark comedy"),
        ("based on\na book", "based on a book"),
        ("comedy, or dark comedy", None),
        ("reaction", None),
        ("classical", None),
        ("drama", None),
        ("", None),
    ],
)
def test_exactly_one_tag_is_read_out_of_an_answer(answer: str, label: str | None) -> None:
    assert tag_label(answer, LABELS) == label


@given(st.sampled_from(LABELS), st.sampled_from(LABELS))
def test_a_tag_is_right_where_it_is_the_gold(tag: str, gold: str) -> None:
    assert Accuracy(LABELS)(tag.upper(), [gold]) == float(tag == gold)


@pytest.mark.parametrize(
    ("answer", "rating"),
    [
        ("4", 4),
        ("4.0", 4),
        ("3.5 stars", 3.5),
        ("Rating: 2.", 2),
        ("4/5", None),
        ("between 1 and 2", None),
        ("0", None),
        ("6", None),
        ("-3", None),
        ("10", None),
        ("nan", None),
        ("inf", None),
        ("1e0", None),
        ("four", None),
    ],
)
def test_a_rating_is_the_only_number_and_on_the_scale(answer: str, rating: float | None) -> None:
    assert rating_of(answer) == rating


@pytest.mark.parametrize(("gold", "utility"), [("1", 0), ("2", 1), ("3", 2), ("4", 1), ("5", 0)])
def test_what_is_no_rating_counts_as_the_worse_end(gold: str, utility: float) -> None:
    """|5 − 1|, |5 − 2|, |5 − 3| = |1 − 3|, |1 − 4|, |1 − 5|, each taken from 4; empty is 0."""
    assert FourMinusError()("good", [gold]) == utility
    assert FourMinusError()("  ", [gold]) == 0
    worst = min(FourMinusError()(str(rating), [gold]) for rating in range(1, 6))
    assert utility == worst


@given(st.integers(1, 5), st.integers(1, 5))
def test_four_minus_error_is_the_error_turned(rating: int, gold: int) -> None:
    assert FourMinusError()(f"{rating}", [f"{gold}"]) == 4 - abs(rating - gold)


def _longest_common(one: list[str], other: list[str]) -> int:
    if not one or not other:
        return 0
    if one[-1] == other[-1]:
        return 1 + _longest_common(one[:-1], other[:-1])
    return max(_longest_common(one[:-1], other), _longest_common(one, other[:-1]))


titles = st.lists(st.sampled_from(["fair", "rank", "a", "study"]), min_size=1, max_size=5)


# The first use of ROUGE imports its library, which takes longer than an example may.
@given(titles, titles)
def test_rouge_is_the_harmonic_mean_of_shared_words(answer: list[str], gold: list[str]) -> None:
    """ROUGE-1 by counting words, ROUGE-L by recursion over the longest common subsequence."""
    common = sum(min(answer.count(word), gold.count(word)) for word in set(answer))
    total = len(answer) + len(gold)
    text, golds = " ".join(answer), [" ".join(gold).upper()]
    assert Rouge("rouge1")(text, golds) == pytest.approx(2 * common / total)
    longest = _longest_common(answer, gold)
    assert Rouge("rougeL")(text, golds) == pytest.approx(2 * longest / total)
    assert Rouge("rougeL")(text, ["nothing else", *golds]) == pytest.approx(2 * longest / total)


def test_rouge_without_its_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    metrics._scorer.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'fairqr\[lamp\]'"):
        Rouge()("a title", ["a title"])


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Leo Szilard", 1),
        ("It is LEÓ  SZILÁRD, I think.", 1),
        ("Szilárd", 0),
        ("Leo Szilardo", 0),
        ("Marie Curie and Nobody", 1),
        ("Jean Paul Sartre", 1),
        ("physicist", 0),
        ("…", 0),
        ("", 0),
    ],
)
def test_a_full_name_is_found_as_whole_words(answer: str, value: float) -> None:
    golds = ["Leó Szilárd", "Marie Curie", "Jean-Paul Sartre", "…"]
    assert NamesRelevant()(answer, golds) == value


@pytest.mark.parametrize("utility", UTILITIES, ids=lambda utility: utility.name)
@given(answer=st.text(max_size=30))
def test_utilities_stay_in_their_range_and_empty_is_0(utility: Utility, answer: str) -> None:
    gold = [GOLDS.get(utility.name, "a fair rank")]
    assert 0 <= utility(answer, gold) <= utility.greatest
    assert utility(" \n", gold) == 0


def test_accuracy_and_macro_f1_by_hand() -> None:
    """[1]: 1 of 2 answers right, 1 of 2 golds found, F1 1/2; [2]: 1 of 1 and 1 of 2, F1 2/3."""
    answers = ["[1]", "1", "[2]", "none"]
    golds = ["[1]", "[2]", "[2]", "[1]"]
    found = official_metrics(Accuracy(), answers, golds)
    assert found == pytest.approx({"accuracy": 0.5, "F1": (1 / 2 + 2 / 3) / 2})


def test_a_tag_that_nobody_names_counts_in_macro_f1() -> None:
    found = official_metrics(Accuracy(LABELS), ["comedy", "action"], ["comedy", "action"])
    assert found == pytest.approx({"accuracy": 1, "F1": 2 / 15})


def test_errors_by_hand() -> None:
    """Errors 0, 2, 3 (no number: 5 for a gold of 2) and 4 (empty: 1 for a gold of 5)."""
    found = official_metrics(FourMinusError(), ["4", "1", "good", ""], ["4", "3", "2", "5"])
    assert found == pytest.approx({"MAE": 9 / 4, "RMSE": math.sqrt((4 + 9 + 16) / 4)})


def test_other_tasks_report_both_rouges_and_other_utilities_their_mean() -> None:
    found = official_metrics(Rouge(), ["rank fair", ""], ["fair rank", "a"])
    assert found == pytest.approx({"ROUGE-1": 0.5, "ROUGE-L": 0.25})
    assert official_metrics(NamesRelevant(), ["x y", "z"], ["x y", "x y"]) == {
        "names a right one": 0.5
    }
    assert official_metrics(Rouge(), [], []) == {}


def test_the_first_metric_of_each_task_is_its_utility() -> None:
    names = [task.utility.name for task in TASKS]
    assert names == ["accuracy", "accuracy", "4 − |error|", *["ROUGE-L"] * 4]
