"""Rankings and their fusion."""

from __future__ import annotations

import numpy as np
import pytest

from fairqr.retrieval.fairness.ranking import Ranking, Reordered, reciprocal_rank_fusion


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
