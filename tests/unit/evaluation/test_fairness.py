"""Measures of groups: against dictionaries, and worked examples that were published."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from fairqr.evaluation import fairness
from fairqr.evaluation.fairness import ndkl
from fairqr.retrieval.fairness.exposure import LOG2, Discount, exposure

TREC = Discount("trec")


def awrf(
    members: ArrayLike,
    target: ArrayLike,
    discount: Discount = LOG2,
    k: int | None = None,
    unit: fairness.Unit = "nats",
) -> np.ndarray:
    return fairness.awrf(exposure(members, discount, k), target, unit=unit)


@st.composite
def cases(draw: st.DrawFn, least: int = 1) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Documents with shares of groups, some unknown in part or whole, and a target."""
    groups = ["a", "b", "c"][: draw(st.integers(2, 3))]
    documents = []
    for _ in range(draw(st.integers(least, 8))):
        kind = draw(st.sampled_from(["one", "two", "part", "none"]))
        first, second = draw(st.permutations(groups))[:2]
        documents.append(
            {
                "one": {first: 1.0},
                "two": {first: 0.25, second: 0.75},
                "part": {first: 0.5},
                "none": {},
            }[kind]
        )
    weights = draw(st.lists(st.integers(1, 9), min_size=len(groups), max_size=len(groups)))
    target = {g: w / sum(weights) for g, w in zip(groups, weights, strict=True)}
    assume(any(documents))
    return documents, target


def table(documents: list[dict[str, float]], target: dict[str, float]) -> np.ndarray:
    return np.array([[document.get(group, 0.0) for group in target] for document in documents])


def divergence(p: dict[str, float], q: dict[str, float]) -> float:
    """KL(p‖q) in nats, group by group."""
    return sum(share * math.log(share / q[group]) for group, share in p.items() if share > 0)


def shares(weighted: list[tuple[float, dict[str, float]]], groups: list[str]) -> dict[str, float]:
    """The normalised sum of weighted memberships."""
    totals = {g: sum(w * document.get(g, 0) for w, document in weighted) for g in groups}
    whole = sum(totals.values())
    return {group: total / whole for group, total in totals.items()}


@settings(max_examples=60)
@given(case=cases(), k=st.integers(1, 10), trec=st.booleans())
def test_awrf_is_what_dictionaries_give(
    case: tuple[list[dict[str, float]], dict[str, float]], k: int, trec: bool
) -> None:
    documents, target = case
    assume(any(documents[:k]))
    weighted = [
        (1 / math.log2(max(rank, 2) if trec else rank + 1), document)
        for rank, document in enumerate(documents[:k], start=1)
    ]
    found = shares(weighted, list(target))
    middle = {group: (found[group] + target[group]) / 2 for group in target}
    js = (divergence(found, middle) + divergence(target, middle)) / 2
    discount = TREC if trec else Discount()
    members = table(documents, target)
    wanted = list(target.values())
    assert awrf(members, wanted, discount, k) == pytest.approx(1 - js)
    assert awrf(members, wanted, discount, k, unit="bits") == pytest.approx(1 - js / math.log(2))


@settings(max_examples=60)
@given(case=cases(), k=st.one_of(st.none(), st.integers(1, 10)))
def test_ndkl_is_what_dictionaries_give(
    case: tuple[list[dict[str, float]], dict[str, float]], k: int | None
) -> None:
    documents, target = case
    summed = total = 0.0
    for prefix in range(1, len(documents[:k]) + 1):
        seen = documents[:prefix]
        if not any(seen):
            continue
        found = shares([(1.0, document) for document in seen], list(target))
        summed += divergence(found, target) / math.log2(prefix + 1)
        total += 1 / math.log2(prefix + 1)
    expected = summed / total if total else 0.0
    found_ndkl = ndkl(table(documents, target), list(target.values()), k)
    assert found_ndkl == pytest.approx(expected, abs=1e-12)


def test_ndkl_is_infinite_where_the_target_forbids_a_group_unless_smoothed() -> None:
    assert ndkl([[1, 0]], [0.0, 1.0]) == math.inf
    assert np.isfinite(ndkl([[1, 0]], [0.0, 1.0], smoothing=0.01))


@given(cases())
def test_awrf_is_one_exactly_where_exposure_is_the_target(
    case: tuple[list[dict[str, float]], dict[str, float]],
) -> None:
    """And nowhere above it, nor below its floor."""
    documents, target = case
    members = table(documents, target)
    weighted = [(1 / math.log2(r + 1), d) for r, d in enumerate(documents, start=1)]
    own = list(shares(weighted, list(target)).values())
    assert awrf(members, own) == pytest.approx(1)
    value = float(awrf(members, list(target.values())))
    assert 1 - math.log(2) - 1e-12 <= value <= 1
    assert -1e-12 <= awrf(members, list(target.values()), unit="bits") <= 1
