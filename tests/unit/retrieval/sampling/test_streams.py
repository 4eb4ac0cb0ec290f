"""A stream depends on its seed and names, and on nothing else."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairqr.retrieval.sampling.streams import stream_of

names = st.lists(st.text(max_size=4), max_size=3).map(tuple)


@given(seed=st.integers(), names=names)
def test_equal_arguments_give_equal_numbers_whatever_was_drawn_before(
    seed: int, names: tuple[str, ...]
) -> None:
    first = stream_of(seed, *names).random(4)
    stream_of(seed, *names, "another").random(100)
    assert np.array_equal(first, stream_of(seed, *names).random(4))


def test_other_seeds_names_and_orders_give_other_numbers() -> None:
    cases = [
        (1, ()),
        (2, ()),
        (-1, ()),
        (1, ("1",)),
        (1, ("ab",)),
        (1, ("a", "b")),
        (1, ("b", "a")),
    ]
    cases += [(1, ('a", "b',)), (1, ("q1",)), (1, ("q2",)), (1, ("",)), (1, ("é",))]
    drawn = [stream_of(seed, *names).random() for seed, names in cases]
    assert len(set(drawn)) == len(cases)


def test_streams_of_neighbouring_queries_do_not_move_together() -> None:
    """Correlations of 2,000 numbers are about ±1/√2000 = ±.022; six times that is far out."""
    drawn = [stream_of(7, f"q{number}").random(2000) for number in range(20)]
    for one, other in itertools.combinations(drawn, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(2000)


def test_the_numbers_stay_the_same_from_version_to_version() -> None:
    """Runs that were kept can be repeated."""
    assert stream_of(0, "bm25", "q1").bit_generator.random_raw() == 9310837085825694230
