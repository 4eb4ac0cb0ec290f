"""Plackett–Luce whose expected exposure of groups is a target.

Chances that are fair to each document may still be unfair to a group: where most of what scores
well is of one group, so is most of what is read. Here each document's log weight is shifted by
θ_g of its group, or by the mean of its groups' shifts, and θ is chosen so that the groups' expected
shares of the k places are the target. Within a group, chances stay in the proportions of
:mod:`fairqr.retrieval.sampling.plackett_luce`.

The expectation is over samples with the same clocks for all θ, so it only changes with θ. Each θ_g
moves toward its target by steps that grow while they go on in one direction, and halve where they
turn back (as in Rprop, Riedmiller & Braun 1993): weights may be close together or far apart.
"""

from __future__ import annotations

import numpy as np

from fairqr.retrieval.fairness.exposure import FloatArray, normalise
from fairqr.retrieval.sampling.plackett_luce import CELLS, GAP, close_gaps

MOST_SAMPLES = 4096
"""How many samples the expectation is of, at most; its standard error is then below .01."""
NEAR = 0.002
"""How far all shares together may be from the target: less than the samples can tell."""
STEPS = 200
"""The most changes of θ; some dozens are enough, as measured, but where no θ reaches the target."""


def shifted(
    log_weights: FloatArray,
    memberships: FloatArray,
    target: FloatArray,
    k: int,
    stream: np.random.Generator,
) -> FloatArray:
    """Return the log weights by which groups get their target in expectation, shape (n,).

    Args:
        log_weights: ln w of each document, shape (n,), finite.
        memberships: The groups of each, shape (n, G); rows sum to 1, or to 0 without a label.
        target: The share of the labelled places of each group, shape (G,), sums to 1. Groups
            without documents leave theirs to the others; one with too few comes as often as it can.
        k: How many places there are, from 1 to n.
        stream: The source of random numbers.
    """
    weights = close_gaps(log_weights)
    is_present = memberships.any(axis=0)
    attainable = target * is_present
    if not attainable.any():
        return weights
    attainable = normalise(attainable)
    widest = GAP - weights.min()  # beyond it nothing changes: that group comes first, or last
    noise = _noise(weights.size, stream)

    shift = np.zeros(target.size)
    step = np.ones(target.size)
    last_direction = np.zeros(target.size)
    best = shift
    smallest_distance = np.inf
    for _ in range(STEPS):
        shares = _shares(noise + weights + memberships @ shift, memberships, k)
        missing = attainable - shares
        distance = float(np.abs(missing).sum())
        if distance < smallest_distance:
            smallest_distance = distance
            best = shift
        if distance <= NEAR:
            break

        direction = np.sign(missing)
        goes_on = direction * last_direction > 0
        turns_back = direction * last_direction < 0
        step = np.where(goes_on, step * 1.2, np.where(turns_back, step / 2, step))
        shift = np.clip(shift + direction * step, -widest, widest)
        step = np.minimum(step, widest)
        last_direction = direction
    return np.asarray(weights + memberships @ best)


def _noise(n: int, stream: np.random.Generator) -> FloatArray:
    """Return Gumbel noise for n documents in each sample, shape (N, n)."""
    samples = min(MOST_SAMPLES, max(1, CELLS // n))
    clocks = stream.standard_exponential((samples, n))
    return -np.log(clocks, out=clocks)


def _shares(arrivals: FloatArray, memberships: FloatArray, k: int) -> FloatArray:
    """Return each group's share of the first k places; zeros if their documents lack labels."""
    first = np.argpartition(-arrivals, k - 1, axis=1)[:, :k]
    counts = np.bincount(first.ravel(), minlength=len(memberships))
    return normalise(counts @ memberships)
