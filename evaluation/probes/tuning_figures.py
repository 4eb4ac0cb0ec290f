"""What a tuning changed: lean, consistent answers and relevance of the held-out pairs.

All is of the same pairs before and after, and resamples draw queries, with what was said of their
pairs before and after together. The measures are those of FORMULAS L2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fairqr.agents.ranking.lean import PROTECTED, UNPROTECTED, PairOutcome, Share, pair_figures
from fairqr.agents.ranking.verdict import verdict, verdicts
from fairqr.base.statistics import (
    EXACT_UP_TO,
    PERMUTATIONS,
    RESAMPLES,
    Interval,
    Randomisation,
    between_quantiles,
    bootstrap_ratio,
    paired_randomisation,
    stream,
)
from fairqr.evaluation.probes.pairwise_measures import outcome_of
from fairqr.evaluation.probes.records import PairRecord
from fairqr.evaluation.probes.tuning_changes import (
    Change,
    GroupChange,
    LeanChange,
    RatioChange,
    RelevanceChange,
)

__all__ = ["Couple", "couples", "group_change", "judged_together", "relevance_change"]

LEVEL = 0.95

Couple = tuple[PairOutcome, PairOutcome]
"""What was said of one pair before and after."""

Floats = NDArray[np.float64]


def couples(before: Sequence[PairRecord], after: Sequence[PairRecord]) -> dict[str, list[Couple]]:
    """Return what was said of each pair that was asked about both times, by query.

    Args:
        before: Each pair once.
        after: The same; the model's name does not matter.
    """
    later = {_pair(record): record for record in after}
    found: dict[str, list[Couple]] = {}
    for record in sorted(before, key=_pair):
        if _pair(record) in later:
            couple = (outcome_of(record), outcome_of(later[_pair(record)]))
            found.setdefault(record.query, []).append(couple)
    return found


def group_change(
    collection: str,
    kind: Literal["relevant", "irrelevant", "both"],
    by_query: dict[str, list[Couple]],
    words: tuple[str, str],
    seed: int,
) -> GroupChange:
    """Return what changed in the pairs of a protected and an unprotected item.

    Args:
        collection: Its name.
        kind: Of the pairs.
        by_query: The pairs.
        words: What the two groups are called.
        seed: Of the resamples.
    """
    random = stream(seed, f"change: {collection}, {kind}")
    groups = list(by_query.values())
    before, after = (
        pair_figures([couple[side] for group in groups for couple in group], random)
        for side in (0, 1)
    )
    return GroupChange(
        collection=collection,
        kind=kind,
        pairs=sum(map(len, groups)),
        queries=len(groups),
        before=before,
        after=after,
        before_verdict=verdict(before, words),
        after_verdict=verdict(after, words),
        ratio=_ratio_change(groups, random),
        consistent=_change(groups, lambda it: it.winner is not None, random),
        lean=_lean_change(groups, random),
    )


def judged_together(groups: Sequence[GroupChange], words: tuple[str, str]) -> list[GroupChange]:
    """Return changes with verdicts that are corrected for being read together.

    Args:
        groups: The kinds of one collection.
        words: What the two groups are called.
    """
    before = verdicts([one.before for one in groups], words)
    after = verdicts([one.after for one in groups], words)
    return [
        replace(one, before_verdict=was, after_verdict=now)
        for one, was, now in zip(groups, before, after, strict=True)
    ]


def relevance_change(
    collection: str, by_query: dict[str, list[Couple]], seed: int
) -> RelevanceChange:
    """Return what changed in the pairs whose ``protected`` item is relevant and the other is not.

    Its arguments are those of :func:`group_change`.
    """
    random = stream(seed, f"change: {collection}, relevance")
    groups = list(by_query.values())
    return RelevanceChange(
        collection=collection,
        pairs=sum(map(len, groups)),
        queries=len(groups),
        both_orders=_change(groups, lambda it: it.winner == PROTECTED, random),
        averaged=_change(groups, lambda it: (it.balance or 0.0) > 0, random),
    )


def _pair(record: PairRecord) -> tuple[str, ...]:
    return (
        record.collection,
        record.query,
        record.kind,
        record.protected,
        record.unprotected,
    )


def _change(
    groups: Sequence[Sequence[Couple]],
    holds: Callable[[PairOutcome], bool],
    random: np.random.Generator,
) -> Change:
    """Return how the share of the pairs changed of which something holds."""
    pairs = np.array([len(group) for group in groups], dtype=np.float64)
    before, after = _counts(groups, holds)
    share_before, share_after = (
        Share(int(counts.sum()), int(pairs.sum()), bootstrap_ratio(counts, pairs, random))
        for counts in (before, after)
    )
    if not groups:
        return Change(share_before, share_after, None, None, None)
    drawn = _drawn(len(groups), random)
    gained = after - before
    return Change(
        share_before,
        share_after,
        difference=float(gained.sum() / pairs.sum()),
        interval=(
            _interval(gained[drawn].sum(1) / pairs[drawn].sum(1)) if len(groups) > 1 else None
        ),
        test=paired_randomisation(gained, random),
    )


def _ratio_change(groups: Sequence[Sequence[Couple]], random: np.random.Generator) -> RatioChange:
    won = _counts(groups, lambda it: it.winner == PROTECTED)
    lost = _counts(groups, lambda it: it.winner == UNPROTECTED)
    if not groups:
        return RatioChange(None, None, None, None, None)
    before, after = (
        float(one.sum() / other.sum()) if other.any() else None
        for one, other in zip(won, lost, strict=True)
    )
    moved = float(_moved(*(it.sum() for it in (*won, *lost))))
    if len(groups) < 2 or not all(it.any() for it in (*won, *lost)):
        return RatioChange(before, after, moved, None, None)
    drawn = _drawn(len(groups), random)
    resampled = _moved(*(it[drawn].sum(1) for it in (*won, *lost)))
    # Where both are as near, it counts half.
    nearer = float((np.sign(resampled) + 1).mean() / 2)
    test = _exchanged(won, lost, abs(moved), random)
    return RatioChange(before, after, moved, _interval(resampled), nearer, test)


def _exchanged(
    won: tuple[Floats, Floats],
    lost: tuple[Floats, Floats],
    observed: float,
    random: np.random.Generator,
) -> Randomisation:
    """Test that nothing changed: in each query, a coin says which answers were those before."""
    queries = won[0].size
    exact = queries <= EXACT_UP_TO
    if exact:
        swapped = (np.arange(1 << queries)[:, None] >> np.arange(queries)) & 1
    else:
        swapped = random.integers(0, 2, (PERMUTATIONS, queries), dtype=np.int8)
    gained = [swapped @ (after - before) for before, after in (won, lost)]
    counts = [
        side.sum() + sign * gain
        for (before, after), gain in zip((won, lost), gained, strict=True)
        for side, sign in ((before, 1), (after, -1))
    ]
    # Equal values differ by rounding.
    as_far = np.abs(_moved(*counts)) >= observed - 1e-9
    if exact:
        return Randomisation(float(as_far.mean()), True, as_far.size)
    return Randomisation(float((as_far.sum() + 1) / (as_far.size + 1)), False, as_far.size + 1)


def _moved(
    won_before: Floats, won_after: Floats, lost_before: Floats, lost_after: Floats
) -> Floats:
    """Return |ln ratio before| − |ln ratio after|, ½ added to each count (Haldane 1956)."""
    before = np.abs(np.log((won_before + 0.5) / (lost_before + 0.5)))
    after = np.abs(np.log((won_after + 0.5) / (lost_after + 0.5)))
    return np.asarray(before - after)


def _lean_change(groups: Sequence[Sequence[Couple]], random: np.random.Generator) -> LeanChange:
    weighed = [
        [
            (before.balance / 2, after.balance / 2)
            for before, after in group
            if before.balance is not None and after.balance is not None
        ]
        for group in groups
    ]
    sums = np.array([np.sum(group, axis=0) for group in weighed if group], dtype=np.float64)
    pairs = np.array([len(group) for group in weighed if group], dtype=np.float64)
    if not pairs.size:
        return LeanChange(0, None, None, None, None, None, None)
    before, after = (sums.sum(0) / pairs.sum()).tolist()
    shrunk = abs(before) - abs(after)
    if pairs.size < 2:
        return LeanChange(int(pairs.sum()), before, after, None, None, shrunk, None)
    drawn = _drawn(pairs.size, random)
    means = sums[drawn].sum(1) / pairs[drawn].sum(1)[:, None]
    return LeanChange(
        int(pairs.sum()),
        before,
        after,
        _interval(means[:, 0]),
        _interval(means[:, 1]),
        shrunk,
        _interval(np.abs(means[:, 0]) - np.abs(means[:, 1])),
    )


def _counts(
    groups: Sequence[Sequence[Couple]], holds: Callable[[PairOutcome], bool]
) -> tuple[Floats, Floats]:
    """Return for each query how many of its pairs something holds of, before and after."""
    before, after = (
        np.array([sum(holds(couple[side]) for couple in group) for group in groups], np.float64)
        for side in (0, 1)
    )
    return before, after


def _drawn(queries: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return the queries of each resample, shape (RESAMPLES, queries)."""
    return random.integers(0, queries, (RESAMPLES, queries))


def _interval(values: Floats) -> Interval:
    return between_quantiles(values, LEVEL, len(values))
