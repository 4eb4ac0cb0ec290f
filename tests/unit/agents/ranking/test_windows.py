"""Windows: where they lie, and that the best items rise through them."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.ranking.listwise import windows
from fairqr.base.errors import InputError


@pytest.mark.parametrize(
    ("n", "size", "step", "begins"),
    [
        (40, 20, 10, [20, 10, 0]),
        (45, 20, 10, [25, 15, 5, 0]),
        (7, 5, 1, [2, 1, 0]),
        (12, 10, 3, [2, 0]),
        (11, 5, 3, [6, 3, 0]),
        (20, 20, 10, [0]),
        (5, 20, 10, [0]),
        (2, 2, 1, [0]),
        (1, 20, 10, []),
        (0, 20, 10, []),
    ],
)
def test_they_go_from_the_end_to_the_begin(n: int, size: int, step: int, begins: list[int]) -> None:
    """The last one begins at 0, wherever the steps lead."""
    found = windows(n, size, step)
    assert [window.start for window in found] == begins
    assert all(len(window) == min(n, size) for window in found)


@pytest.mark.parametrize(
    ("size", "step", "words"),
    [
        (1, 1, "A window has at least 2 items, not 1."),
        (0, 0, "at least 2 items"),
        (5, 0, "The step of windows of 5 must be from 1 to 4, not 0"),
        (5, 5, "must be from 1 to 4, not 5"),
        (20, -1, "must be from 1 to 19, not -1"),
    ],
)
def test_what_cannot_slide_is_refused(size: int, step: int, words: str) -> None:
    """Also where the list is short enough for one window."""
    with pytest.raises(InputError) as caught:
        windows(3, size, step)
    assert words in str(caught.value)


sizes = st.integers(2, 25).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size - 1)))


@given(st.integers(2, 120), sizes)
def test_every_position_is_covered_and_neighbours_overlap(n: int, sizing: tuple[int, int]) -> None:
    """By ``size - step`` positions or more, so that what one brought up the next one sees."""
    size, step = sizing
    found = windows(n, size, step)
    assert set().union(*found) == set(range(n))
    for later, earlier in itertools.pairwise(found):
        assert later.start - step <= earlier.start < later.start
        assert len(set(later) & set(earlier)) >= size - step


def ranked(values: list[int], size: int, step: int) -> list[int]:
    """Return the values as an oracle leaves them: each window sorted, the best first."""
    values = list(values)
    for window in windows(len(values), size, step):
        values[window.start : window.stop] = sorted(values[window.start : window.stop])
    return values


def test_the_best_reach_the_front_whatever_the_order_was() -> None:
    """All small n, sizes and steps, by brute force: the first ``size - step`` are right."""
    random_ = random.Random(5)
    for n in range(2, 31):
        for size in range(2, 13):
            for step in range(1, size):
                best = n if size >= n else size - step
                for _ in range(2):
                    values = random_.sample(range(n), n)
                    assert ranked(values, size, step)[:best] == list(range(best))
                # The best at the end have the longest way.
                assert ranked(list(range(n))[::-1], size, step)[:best] == list(range(best))


@given(st.permutations(range(60)), sizes)
def test_no_item_is_lost(values: list[int], sizing: tuple[int, int]) -> None:
    """What slides is a permutation."""
    assert sorted(ranked(values, *sizing)) == list(range(60))


@pytest.mark.parametrize(("n", "size", "step"), [(40, 20, 10), (20, 10, 5), (9, 5, 1)])
def test_no_more_than_that_is_promised(n: int, size: int, step: int) -> None:
    """Where the steps reach 0 exactly, the next best item may stay behind."""
    best = size - step
    assert ranked(list(range(n))[::-1], size, step)[: best + 1] != list(range(best + 1))
