"""Divergences: worked values, and their properties over all distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.divergence import (
    jensen_shannon,
    kullback_leibler,
    smooth,
    under_representation,
)


@st.composite
def distributions(draw: st.DrawFn, count: int = 2) -> list[np.ndarray]:
    size = draw(st.integers(2, 6))
    found = []
    for _ in range(count):
        weights = np.array(draw(st.lists(st.integers(0, 20), min_size=size, max_size=size)), float)
        assume(weights.sum() > 0)
        found.append(weights / weights.sum())
    return found


def test_a_worked_value_of_kl() -> None:
    # KL([½,½] ‖ [¼,¾]) = ½ ln 2 + ½ ln ⅔
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    found = kullback_leibler([0.5, 0.5], [0.25, 0.75], smoothing=0)
    assert found == pytest.approx(expected)
    turned = kullback_leibler([0.25, 0.75], [0.5, 0.5], smoothing=0, direction="exposure_target")
    assert turned == pytest.approx(expected)


def test_a_worked_value_of_js() -> None:
    # Disjoint distributions are one bit apart.
    assert jensen_shannon([1, 0], [0, 1], unit="bits") == pytest.approx(1)
    assert jensen_shannon([1, 0], [0, 1]) == pytest.approx(math.log(2))
    # JS([1,0],[½,½]): m = [¾,¼], ½ ln(4/3) + ½(½ ln ⅔ + ½ ln 2)
    expected = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)
    assert jensen_shannon([1, 0], [0.5, 0.5]) == pytest.approx(expected)


@given(distributions(), st.sampled_from([1e-6, 1e-3, 0.1]))
def test_zero_exactly_at_equality(pair: list[np.ndarray], smoothing: float) -> None:
    p, q = pair
    assert kullback_leibler(p, p, smoothing=smoothing) == 0
    assert jensen_shannon(p, p) == 0
    if not np.allclose(p, q):
        assert kullback_leibler(p, q, smoothing=smoothing) > 0
        assert jensen_shannon(p, q) > 0


@given(distributions(), st.data())
def test_relabelling_changes_nothing(pair: list[np.ndarray], data: st.DataObject) -> None:
    p, q = pair
    order = data.draw(st.permutations(range(len(p))))
    assert kullback_leibler(p[order], q[order]) == pytest.approx(kullback_leibler(p, q))
    assert jensen_shannon(p[order], q[order]) == pytest.approx(jensen_shannon(p, q))


@given(distributions())
def test_js_is_symmetric_and_at_most_one_bit(pair: list[np.ndarray]) -> None:
    p, q = pair
    assert jensen_shannon(p, q) == pytest.approx(jensen_shannon(q, p))
    assert 0 <= jensen_shannon(p, q, unit="bits") <= 1 + 1e-12


@given(distributions(), st.floats(0.05, 0.95))
def test_kl_falls_on_the_way_to_the_target(pair: list[np.ndarray], step: float) -> None:
    target, start = pair
    assume(not np.allclose(target, start))
    nearer = (1 - step) * start + step * target
    assert kullback_leibler(target, nearer) < kullback_leibler(target, start)


@given(distributions(1), st.floats(1e-9, 0.5))
def test_smoothing_leaves_a_distribution_without_zeros(one: list[np.ndarray], size: float) -> None:
    smoothed = smooth(one[0], size)
    assert smoothed.sum() == pytest.approx(1)
    assert smoothed.min() > 0


def test_without_smoothing_an_absent_group_is_infinitely_far() -> None:
    assert kullback_leibler([0.5, 0.5], [1, 0], smoothing=0) == np.inf
    assert np.isfinite(kullback_leibler([0.5, 0.5], [1, 0]))


@pytest.mark.parametrize("size", [-0.1, 1.0])
def test_a_smoothing_out_of_range_is_refused(size: float) -> None:
    with pytest.raises(InputError):
        smooth([0.5, 0.5], size)


@given(distributions())
def test_what_one_group_lacks_others_have(pair: list[np.ndarray]) -> None:
    target, exposure = pair
    lacking = under_representation(target, exposure)
    assert lacking.sum() == pytest.approx(0, abs=1e-9)
    assert lacking.max() >= 0
