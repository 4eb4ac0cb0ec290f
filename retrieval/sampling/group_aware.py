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

TRIED = 4096
"""How many samples tell the expectation, at most; its standard error is then below .01."""
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
    present = memberships.any(axis=0)
    if not (target * present).any():
        return weights
    widest = GAP - weights.min()  # beyond it nothing changes: that group comes first, or last
    wanted = normalise(target * present)
    clocks = stream.standard_exponential((min(TRIED, max(1, CELLS // weights.size)), weights.size))
    noise = -np.log(clocks, out=clocks)
    shift, step, before = np.zeros(target.size), np.ones(target.size), np.zeros(target.size)
    nearest, best = np.inf, shift
    for _ in range(STEPS):
        missing = wanted - _shares(noise + weights + memberships @ shift, memberships, k)
        distance = float(np.abs(missing).sum())
        if distance < nearest:
            nearest, best = distance, shift
        if distance <= NEAR:
            break
        way = np.sign(missing)
        goes_on = way * before
        step = np.where(goes_on > 0, step * 1.2, np.where(goes_on < 0, step / 2, step))
        shift = np.clip(shift + way * step, -widest, widest)
        step, before = np.minimum(step, widest), way
    return np.asarray(weights + memberships @ best)


def _shares(arrivals: FloatArray, memberships: FloatArray, k: int) -> FloatArray:
    """Return each group's share of the places of those that come first; zeros if none is known."""
    first = np.argpartition(-arrivals, k - 1, axis=1)[:, :k]
    return normalise(np.bincount(first.ravel(), minlength=len(memberships)) @ memberships)
