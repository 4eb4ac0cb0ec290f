"""Rankings drawn from Plackett–Luce, beside Gumbel noise for every item in every sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from measuring import Row, in_turns, median
from workspace import Workspace

from fairqr.retrieval.sampling.plackett_luce import sample_plackett_luce, stream_of

SAMPLES, SHOWN, ALPHA = 100, 5, 4.0
# How many times as fast it has to be, by the number of items.
TARGETS = {100: 1.2, 1_000: 4, 100_000: 60, 1_000_000: 200}


def sampling_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure from scores to rankings, all preparation included."""
    for items, times in TARGETS.items():
        if workspace.quick and items > 100_000:
            continue
        scores = stream_of(1, str(items)).standard_normal(items)
        ours, dense = stream_of(2), stream_of(3)
        _agree(scores)

        def sample(_: int, scores: np.ndarray = scores, stream: np.random.Generator = ours) -> None:
            sample_plackett_luce(scores, ALPHA, SAMPLES, SHOWN, stream)

        def peer(_: int, scores: np.ndarray = scores, stream: np.random.Generator = dense) -> None:
            dense_samples(scores, stream)

        rounds = 50 if items <= 1_000 else 20 if items <= 100_000 else 3
        taken = in_turns({"ours": sample, "peer": peer}, workspace.rounds(rounds), 2)
        found, expected = median(taken["ours"]), median(taken["peer"])
        yield Row(
            "sampling",
            f"Plackett–Luce, {items:,} items, {SAMPLES} samples, k = {SHOWN}",
            found,
            "ms",
            "dense Gumbel noise",
            expected,
            f"≤ 1/{times:g}",
            found * times <= expected,
        )


def dense_samples(scores: np.ndarray, stream: np.random.Generator) -> np.ndarray:
    """Draw in the usual way: noise for all, the k highest by partition, and those sorted."""
    low, high = scores.min(), scores.max()
    keys = stream.gumbel(size=(SAMPLES, len(scores)))
    keys += (1 + (scores - low) / (high - low)) ** ALPHA
    np.negative(keys, out=keys)
    best = np.argpartition(keys, SHOWN - 1, axis=1)[:, :SHOWN]
    order = np.take_along_axis(keys, best, axis=1).argsort(axis=1)
    return np.take_along_axis(best, order, axis=1)


def _agree(scores: np.ndarray) -> None:
    """Stop where both do not draw from one distribution: then their times say nothing.

    What is compared is the mean score of all that were drawn. Its standard error is at most that of
    as many independent scores.
    """
    ours = scores[sample_plackett_luce(scores, ALPHA, SAMPLES, SHOWN, stream_of(4))]
    theirs = scores[dense_samples(scores, stream_of(5))]
    error = np.sqrt((ours.mean(axis=1).var() + theirs.mean(axis=1).var()) / SAMPLES)
    if abs(ours.mean() - theirs.mean()) > 6 * error:
        raise AssertionError(f"{ours.mean()} is not {theirs.mean()}")
