"""The group exposure ratio: against a loop written out, and its identities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.retrieval.fairness.exposure import LOG2, Discount
from fairqr.retrieval.fairness.exposure_ratio import exposure_ratio

lists = st.lists(st.booleans(), min_size=2, max_size=40)
mixed = lists.filter(lambda items: any(items) and not all(items))


@given(mixed)
def test_it_is_the_definition(protected: list[bool]) -> None:
    """L1, one item at a time, with a logarithm of another base."""
    total, count = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for a, is_protected in enumerate(protected, start=1):
        total[is_protected] += 1 / math.log10(1 + a)
        count[is_protected] += 1
    expected = (total[True] / count[True]) / (total[False] / count[False])
    assert exposure_ratio(protected) == pytest.approx(expected, rel=1e-12)


@given(mixed)
def test_the_groups_swapped_give_the_inverse(protected: list[bool]) -> None:
    """What favours one group by a factor is to the other's cost by the same."""
    one, other = exposure_ratio(protected), exposure_ratio([not item for item in protected])
    assert one is not None
    assert other == pytest.approx(1 / one, rel=1e-12)


@given(mixed)
def test_who_stands_higher_has_more(protected: list[bool]) -> None:
    """All protected first is the most there can be, all last the least."""
    found = exposure_ratio(protected)
    best, worst = exposure_ratio(sorted(protected, reverse=True)), exposure_ratio(sorted(protected))
    assert found is not None
    assert best is not None
    assert worst is not None
    assert worst < 1 < best
    assert worst - 1e-12 <= found <= best + 1e-12


def test_a_list_by_hand() -> None:
    """Ranks 1 and 4 against 2 and 3; and against 1 for the mirrored pair of ranks 1 and 2."""
    v = [1 / math.log(1 + a) for a in (1, 2, 3, 4)]
    assert exposure_ratio([True, False, False, True]) == pytest.approx(
        (v[0] + v[3]) / (v[1] + v[2])
    )
    first = exposure_ratio([True, False])
    assert first == pytest.approx(math.log(3) / math.log(2))


@pytest.mark.parametrize("protected", [[], [True], [False], [True, True], [False, False, False]])
def test_an_empty_group_has_no_ratio(protected: list[bool]) -> None:
    """Typed as None: neither 0, nor infinite, nor NaN."""
    assert exposure_ratio(protected) is None


def test_others_without_any_exposure_have_no_ratio() -> None:
    """A discount that ends may leave nothing to divide by; the other way round it is 0."""
    first = Discount("top_k", 1)
    assert exposure_ratio([True, False], first) is None
    assert exposure_ratio([False, True], first) == 0


def test_the_discount_is_that_of_the_paper() -> None:
    """1/log(1+a) in any base gives one ratio, which is why 1/log2(1+a) gives it too."""
    protected = [True, False, False, True, False]
    assert exposure_ratio(protected) == pytest.approx(exposure_ratio(protected, LOG2))
