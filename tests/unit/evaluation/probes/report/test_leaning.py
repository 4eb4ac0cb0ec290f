"""Exposure leans only where a test says so, and relevance alone has the ratio it should."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairqr.evaluation.probes.measured import Average, ListwiseRow, QueryValues, RankDistribution
from fairqr.evaluation.probes.records import Spent
from fairqr.evaluation.probes.report.leaning import exposure_leans, ratio_of_relevance
from fairqr.retrieval.exposure_ratio import exposure_ratio

COUNTS = st.integers(0, 3)
RATIOS = st.lists(st.one_of(st.none(), st.floats(0.2, 5)), max_size=20)


def row(ratios: list[float | None], ranker: str = "model", share: float = 0.5) -> ListwiseRow:
    """Make a row of lists with these ratios, and that share of protected items."""
    return ListwiseRow(
        collection="c",
        ranker=ranker,
        window="",
        asker="neutral",
        queries=len(ratios),
        precision=Average(0),
        ndcg=Average(0),
        ratio=Average(0),
        ranks=RankDistribution(0, 0, (), (), (), (), None, None, None),
        asked=0,
        failures={},
        repairs={},
        warnings={},
        spent=Spent(),
        by_query=tuple(
            QueryValues(f"q{i}", None, None, ratio, share=share) for i, ratio in enumerate(ratios)
        ),
    )


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_ratio_of_relevance_is_the_mean_over_all_such_lists(
    relevant_own: int, own: int, relevant_others: int, others: int
) -> None:
    found = ratio_of_relevance((relevant_own, own), (relevant_others, others))
    weights = 1 / np.log(1 + np.arange(1, 13))
    first = [True] * relevant_own + [False] * relevant_others
    rest = [True] * own + [False] * others
    if not relevant_own + own or not relevant_others + others:
        assert found is None
        return
    totals = np.zeros(2)
    # Which of the relevant places are the group's; the order within a group does not matter.
    for one in set(itertools.permutations(first)):
        for other in set(itertools.permutations(rest)):
            mask = np.array([*one, *other], dtype=bool)
            used = weights[: mask.size]
            totals += used[mask].mean(), used[~mask].mean()
    assert found is not None
    np.testing.assert_allclose(found, totals[0] / totals[1])


@given(COUNTS.filter(bool), COUNTS)
def test_groups_of_equal_cells_have_the_ratio_1(relevant: int, irrelevant: int) -> None:
    found = ratio_of_relevance((relevant, irrelevant), (relevant, irrelevant))
    assert found is not None
    np.testing.assert_allclose(found, 1)


@given(RATIOS)
def test_a_swap_of_the_groups_swaps_the_verdict(ratios: list[float | None]) -> None:
    (one,) = exposure_leans([row(ratios)], {})
    swapped_ratios = [None if ratio is None else 1 / ratio for ratio in ratios]
    (other,) = exposure_leans([row(swapped_ratios)], {})
    assert one is not None
    assert other is not None
    swapped = {"protected": "unprotected", "unprotected": "protected"}
    assert other.kind == swapped.get(one.kind, one.kind)
    assert one.n == sum(ratio is not None for ratio in ratios)


def test_random_lists_are_not_said_to_disfavour_a_small_group() -> None:
    """The mean of ln(ratio) is below 0 there; that of the differences that are tested is not."""
    random = np.random.default_rng(0)
    group = np.arange(40) < 3
    found, logs = 0, []
    for _ in range(60):
        ratios = [exposure_ratio(random.permutation(group)) or 0.0 for _ in range(50)]
        (lean,) = exposure_leans([row([*ratios], share=3 / 40)], {})
        assert lean is not None
        found += lean.kind != "none"
        logs += np.log(ratios).tolist()
    assert found <= 7
    assert np.mean(logs) < -0.02


def test_unanimity_is_found_from_six_lists_on_and_of_more_tests_from_more() -> None:
    kinds = [exposure_leans([row([1.5] * n)], {})[0] for n in range(8)]
    assert [lean.kind if lean else "" for lean in kinds] == ["too_few"] * 6 + ["protected"] * 2
    # Two tests: 2 · 2⁻⁵ is too much, 2 · 2⁻⁶ is not.
    assert [lean.kind for lean in exposure_leans([row([0.5] * 6)] * 2, {}) if lean] == [
        "too_few"
    ] * 2
    found = exposure_leans([row([0.5] * 7), row([1.0] * 7)], {})
    assert [lean.kind for lean in found if lean] == ["unprotected", "none"]


def test_the_initial_order_is_not_tested_and_makes_no_test_stricter() -> None:
    alone, given_order = exposure_leans([row([1.5] * 6), row([1.5] * 6, "initial")], {})
    assert given_order is None
    assert alone is not None
    assert alone.kind == "protected"
    assert alone.tests == 1


def test_a_ranker_that_orders_by_relevance_is_not_said_to_lean() -> None:
    """Where cells are short its ratio is below 1; so is that of one that knows half of it."""
    references = {f"q{number}": 0.8 for number in range(10)}
    found = exposure_leans([row([0.8] * 10), row([0.9] * 10), row([0.6] * 10)], references)
    assert [lean.kind for lean in found if lean] == ["none", "none", "unprotected"]
    assert [lean.p for lean in found if lean][:2] == [1.0, 1.0]
    above = exposure_leans([row([1.2] * 10)], references)
    assert [lean.kind for lean in above if lean] == ["protected"]


def test_lists_that_put_one_group_first_are_those_the_ratio_is_above_1_of() -> None:
    assert (exposure_ratio([True, True, False, False]) or 0) > 1
