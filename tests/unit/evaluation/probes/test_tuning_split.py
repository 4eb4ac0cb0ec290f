"""Splitting queries: no query and no item that is probed with is trained on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.evaluation.probes.collection import ProbeItem, ProbeQuery
from fairqr.evaluation.probes.tuning import apart, split_queries

ids = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=2, max_size=30, unique=True)


@given(ids, st.floats(0.01, 0.99), st.integers(0, 99))
def test_each_query_is_on_one_side_and_neither_side_is_empty(
    names: list[str], share: float, seed: int
) -> None:
    train, held_out = split_queries(names, share, seed)
    assert sorted([*train, *held_out]) == sorted(names)
    assert train
    assert held_out
    if 1 <= round(share * len(names)) < len(names):
        assert len(train) == round(share * len(names))


@given(ids, st.integers(0, 99))
def test_neither_order_nor_repetition_matter(names: list[str], seed: int) -> None:
    assert split_queries(names, 0.8, seed) == split_queries([*reversed(names), *names], 0.8, seed)


def test_another_seed_splits_otherwise() -> None:
    names = [str(i) for i in range(40)]
    assert split_queries(names, 0.5, 1) != split_queries(names, 0.5, 2)


def test_one_query_cannot_be_split() -> None:
    with pytest.raises(InputError, match="there must be two or more; the collection has 1"):
        split_queries(["a", "a"], 0.8, 0)


@given(
    st.lists(st.lists(st.integers(0, 9), unique=True, max_size=8), max_size=5),
    st.sets(st.integers(0, 9)),
)
def test_items_that_are_probed_with_are_left_out_and_counted(
    lists: list[list[int]], probed: set[int]
) -> None:
    queries = [
        ProbeQuery(
            id=f"q{place}",
            query="words",
            items=tuple(
                ProbeItem(id=str(it), title="T", relevant=it % 2 == 0, protected=it % 3 == 0)
                for it in items
            ),
        )
        for place, items in enumerate(lists)
    ]
    kept, left_out = apart(queries, {str(it) for it in probed})
    assert [[int(item.id) for item in query.items] for query in kept] == [
        [it for it in items if it not in probed] for items in lists
    ]
    assert left_out == len({it for items in lists for it in items} & probed)
