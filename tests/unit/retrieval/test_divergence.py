"""Divergences: worked values, and their properties over all distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.divergence import jensen_shannon, kullback_leibler, smooth


@st.composite
def pairs(draw: st.DrawFn) -> list[np.ndarray]:
    size = draw(st.integers(2, 6))
    weights = st.lists(st.integers(0, 20), min_size=size, max_size=size).filter(any)
    return [np.array(it) / sum(it) for it in (draw(weights), draw(weights))]


def test_a_worked_value_of_kl() -> None:
    # KL([½,½] ‖ [¼,¾]) = ½ ln 2 + ½ ln ⅔
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    found = kullback_leibler([0.5, 0.5], [0.25, 0.75], smoothing=0)
    assert found == pytest.approx(expected)
    turned = kullback_leibler([0.25, 0.75], [0.5, 0.5], smoothing=0, direction="exposure_target")
    assert turned == pytest.approx(expected)
    # Without smoothing, an absent group is infinitely far.
    assert kullback_leibler([0.5, 0.5], [1, 0], smoothing=0) == np.inf
    assert np.isfinite(kullback_leibler([0.5, 0.5], [1, 0]))


def test_a_worked_value_of_js() -> None:
    # Disjoint distributions are one bit apart.
    assert jensen_shannon([1, 0], [0, 1], unit="bits") == pytest.approx(1)
    assert jensen_shannon([1, 0], [0, 1]) == pytest.approx(math.log(2))
    # JS([1,0],[½,½]): m = [¾,¼], ½ ln(4/3) + ½(½ ln ⅔ + ½ ln 2)
    expected = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)
    assert jensen_shannon([1, 0], [0.5, 0.5]) == pytest.approx(expected)


@given(pairs(), st.sampled_from([1e-6, 1e-3, 0.1]), st.floats(0.05, 0.95), st.data())
def test_what_always_holds(
    pair: list[np.ndarray], smoothing: float, step: float, data: st.DataObject
) -> None:
    """Zero exactly at equality, falling toward the target, and the same in any order of groups."""
    p, q = pair
    kl, js = kullback_leibler(p, q, smoothing=smoothing), jensen_shannon(p, q)
    assert kullback_leibler(p, p, smoothing=smoothing) == jensen_shannon(p, p) == 0
    assert js == pytest.approx(jensen_shannon(q, p))
    assert 0 <= jensen_shannon(p, q, unit="bits") <= 1 + 1e-12
    order = data.draw(st.permutations(range(len(p))))
    assert kullback_leibler(p[order], q[order], smoothing=smoothing) == pytest.approx(kl)
    assert jensen_shannon(p[order], q[order]) == pytest.approx(js)
    assert smooth(p, smoothing).sum() == pytest.approx(1)
    assert smooth(p, smoothing).min() > 0
    assume(not np.allclose(p, q))
    assert min(kl, js) > 0
    assert kullback_leibler(p, (1 - step) * q + step * p, smoothing=smoothing) < kl


@pytest.mark.parametrize("size", [-0.1, 1.0])
def test_a_smoothing_out_of_range_is_refused(size: float) -> None:
    with pytest.raises(InputError):
        smooth([0.5, 0.5], size)
