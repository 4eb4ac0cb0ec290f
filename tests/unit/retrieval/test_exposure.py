"""Exposure: against a loop written out, and its properties over all inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.exposure import (
    LOG2,
    Discount,
    exposure,
    exposure_and_unknown,
    group_exposure,
    intersection,
)

DISCOUNTS = ["log2", "trec", "rbp(0.8)", "top_k(3)", "inverse_log"]


@st.composite
def rankings(draw: st.DrawFn, min_documents: int = 1) -> np.ndarray:
    """Memberships of a ranking: rows sum to 1, to less (partly unknown) or to 0 (unknown)."""
    shape = (draw(st.integers(min_documents, 12)), draw(st.integers(2, 5)))
    weights = draw(hnp.arrays(float, shape, elements=st.floats(0, 1)))
    known = draw(hnp.arrays(float, (shape[0], 1), elements=st.sampled_from([0.0, 0.5, 1.0])))
    totals = weights.sum(axis=1, keepdims=True)
    return np.where(totals > 1e-6, weights / np.maximum(totals, 1e-6), 0) * known


def weight(kind: str, rank: int) -> float:
    """The definitions, once more and one rank at a time."""
    return {
        "log2": 1 / math.log2(rank + 1),
        "trec": 1 / math.log2(max(rank, 2)),
        "rbp(0.8)": 0.2 * 0.8 ** (rank - 1),
        "top_k(3)": float(rank <= 3),
        "inverse_log": 1 / math.log(1 + rank),
    }[kind]


@pytest.mark.parametrize("text", DISCOUNTS)
@given(members=rankings())
def test_agrees_with_a_loop_over_documents(text: str, members: np.ndarray) -> None:
    by_hand = np.zeros(members.shape[1])
    for rank, row in enumerate(members, start=1):
        by_hand += weight(text, rank) * row
    assert np.allclose(group_exposure(members, Discount.parse(text)), by_hand)


@given(members=rankings(), k=st.integers(1, 15))
def test_sums_to_one_or_is_undefined_where_no_document_has_a_group(
    members: np.ndarray, k: int
) -> None:
    total = exposure(members, k=k).sum()
    expected = 1.0 if members[:k].any() else 0.0
    assert total == pytest.approx(expected)


@given(members=rankings(), data=st.data())
def test_renaming_groups_renames_exposures(members: np.ndarray, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(members.shape[1])))
    assert np.allclose(exposure(members[:, order]), exposure(members)[order])


@given(members=rankings(min_documents=2), data=st.data())
def test_moving_a_document_up_never_costs_its_group_exposure(
    members: np.ndarray, data: st.DataObject
) -> None:
    row = data.draw(st.integers(1, len(members) - 1))
    more = members[row] - members[row - 1]
    group = int(np.argmax(more))
    assume(more[group] >= 0)
    swapped = members.copy()
    swapped[[row - 1, row]] = swapped[[row, row - 1]]
    gained = group_exposure(swapped)[group] - group_exposure(members)[group]
    assert gained >= -1e-12


@given(members=rankings())
def test_known_and_unknown_exposure_make_up_all_of_it(members: np.ndarray) -> None:
    total = LOG2.weights(len(members)).sum()
    known = group_exposure(members).sum()
    assert known / total + exposure_and_unknown(members)[1] == pytest.approx(1)


def test_many_rankings_at_once_are_measured_one_by_one() -> None:
    batch = np.random.default_rng(1).dirichlet(np.ones(3), size=(4, 6))
    assert np.allclose(exposure(batch, k=5), [exposure(one, k=5) for one in batch])


@pytest.mark.parametrize("text", DISCOUNTS)
def test_a_discount_is_written_as_it_is_read(text: str) -> None:
    assert str(Discount.parse(text)) == text


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
    second = data.draw(
        hnp.arrays(float, (len(first), 2), elements=st.sampled_from([0.0, 0.25, 0.5]))
    )
    product = intersection([first, second])
    assert product.shape == (len(first), first.shape[1] * 2)
    assert np.allclose(product.sum(axis=1), first.sum(axis=1) * second.sum(axis=1))
    assert product[0, 1] == pytest.approx(first[0, 0] * second[0, 1])
