"""Fusion and the exposure-aware step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.retrieval.fairness.divergence import jensen_shannon
from fairqr.retrieval.fairness.exposure import LOG2, exposure
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.rerank import exposure_aware, reciprocal_rank_fusion

PATTERNS = [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.0, 0.0)]


def members_of(labels: str) -> np.ndarray:
    """f, m, b(oth) and ?(unknown) as memberships."""
    return np.array([dict(zip("fmb?", PATTERNS, strict=True))[label] for label in labels])


def ranking(text: str) -> Ranking:
    return Ranking(list(text), [float(-n) for n in range(len(text))])


def test_a_worked_fusion() -> None:
    fused = reciprocal_rank_fusion([ranking("abc"), ranking("ca")], [1.0, 0.5], k=60)
    assert fused.ids == ["a", "c", "b"]
    assert fused.scores == pytest.approx([1 / 61 + 0.5 / 62, 1 / 63 + 0.5 / 61, 1 / 62])


def test_equal_scores_stand_in_order_of_id() -> None:
    assert reciprocal_rank_fusion([ranking("ab"), ranking("ba")]).ids == ["a", "b"]


def test_fusing_a_ranking_with_itself_changes_nothing() -> None:
    assert reciprocal_rank_fusion([ranking("cab"), ranking("cab")]).ids == list("cab")


@given(
    labels=st.text("fmb?", min_size=1, max_size=30),
    share=st.floats(0, 1),
    length=st.integers(1, 35),
)
def test_inside_each_pattern_the_order_stays_and_each_document_is_placed_once(
    labels: str, share: float, length: int
) -> None:
    members = members_of(labels)
    order = exposure_aware([members], [np.array([share, 1 - share])], length=length)
    assert len(order) == len(set(order.tolist())) == min(length, len(labels))
    for label in "fmb":
        placed = [position for position in order if labels[position] == label]
        assert placed == sorted(placed)
        # Those placed are the best ones of their pattern.
        assert placed == [p for p in range(len(labels)) if labels[p] == label][: len(placed)]


@given(labels=st.text("fmb?", min_size=1, max_size=30), share=st.floats(0, 1))
def test_documents_without_a_label_keep_their_place(labels: str, share: float) -> None:
    order = exposure_aware([members_of(labels)], [np.array([share, 1 - share])], length=len(labels))
    for rank, label in enumerate(labels):
        if label == "?":
            assert order[rank] == rank


@given(labels=st.text("fm", min_size=1, max_size=20))
def test_without_a_choice_nothing_moves(labels: str) -> None:
    """A target equal to one group's share of one leaves that group's documents first, in order."""
    order = exposure_aware([members_of(labels)], [np.array([1.0, 0.0])], length=len(labels))
    wanted = [p for p, label in enumerate(labels) if label == "f"]
    assert order.tolist() == wanted + [p for p, label in enumerate(labels) if label == "m"]


@settings(max_examples=60)
@given(share=st.floats(0.1, 0.9))
def test_it_comes_near_the_best_of_all_orders(share: float) -> None:
    """Over all ways to place 8 documents of two groups, with enough of both to choose from."""
    members, target = members_of("m" * 8 + "f" * 8), np.array([share, 1 - share])
    order = exposure_aware([members], [target], length=8)
    found = jensen_shannon(target, exposure(members[order]))
    best = min(
        jensen_shannon(target, exposure(members_of("".join(labels))))
        for labels in itertools.product("fm", repeat=8)
    )
    assert found <= best + 0.004


def test_several_attributes_are_mended_together() -> None:
    gender = np.array([[0.0, 1.0]] * 20 + [[1.0, 0.0]] * 20)
    place = np.array([[0.0, 1.0], [1.0, 0.0]] * 20)
    targets = [np.array([0.5, 0.5]), np.array([0.5, 0.5])]
    order = exposure_aware([gender, place], targets, discount=LOG2, length=20)
    for members in (gender, place):
        assert exposure(members[order]) == pytest.approx([0.5, 0.5], abs=0.03)


def test_a_list_without_any_label_stays_as_it_is() -> None:
    order = exposure_aware([members_of("????")], [np.array([0.5, 0.5])], length=3)
    assert order.tolist() == [0, 1, 2]


def test_a_share_of_a_ranking_speaks_for_some_documents_only() -> None:
    first, second = Ranking(["a", "b"], [2.0, 1.0]), Ranking(["c", "b"], [2.0, 1.0])
    fused = reciprocal_rank_fusion([first, second], shares=[None, np.array([0.0, 0.5])])
    assert fused.ids == ["b", "a"]
    assert fused.scores == pytest.approx([1.5 / 62, 1 / 61])
    assert "c" not in fused.ids
