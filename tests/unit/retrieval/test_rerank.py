"""Rankings, their fusion, and the exposure-aware step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.retrieval.fairness.divergence import jensen_shannon
from fairqr.retrieval.fairness.exposure import exposure
from fairqr.retrieval.fairness.ranking import Ranking, Reordered
from fairqr.retrieval.fairness.rerank import exposure_aware, reciprocal_rank_fusion

PATTERNS = {"f": (1.0, 0.0), "m": (0.0, 1.0), "b": (0.5, 0.5), "?": (0.0, 0.0)}


def members_of(labels: str) -> np.ndarray:
    """f, m, b(oth) and ?(unknown) as memberships."""
    return np.array([PATTERNS[label] for label in labels])


def ranking(text: str) -> Ranking:
    return Ranking(list(text), [float(-n) for n in range(len(text))])


def test_ids_in_another_order_are_read_like_a_list() -> None:
    found = Reordered(["a", "b", "c", "d"], np.array([2, 0, 3, 1]))
    assert list(found) == found[:] == ["c", "a", "d", "b"]
    assert (len(found), found[0], found[-1], found[1:3]) == (4, "c", "b", ["a", "d"])
    assert Ranking(found, [4.0, 3.0, 2.0, 1.0]).top(2) == Ranking(["c", "a"], [4.0, 3.0])
    with pytest.raises(IndexError):
        found[4]


def test_a_worked_fusion() -> None:
    """Equal scores stand in order of id; a share speaks for some documents only."""
    fused = reciprocal_rank_fusion([ranking("abc"), ranking("ca")], [1.0, 0.5], k=60)
    assert fused.ids == ["a", "c", "b"]
    assert fused.scores == pytest.approx([1 / 61 + 0.5 / 62, 1 / 63 + 0.5 / 61, 1 / 62])
    assert reciprocal_rank_fusion([ranking("ab"), ranking("ba")]).ids == ["a", "b"]
    shares = [None, np.array([0.0, 0.5])]
    fused = reciprocal_rank_fusion([ranking("ab"), ranking("cb")], shares=shares)
    assert fused.ids == ["b", "a"]
    assert fused.scores == pytest.approx([1.5 / 62, 1 / 61])


@given(
    labels=st.text("fmb?", min_size=1, max_size=30),
    share=st.floats(0, 1),
    length=st.integers(1, 35),
)
def test_the_best_of_each_pattern_are_placed_in_order_and_the_unlabelled_stay(
    labels: str, share: float, length: int
) -> None:
    target = np.array([share, 1 - share])
    order = exposure_aware([members_of(labels)], [target], length=length).tolist()
    assert len(order) == len(set(order)) == min(length, len(labels))
    for label in "fmb":
        own = [position for position in range(len(labels)) if labels[position] == label]
        placed = [position for position in order if labels[position] == label]
        assert placed == own[: len(placed)]
    assert all(order[rank] == rank for rank in range(len(order)) if labels[rank] == "?")


@settings(max_examples=60)
@given(share=st.floats(0.1, 0.9))
def test_it_comes_near_the_best_of_all_orders(share: float) -> None:
    """Over all ways to place 8 documents of two groups, with enough of both to choose from."""
    members, target = members_of("m" * 8 + "f" * 8), np.array([share, 1 - share])
    order = exposure_aware([members], [target], length=8)
    found = jensen_shannon(target, exposure(members[order]))
    every = np.array([members_of("".join(it)) for it in itertools.product("fm", repeat=8)])
    assert found <= jensen_shannon(target, exposure(every)).min() + 0.004


def test_several_attributes_are_mended_together() -> None:
    gender = np.array([[0.0, 1.0]] * 20 + [[1.0, 0.0]] * 20)
    place = np.array([[0.0, 1.0], [1.0, 0.0]] * 20)
    order = exposure_aware([gender, place], [np.full(2, 0.5)] * 2, length=20)
    for members in (gender, place):
        assert exposure(members[order]) == pytest.approx([0.5, 0.5], abs=0.03)
