"""Exposure and its ratio: against loops written out, and their properties over all inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.exposure import (
    LOG2,
    Discount,
    exposure,
    exposure_and_unknown,
    exposure_ratio,
    group_exposure,
    intersection,
)

WEIGHTS = {
    "log2": lambda rank: 1 / math.log2(rank + 1),
    "trec": lambda rank: 1 / math.log2(max(rank, 2)),
    "rbp(0.8)": lambda rank: 0.2 * 0.8 ** (rank - 1),
    "top_k(3)": lambda rank: float(rank <= 3),
    "inverse_log": lambda rank: 1 / math.log(1 + rank),
}
"""The definitions, once more and one rank at a time."""
mixed = st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda it: any(it) and not all(it))


@st.composite
def rankings(draw: st.DrawFn) -> np.ndarray:
    """Memberships of a ranking: rows sum to 1, to less (partly unknown) or to 0 (unknown)."""
    shape = (draw(st.integers(1, 12)), draw(st.integers(2, 5)))
    weights = draw(hnp.arrays(float, shape, elements=st.floats(0, 1)))
    known = draw(hnp.arrays(float, (shape[0], 1), elements=st.sampled_from([0.0, 0.5, 1.0])))
    totals = weights.sum(axis=1, keepdims=True)
    return np.where(totals > 1e-6, weights / np.maximum(totals, 1e-6), 0) * known


@pytest.mark.parametrize("text", WEIGHTS)
@given(members=rankings())
def test_agrees_with_a_loop_over_documents(text: str, members: np.ndarray) -> None:
    rows = enumerate(members, start=1)
    by_hand = sum(WEIGHTS[text](rank) * row for rank, row in rows)
    assert np.allclose(group_exposure(members, Discount.parse(text)), by_hand)
    assert str(Discount.parse(text)) == text


@given(members=rankings(), k=st.integers(1, 15), data=st.data())
def test_it_is_a_distribution_that_follows_its_groups(
    members: np.ndarray, k: int, data: st.DataObject
) -> None:
    """Undefined where no document has a group; and for many rankings as for each of them."""
    found = exposure(members, k=k)
    assert found.sum() == pytest.approx(1.0 if members[:k].any() else 0.0)
    order = data.draw(st.permutations(range(members.shape[1])))
    assert np.allclose(exposure(members[:, order], k=k), found[order])
    both = exposure(np.stack([members, members[::-1]]), k=k)
    assert np.allclose(both, [found, exposure(members[::-1], k=k)])


@given(members=rankings())
def test_known_and_unknown_exposure_make_up_all_of_it(members: np.ndarray) -> None:
    total = LOG2.weights(len(members)).sum()
    known = group_exposure(members).sum()
    assert known / total + exposure_and_unknown(members)[1] == pytest.approx(1)


@pytest.mark.parametrize(
    "text", ["log3", "rbp", "rbp(1)", "rbp(0)", "top_k(0)", "top_k(1.5)", "", "log2(3)", "rbp(1e)"]
)
def test_a_discount_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Discount.parse(text)


@given(first=rankings(), data=st.data())
def test_the_product_of_two_attributes_keeps_the_known_mass_of_both(
    first: np.ndarray, data: st.DataObject
) -> None:
    shares = st.sampled_from([0.0, 0.25, 0.5])
    second = data.draw(hnp.arrays(float, (len(first), 2), elements=shares))
    product = intersection([first, second])
    assert product.shape == (len(first), first.shape[1] * 2)
    assert np.allclose(product.sum(axis=1), first.sum(axis=1) * second.sum(axis=1))
    assert product[0, 1] == pytest.approx(first[0, 0] * second[0, 1])


@given(mixed)
def test_the_ratio_is_its_definition(protected: list[bool]) -> None:
    """L1, with a logarithm of another base; the groups swapped give the inverse."""
    v = [1 / math.log10(1 + rank) for rank in range(1, len(protected) + 1)]
    of_side = {
        side: [w for w, it in zip(v, protected, strict=True) if it == side] for side in (0, 1)
    }
    means = {side: sum(weights) / len(weights) for side, weights in of_side.items()}
    found = exposure_ratio(protected)
    assert found == pytest.approx(means[1] / means[0], rel=1e-12)
    assert exposure_ratio([not it for it in protected]) == pytest.approx(1 / found, rel=1e-12)
    best, worst = exposure_ratio(sorted(protected, reverse=True)), exposure_ratio(sorted(protected))
    assert worst - 1e-12 <= found <= best + 1e-12


def test_an_empty_group_or_others_without_exposure_have_no_ratio() -> None:
    """Typed as None: neither 0, nor infinite, nor NaN."""
    for protected in ([], [True], [False], [True, True], [False, False, False]):
        assert exposure_ratio(protected) is None
    assert exposure_ratio([True, False], Discount("top_k", 1)) is None
    assert exposure_ratio([False, True], Discount("top_k", 1)) == 0
