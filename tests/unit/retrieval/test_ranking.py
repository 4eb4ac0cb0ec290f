"""Items in another order."""

from __future__ import annotations

import numpy as np
import pytest

from fairqr.retrieval.fairness.ranking import Ranking, Reordered


def test_items_in_another_order_are_read_like_a_list() -> None:
    found = Reordered(["a", "b", "c", "d"], np.array([2, 0, 3, 1]))
    assert list(found) == found[:] == ["c", "a", "d", "b"]
    assert (len(found), found[0], found[-1], found[1:3]) == (4, "c", "b", ["a", "d"])
    assert found == ["c", "a", "d", "b"] != Reordered(["a", "b"], np.array([0, 1]))
    assert Ranking(found, [4.0, 3.0, 2.0, 1.0]).top(2) == Ranking(["c", "a"], [4.0, 3.0])
    with pytest.raises(IndexError):
        found[4]
