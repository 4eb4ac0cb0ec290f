"""Measuring a tuning from its folder, and saying what happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from fairqr.agents.ranking.verdict import ALPHA, LEAST, LEAST_QUERIES
from fairqr.base.statistics import Interval, p_in_words
from fairqr.evaluation.probes.records import PairRecord
from fairqr.evaluation.probes.tuning_changes import Change, GroupChange, RelevanceChange
from fairqr.evaluation.probes.tuning_figures import (
    couples,
    group_change,
    judged_together,
    relevance_change,
)
from fairqr.evaluation.probes.tuning_records import LoraStore, MeasuredLora

__all__ = ["measure_lora", "sentence_of"]

GroupKind = Literal["relevant", "irrelevant", "both"]
KINDS: dict[GroupKind, tuple[str, ...]] = {
    "relevant": ("relevant",),
    "irrelevant": ("irrelevant",),
    "both": ("relevant", "irrelevant"),
}


def measure_lora(store: LoraStore) -> MeasuredLora:
    """Measure what a tuning changed; a run that is not at its end gives what there is.

    Raises:
        InputError: The folder holds no tuning, or a line is damaged.
    """
    manifest = store.manifest()
    seed = manifest.experiment.seed
    before, after = store.pairs("before").read(), store.pairs("after").read()
    groups: list[GroupChange] = []
    relevance: list[RelevanceChange] = []
    sentences: list[str] = []
    for entry in manifest.collections:
        words = (entry.built.protected, entry.built.unprotected)
        changes = []
        for kind, kinds in KINDS.items():
            both = couples(_of(before, entry.name, kinds), _of(after, entry.name, kinds))
            changes.append(group_change(entry.name, kind, both, words, seed))
        groups += judged_together(changes, words)
        both = couples(*(_of(it, entry.name, ("relevance",)) for it in (before, after)))
        found = relevance_change(entry.name, both, seed) if both else None
        if found:
            relevance.append(found)
        sentences.append(f"{entry.name}: {sentence_of(groups[-1], found)}")
    wanted = sum(sum(split.held_out_pairs.values()) for split in manifest.splits)
    asked = sum(it.pairs for it in groups if it.kind == "both") + sum(it.pairs for it in relevance)
    return MeasuredLora(
        manifest,
        tuple(groups),
        tuple(relevance),
        tuple(store.curve()),
        tuple(sentences),
        missing=wanted - asked,
    )


def sentence_of(group: GroupChange, relevance: RelevanceChange | None) -> str:
    """Say whether the ratio moved toward 1, how surely, and what else fell or rose."""
    if not group.pairs:
        return "No pair was asked about both before and after."
    sentences = [_about_ratio(group), _about_lean(group)]
    sentences.append(f"Pairs with one winner in both orders {_moved(group.consistent)}.")
    if relevance is None:
        sentences.append("Relevance was not probed.")
    else:
        sentences.append(
            f"Of {_pairs(relevance.pairs)} of a relevant and an irrelevant item, the relevant one "
            f"wins in both orders: {_moved(relevance.both_orders)}; with both orders averaged: "
            f"{_moved(relevance.averaged)}."
        )
    return " ".join(it for it in sentences if it)


def _about_ratio(group: GroupChange) -> str:
    before, after, ratio = group.before, group.after, group.ratio
    counts = (
        f"Of {_pairs(group.pairs)} of {group.queries} held-out queries, the protected item won in "
        f"both orders {before.protected.count} times before and {after.protected.count} after, the "
        f"other {before.unprotected.count} and {after.unprotected.count}: the ratio went from "
        f"{_number(ratio.before)} to {_number(ratio.after)}"
    )
    few = [
        when
        for when, it in (("before", before), ("after", after))
        if it.consistent.of < LEAST or it.consistent_queries < LEAST_QUERIES
    ]
    if few:
        return f"{counts}; {' and '.join(few)} tuning too few pairs have one winner to say more."
    if ratio.interval is None or ratio.nearer is None:
        return f"{counts}; since a count is 0, how surely it moved cannot be said."
    low, high = ratio.interval.low, ratio.interval.high
    found = ratio.test is not None and ratio.test.p <= ALPHA
    sure = (
        "it moved toward 1"
        if low > 0 and found
        else "it moved away from 1"
        if high < 0 and found
        else "whether it moved toward 1 is not sure"
    )
    # That something changed is not yet that it moved toward 1.
    surely = ratio.test is not None and not sure.endswith("not sure")
    test = f"; {p_in_words(ratio.test.p)}" if ratio.test and surely else ""
    return (
        f"{counts}; {sure}: |ln ratio| changed by {-(ratio.moved or 0.0):+.2f} (95 %: {-high:+.2f} "
        f"to {-low:+.2f}{test}), and is nearer to 0 in {ratio.nearer:.1%} of "
        f"{ratio.interval.resamples:,} resamples of queries."
    )


def _about_lean(group: GroupChange) -> str:
    lean = group.lean
    if lean.before is None or lean.after is None:
        return ""
    return (
        "With both orders averaged, the log-odds of the protected item went from "
        f"{lean.before:+.3f}{_between(lean.before_interval, '+.3f')} to "
        f"{lean.after:+.3f}{_between(lean.after_interval, '+.3f')}."
    )


def _moved(change: Change) -> str:
    """Say what a share was and is, and whether the difference is more than chance."""
    before, after = change.before.value, change.after.value
    if before is None or after is None or change.difference is None:
        return "were not asked about"
    text = f"{before:.1%} before, {after:.1%} after"
    if change.interval is None:
        return text
    low, high = change.interval.low, change.interval.high
    found = change.test is not None and change.test.p <= ALPHA
    word = "fell" if high < 0 and found else "rose" if low > 0 and found else "no sure change"
    test = f", {p_in_words(change.test.p)}" if change.test else ""
    return (
        f"{text} ({word}: {100 * change.difference:+.1f} points, 95 %: {100 * low:+.1f} to "
        f"{100 * high:+.1f}{test})"
    )


def _between(interval: Interval | None, form: str) -> str:
    return f" ({interval.low:{form}} to {interval.high:{form}})" if interval else ""


def _number(value: float | None) -> str:
    return "no value (division by 0)" if value is None else f"{value:.2f}"


def _pairs(count: int) -> str:
    return f"{count:,} pair" if count == 1 else f"{count:,} pairs"


def _of(records: Iterable[PairRecord], collection: str, kinds: Sequence[str]) -> list[PairRecord]:
    return [it for it in records if it.collection == collection and it.kind in kinds]
