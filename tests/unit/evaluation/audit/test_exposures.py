"""What an answer shows, should show and could show of each group."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from fairqr.evaluation.audit.exposures import Answer, AnswerFigures, Choices, measure_answer
from fairqr.retrieval.fairness.best_ranking import attainable, supply
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.divergence import kullback_leibler
from fairqr.retrieval.fairness.exposure import LOG2, FloatArray, exposure, normalise
from fairqr.retrieval.fairness.target import Target
from fairqr.retrieval.sources.schema import Attribute


def dimension(*groups: str) -> Dimension:
    attribute = Attribute(
        name="kind",
        field="f",
        groups=groups,
        population={group: 1 / len(groups) for group in groups},
    )
    return Dimension(attribute, (attribute,))


TWO = dimension("a", "b")
POPULATION = "population:1"


def members(letters: str, groups: str = "ab") -> FloatArray:
    """One row for each letter; '-' is a document without a label."""
    rows = [[float(letter == group) for group in groups] for letter in letters]
    return np.array(rows).reshape(len(letters), len(groups))


def shown(
    letters: str,
    relevance: ArrayLike | None = 1.0,
    k: int = 20,
    *,
    target: str = "relevance:1",
    groups: Dimension = TWO,
    answered: int = 100,
    by_relevance: bool = False,
    **more: Any,
) -> AnswerFigures:
    """Measure an answer whose groups are letters, and whose documents may be alike relevant."""
    told = None if relevance is None else np.zeros(len(letters)) + relevance
    rows = members(letters, "".join(groups.groups))
    answer = Answer(rows, min(answered, len(letters)), told, **more)
    choices = Choices(k=k, target=Target.parse(target), by_relevance=by_relevance)
    return measure_answer(answer, groups, choices)


def test_shares_counts_and_candidates_by_hand() -> None:
    found = shown("bab-ab", [1, 1, 0, 1, 1, 0], 3, answered=4)
    d = LOG2.weights(3)
    assert found.exposure.tolist() == pytest.approx([d[1] / d.sum(), (d[0] + d[2]) / d.sum()])
    assert found.target.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert found.shown.tolist() == [1, 2]
    assert found.selected.tolist() == [1, 1], "the second b is not relevant"
    assert found.candidates.tolist() == [2, 1]
    assert found.unknown.tolist() == [0, 0]
    assert np.isnan(found.ndcg).all(), "estimates say nothing of quality"


def test_the_gain_of_a_group_is_that_of_its_relevant_documents_alone() -> None:
    three = dimension("a", "b", "c")
    found = shown("bab-ab", [0, 1, 0, 1, 1, 0], 3, groups=three, answered=4, is_judged=True)
    d = LOG2.weights(2)
    # The first relevant 'a' stands at rank 2, and the other one is not shown; no 'b' is relevant.
    assert found.ndcg.tolist() == pytest.approx([d[1] / d.sum(), 0, 0])
    assert found.has_relevant.tolist() == [1, 0, 0]


def test_documents_below_the_level_count_for_no_share_but_are_there() -> None:
    """The pool has more unlikely documents of 'a', which a search of its own has found."""
    relevance = np.array([0.9, 0.8, 0.6, 0.3, 0.3, 0.2]) / 2
    whole = shown("babaaa", relevance, 2, answered=3)
    assert whole.target.tolist() == pytest.approx([1.6 / 3.1, 1.5 / 3.1])
    found = shown("babaaa", relevance, 2, answered=3, level=0.275)
    assert found.target.tolist() == pytest.approx([0.8 / 2.3, 1.5 / 2.3])
    assert found.candidates.tolist() == pytest.approx([0.4, 0.75])
    assert found.selected.tolist() == pytest.approx([0.4, 0.45])
    # What is no candidate is not selected either, though it is shown.
    higher = shown("babaaa", relevance, 3, answered=3, level=0.35)
    assert higher.candidates.tolist() == higher.selected.tolist() == pytest.approx([0.4, 0.45])


def test_where_not_all_relevant_documents_were_looked_at_nothing_is_compared() -> None:
    """Exposure is what it is; what would be due by relevance, and could be had, is not known."""
    known = shown("babaaa", 0.9, 2)
    for target in ("relevance:1", "relevance:0.5,uniform:0.5"):
        found = shown("babaaa", 0.9, 2, target=target, level=0.6)
        assert found.exposure.tolist() == known.exposure.tolist()
        for name in ("target", "supply", "candidates"):
            assert np.isnan(getattr(found, name)).all()
            assert not np.isnan(getattr(known, name)).any()


def test_missing_labels_bound_exposure_and_target() -> None:
    """By giving each unlabelled document to each group in turn."""
    letters, relevance = "a-b-ba-", [1, 1, 0, 1, 1, 1, 1]
    found, possible = shown(letters, relevance, 4), []
    for given_to in itertools.product("ab", repeat=letters.count("-")):
        turn = iter(given_to)
        whole = "".join(next(turn) if letter == "-" else letter for letter in letters)
        possible.append(shown(whole, relevance, 4))
    for name in ("exposure", "target"):
        every = [getattr(it, name) for it in possible]
        assert getattr(found, f"{name}_low") == pytest.approx(np.min(every, axis=0))
        assert getattr(found, f"{name}_high") == pytest.approx(np.max(every, axis=0))


def test_the_supply_is_the_target_where_it_can_be_and_else_the_nearest_of_all_rankings() -> None:
    """Up to what no exchange of ranks improves: .011 at most, in one case of a thousand."""
    draw, far = np.random.default_rng(5), 0
    for _ in range(400):
        letters = "".join(draw.choice(list("abc"), draw.integers(1, 7)))
        target = normalise(draw.integers(1, 7, 3).astype(float))
        k, relevant = int(draw.integers(1, 5)), members(letters, "abc")
        found = supply(relevant, target, LOG2, k)
        if (attainable(relevant, LOG2, k) >= target - 1e-9).all():
            assert found.tolist() == target.tolist()
            continue
        rankings = itertools.permutations(range(len(letters)), min(k, len(letters)))
        best = min(float(kullback_leibler(target, exposure(relevant[list(r)]))) for r in rankings)
        distance = float(kullback_leibler(target, found))
        assert distance == pytest.approx(best, abs=0.02)
        far += distance > best + 1e-6
    assert far <= 4


@settings(max_examples=60)
@given(st.text("ab", min_size=1, max_size=6), st.integers(1, 4))
def test_nothing_gives_more_than_is_attainable(letters: str, k: int) -> None:
    relevant = members(letters)
    most = attainable(relevant, LOG2, k)
    length = min(k, len(letters))
    every = [
        exposure(relevant[list(r)]) for r in itertools.permutations(range(len(letters)), length)
    ]
    assert most.tolist() == pytest.approx(np.max(every, axis=0).tolist())


def test_relevant_documents_without_labels_are_the_supply_of_nobody() -> None:
    """Otherwise every group would seem to get more than is due."""
    found = shown("ab-", [0.2, 0.2, 0.9], 2, target=POPULATION)
    assert np.isnan(found.supply).all()
    assert found.supply_low.tolist() == [0, 0]


def test_without_relevance_there_is_no_supply_and_the_further_answers_are_candidates() -> None:
    found = shown("abbaab", None, 2, target=POPULATION)
    assert np.isnan(found.supply).all()
    assert found.target.tolist() == [0.5, 0.5]
    assert found.candidates.tolist() == [3, 3]
    assert found.selected.tolist() == [1, 1]
    nothing_further = shown("ab", None, 2)
    assert np.isnan(nothing_further.target).all()
    assert np.isnan(nothing_further.candidates).all()
    # Of the same audit, other queries have candidates by relevance.
    assert np.isnan(shown("abbaab", None, 2, by_relevance=True).candidates).all()


@pytest.mark.parametrize(
    ("letters", "relevance"),
    [("", []), ("--", [1.0, 1.0]), ("ab", [0.0, 0.0]), ("-a", [1.0, 0.0])],
)
def test_what_is_undefined_is_nan_and_never_0(letters: str, relevance: list[float]) -> None:
    found = shown(letters, relevance, 2)
    assert np.isnan(found.target).all()
    assert np.isnan(found.supply).all()
    assert np.isnan(found.exposure).all() == (not any(letter in "ab" for letter in letters))
