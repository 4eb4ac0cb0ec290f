"""Both races draw from Plackett–Luce exactly: against all orders of few items, by χ²."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.retrieval.sampling import plackett_luce
from fairqr.retrieval.sampling.plackett_luce import (
    BLOCKS,
    LazyRace,
    close_gaps,
    dense_race,
    race,
    stream_of,
)
from tests.unit.retrieval.sampling.enumeration import (
    SIGNIFICANCE,
    class_probabilities,
    p_value,
    probabilities,
)

SAMPLES = 40_000
PLACES = 3

# In the lazy race the heaviest three are the head. Equal ones make many repeats in the tail; in the
# last cases the tail hardly ever comes, or a part of it.
WEIGHTS = {
    "equal": [1.0] * 6,
    "falling": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
    "mixed": [0.5, 3.0, 1.0, 1.0, 0.25, 2.0, 1.0],
    "one heavy": [1.0, 1.0, 60.0, 1.0, 1.0],
    "light tail": [1.0, 2.0, 1.0, 0.01, 0.02, 0.01],
    "a tail of two sizes": [1.0, 1.0, 1.0, 1.0, 1e-9, 1e-9],
}


Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def dense(weights: np.ndarray, stream: np.random.Generator) -> np.ndarray:
    return dense_race(np.log(weights), SAMPLES, PLACES, stream)


def lazy(weights: np.ndarray, stream: np.random.Generator) -> np.ndarray:
    return LazyRace(np.log(weights), PLACES).sample(SAMPLES, PLACES, stream)


def lazy_in_short_rounds(weights: np.ndarray, stream: np.random.Generator) -> np.ndarray:
    """Nearly all samples take several rounds."""
    return LazyRace(np.log(weights), PLACES).sample(SAMPLES, PLACES, stream, arrivals=1)


# More clocks than are run at once give parts that follow each other in one array.
@pytest.mark.parametrize(
    ("cells", "blocks"), [(plackett_luce.CELLS, plackett_luce.BLOCKS), (50_000, 2)]
)
@pytest.mark.parametrize("draw", [dense, lazy, lazy_in_short_rounds])
@pytest.mark.parametrize("case", WEIGHTS)
def test_ordered_triples_have_their_probabilities(
    draw: Draw, case: str, cells: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plackett_luce, "CELLS", cells)
    monkeypatch.setattr(plackett_luce, "BLOCKS", blocks)
    weights = WEIGHTS[case]
    drawn = draw(np.array(weights), stream_of(4, draw.__name__, case))
    expected = probabilities(weights, PLACES)
    assert p_value(drawn, expected) > SIGNIFICANCE
    assert p_value(drawn[-4000:], expected) > SIGNIFICANCE


def test_short_rounds_that_start_anew_would_be_found_out() -> None:
    """The test above has the power: drawing unfinished samples again from the start fails it."""
    weights = WEIGHTS["falling"]
    fresh = LazyRace(np.log(weights), PLACES)
    stream = stream_of(5)
    kept = np.empty((0, PLACES), dtype=np.intp)
    while len(kept) < SAMPLES:
        events = fresh._round(SAMPLES, PLACES, 1, stream)
        drawn = plackett_luce._first_distinct(events, PLACES)
        kept = np.vstack((kept, drawn[drawn[:, -1] >= 0]))
    assert p_value(kept[:SAMPLES], probabilities(weights, PLACES)) < SIGNIFICANCE


@pytest.mark.parametrize("n", [120, 400, 100_000])
def test_classes_of_weights_in_a_large_pool_have_their_probabilities(n: int) -> None:
    """Pools of 125 and more are sampled lazily, and the largest has blocks of seven items."""
    kinds = np.arange(n) % 3
    worth = [1.0, 2.5, 0.4]
    drawn = race(np.log(worth)[kinds], 20_000, 3, stream_of(6, str(n)))
    expected = class_probabilities(np.bincount(kinds).tolist(), worth, 3)
    assert p_value(kinds[drawn], expected) > SIGNIFICANCE


class Greatest(np.random.Generator):
    """Draws the number that is next to 1, or 1 itself as rounding could make it."""

    def random(self, size: object = None) -> np.ndarray:  # type: ignore[override]
        return np.ones(size)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("blocks", [3, BLOCKS])
def test_rounding_up_to_the_total_gives_an_item_with_weight(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plackett_luce, "BLOCKS", blocks)
    prepared = LazyRace(np.log([0.5, 1.0, 0.25, 1.0, 2.0, 30.0, 40.0, 50.0]), 3)
    assert prepared._tail((2, 2), Greatest(np.random.PCG64(0))).tolist() == [[4, 4], [4, 4]]


@settings(max_examples=60)
@given(
    log_weights=st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=40),
    samples=st.integers(1, 5),
    data=st.data(),
)
def test_every_row_names_distinct_items_whatever_the_weights(
    log_weights: list[float], samples: int, data: st.DataObject
) -> None:
    values = np.array(log_weights)
    k = data.draw(st.integers(1, len(values) - 1))
    stream = stream_of(data.draw(st.integers(0, 99)))
    drawn = [
        dense_race(values, samples, k, stream),
        LazyRace(values, k).sample(samples, k, stream),
        race(values, samples, k, stream),
    ]
    for rows in drawn:
        assert rows.shape == (samples, k)
        assert rows.dtype == np.intp
        assert rows.min() >= 0
        assert rows.max() < len(values)
        assert all(len(set(row)) == k for row in rows.tolist())


def test_a_tail_whose_weights_vanish_beside_the_head_keeps_its_order() -> None:
    """After ten items that outweigh all others by e^4,000,000,000 the rest is Plackett–Luce.

    There are ten places for them and three more, in a pool that is sampled lazily, with the tail
    in the middle.
    """
    rest = [1.0, 2.0, 4.0]
    log_weights = np.full(1000, -1e10)
    log_weights[500:503] = np.log(rest)
    log_weights[700:710] = 4e9
    drawn = race(log_weights, 20_000, 13, stream_of(11))
    assert (np.sort(drawn[:, :10]) == np.arange(700, 710)).all()
    assert p_value(drawn[:, 10:] - 500, probabilities(rest, 3)) > SIGNIFICANCE
    # Equal items at the end of all, at log weights of -1e10, are told apart by chance as well.
    firsts = LazyRace(log_weights, 20).sample(20_000, 14, stream_of(12))[:, 13]
    found = np.bincount(firsts, minlength=1000)
    others = log_weights == -1e10
    expected = 20_000 / others.sum()
    statistic = ((found[others] - expected) ** 2 / expected).sum()
    assert abs(statistic - 986) < 5 * np.sqrt(2 * 986)


@settings(max_examples=100)
@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=12))
def test_closed_gaps_keep_the_order_and_all_differences_that_matter(values: list[float]) -> None:
    log_weights = np.array(values)
    closed = close_gaps(log_weights)
    assert closed.max() == 0
    order = np.argsort(log_weights)
    steps, wanted = np.diff(closed[order]), np.diff(log_weights[order])
    near = wanted <= plackett_luce.GAP
    assert np.allclose(steps[near], wanted[near], rtol=1e-9, atol=1e-3)
    assert (steps[~near] >= plackett_luce.GAP * (1 - 1e-9)).all()


@settings(max_examples=60)
@given(
    numbers=st.lists(st.integers(-5, 5), min_size=2, max_size=60),
    some=st.integers(1, 60),
    data=st.data(),
)
def test_the_heaviest_are_found_from_a_part_of_the_items(
    numbers: list[int], some: int, data: st.DataObject
) -> None:
    values = np.array(numbers, dtype=float)
    size = data.draw(st.integers(1, len(values)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plackett_luce, "SOME", some)
        found = plackett_luce._heaviest(values, size)
    assert len(set(found.tolist())) == size
    assert sorted(values[found]) == sorted(numbers)[-size:]
    assert values[found[0]] == values[found].min()
