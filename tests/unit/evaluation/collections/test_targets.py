"""The targets against the track's rule written out over dictionaries, and against each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairqr.evaluation.collections.labels import with_unknown
from fairqr.evaluation.collections.query_targets import trec_target
from fairqr.retrieval.fairness.exposure import FloatArray, normalise

shares = st.floats(0, 1, allow_nan=False).map(lambda share: round(share, 6))


@st.composite
def documents(draw: st.DrawFn, attributes: int) -> tuple[list[FloatArray], list[FloatArray]]:
    """Memberships with the unknown last, and populations, of some attributes."""
    count = draw(st.integers(1, 6))
    memberships, populations = [], []
    for _ in range(attributes):
        groups = draw(st.integers(2, 4))
        raw = draw(hnp.arrays(np.float64, (count, groups + 1), elements=shares))
        # A document about which nothing is drawn is all unknown.
        raw[:, -1] += raw.sum(axis=1) == 0
        memberships.append(normalise(raw))
        populations.append(normalise(draw(hnp.arrays(np.float64, groups, elements=shares)) + 0.01))
    return memberships, populations


def by_hand(memberships: list[FloatArray], populations: list[FloatArray]) -> list[float]:
    """The rule of 2022 in loops over cells, each a tuple of positions; the last is unknown."""
    cells = list(itertools.product(*(range(len(p) + 1) for p in populations)))

    def known(cell: tuple[int, ...]) -> list[bool]:
        return [group < len(p) for group, p in zip(cell, populations, strict=True)]

    mean = {}
    for cell in cells:
        own = [members[:, group] for members, group in zip(memberships, cell, strict=True)]
        mean[cell] = float(np.mean([np.prod(document) for document in zip(*own, strict=True)]))
    target = []
    for cell in cells:
        world, block = 1.0, sum(mean[it] for it in cells if known(it) == known(cell))
        for population, group in zip(populations, cell, strict=True):
            world *= population[group] if group < len(population) else 1
        target.append(0.5 * mean[cell] + 0.5 * block * world if any(known(cell)) else mean[cell])
    return target


@pytest.mark.parametrize("attributes", [1, 2, 3])
@given(data=st.data())
@settings(max_examples=40)
def test_the_tracks_target_is_that_of_loops_over_cells(
    attributes: int, data: st.DataObject
) -> None:
    """The array code does what the rule says, and the result is a distribution."""
    memberships, populations = data.draw(documents(attributes))
    target = trec_target(memberships, populations).ravel()
    np.testing.assert_allclose(target, by_hand(memberships, populations), atol=1e-12)
    assert target.min() >= 0
    assert target.sum() == pytest.approx(1)


def official(memberships: list[FloatArray], population: FloatArray) -> FloatArray:
    """The track's avg_with_bg for an attribute with a population and two without, in its steps."""
    first, *raw = memberships
    joint = np.einsum("nb,nc->nbc", *raw)
    target = np.einsum("na,nbc->abc", first, joint) / len(first)
    tail_mass = target.sum(axis=(1, 2), keepdims=True)
    imputed = np.where(tail_mass > 0, target, target.sum(axis=0))
    scale = imputed / imputed.sum(axis=(1, 2), keepdims=True)
    known = target[:-1].sum()
    spread = population[:, None, None] * scale[:-1] * known
    target[:-1] = target[:-1] * 0.5 + spread * 0.5
    return target


@given(documents(3))
def test_attributes_without_a_population_keep_their_shares(
    found: tuple[list[FloatArray], list[FloatArray]],
) -> None:
    """Alone as they are; beside others as in the track's code."""
    memberships, (population, *_) = found
    alone = trec_target(memberships[:1], [None])
    np.testing.assert_allclose(alone, memberships[0].mean(axis=0), atol=1e-12)
    target = trec_target(memberships, [population, None, None])
    np.testing.assert_allclose(target, official(memberships, population), atol=1e-12)
    assert target.sum() == pytest.approx(1)


def test_the_unknown_is_what_is_missing_to_one() -> None:
    """Also where rounding makes a row sum to a little more."""
    found = with_unknown([[0.25, 0.25], [0, 0], [0.7, 0.3 + 1e-15]])
    np.testing.assert_allclose(found, [[0.25, 0.25, 0.5], [0, 0, 1], [0.7, 0.3, 0]], atol=1e-12)
