"""Properties of divergences after exchanges that touch few of many groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.retrieval.fairness.divergence import jensen_shannon
from fairqr.retrieval.fairness.exposure import normalise
from fairqr.retrieval.fairness.touched_groups import SparseAttribute, Touched


def random_patterns(rng: np.random.Generator, count: int, groups: int, most: int) -> Any:
    """Return memberships of patterns with up to so many groups; some have no label, some a part."""
    patterns = np.zeros((count, groups))
    for pattern in patterns:
        with_label = rng.choice(groups, rng.integers(0, most + 1), replace=False)
        pattern[with_label] = rng.dirichlet(np.ones(len(with_label))) if len(with_label) else 0.0
        pattern *= rng.choice([1.0, 0.5])
    return patterns


@given(
    seed=st.integers(0, 2**32 - 1),
    groups=st.integers(1, 40),
    held=st.integers(1, 4),
    length=st.integers(1, 8),
)
def test_divergences_after_exchanges_are_those_of_all_groups(
    seed: int, groups: int, held: int, length: int
) -> None:
    rng = np.random.default_rng(seed)
    patterns = random_patterns(rng, 12, groups, min(held, groups))
    target = normalise(rng.random(groups) * (rng.random(groups) < 0.8) + 1e-9)
    sequences = rng.integers(0, len(patterns), (3, length))
    weights = 1 / np.log2(np.arange(2, length + 2))
    given_out = (weights[:, None] * patterns[sequences]).sum(axis=1).T
    # Each sequence gives one of its ranks to any pattern.
    sequence = rng.integers(0, len(sequences), 30)
    rank = rng.integers(0, length, 30)
    rising = rng.integers(0, len(patterns), 30)
    falling = sequences[sequence, rank]
    exchanges = Touched(sequence, rising, falling, weights[rank])
    bits, totals = SparseAttribute(patterns, target).after(given_out, exchanges)
    after = given_out.T[sequence] + weights[rank, None] * (patterns[rising] - patterns[falling])

    assert totals == pytest.approx(after.sum(axis=1), abs=1e-9)

    defined = totals > 1e-6
    nats = jensen_shannon(target, normalise(np.maximum(after, 0.0)[defined]))
    assert bits[defined] == pytest.approx(np.atleast_1d(nats) / np.log(2), abs=1e-9)
