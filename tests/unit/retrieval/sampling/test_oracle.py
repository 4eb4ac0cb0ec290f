"""The oracle draws uniformly from the orders that put the useful items first."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.retrieval.sampling.oracle import sample_oracle
from fairqr.retrieval.sampling.streams import stream_of
from tests.unit.retrieval.sampling.enumeration import SIGNIFICANCE, p_value


def optimal(useful: list[bool], k: int) -> dict[tuple[int, ...], float]:
    """The chance of each cut order, counting all m!(n−m)! whole ones."""
    first = [item for item, label in enumerate(useful) if label]
    last = [item for item, label in enumerate(useful) if not label]
    orders = [
        (*one, *other)[:k]
        for one in itertools.permutations(first)
        for other in itertools.permutations(last)
    ]
    return {order: orders.count(order) / len(orders) for order in set(orders)}


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("m", [0, 1, 2, 4, 5])
def test_the_optimal_orders_are_equally_likely(m: int, k: int) -> None:
    useful = [item in (3, 0, 4, 1, 2)[:m] for item in range(5)]
    drawn = sample_oracle(useful, 20_000, k, stream_of(1, str(m), str(k)))
    expected = optimal(useful, k)
    assert drawn.shape == (20_000, min(k, 5))
    if len(expected) == 1:
        assert (drawn == next(iter(expected))).all()
    else:
        assert p_value(drawn, expected) > SIGNIFICANCE


def test_a_large_pool_has_its_useful_items_first() -> None:
    useful = stream_of(2).random(50_000) < 0.0001
    m = int(useful.sum())
    assert 0 < m < 20
    drawn = sample_oracle(useful, 100, 20, stream_of(3))
    assert useful[drawn[:, :m]].all()
    assert not useful[drawn[:, m:]].any()
    assert all(len(set(row)) == 20 for row in drawn.tolist())


@pytest.mark.parametrize(("useful", "samples", "k"), [([], 1, 1), ([True], 0, 1), ([True], 1, 0)])
def test_bad_input_is_refused(useful: list[bool], samples: int, k: int) -> None:
    with pytest.raises(InputError):
        sample_oracle(useful, samples, k, stream_of(0))


def test_labels_in_a_table_are_refused() -> None:
    with pytest.raises(InputError, match="label for each item"):
        sample_oracle(np.ones((2, 2), dtype=bool), 1, 1, stream_of(0))
