"""Measures how tuning changed lean, consistent answers and relevance on the held-out pairs.

The pairs before and after are the same. Tests and intervals are over queries, each with all of its
answers before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairqr.agents.ranking.lean import (
    ALPHA,
    PROTECTED,
    UNPROTECTED,
    PairOutcome,
    Share,
    p_of_lean,
    pair_figures,
    verdicts,
)
from fairqr.agents.statistics import (
    EXACT_UP_TO,
    PERMUTATIONS,
    Interval,
    corrected_by_holm,
    mean_interval,
    paired_randomisation,
    share_interval,
    stream,
    too_few,
)
from fairqr.evaluation.by_group import ratio_interval
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.probes.pairwise_measures import (
    ends_of,
    figure_row,
    figure_values,
    outcome_of,
    share_columns,
)
from fairqr.evaluation.probes.store import LoraManifest, LoraStore, PairRecord

if TYPE_CHECKING:
    from pandas import DataFrame

KINDS = {
    "relevant": ("relevant",),
    "irrelevant": ("irrelevant",),
    "both": ("relevant", "irrelevant"),
}
NAMES = {
    "ratio": "ratio nearer to 1",
    "consistent": "consistent",
    "log_odds": "log-odds nearer to 0",
    "both_orders": "both orders",
    "averaged": "averaged",
}
"""The names of changes in CSV files."""

Couple = tuple[PairOutcome, PairOutcome]
"""The answers about a pair before and after tuning."""

Floats = NDArray[np.float64]
Row = dict[str, Any]


@dataclass(frozen=True)
class MeasuredLora(Measured):
    """The results of a tuning.

    Attributes:
        manifest: What it was run with.
        figures: One row for each collection, kind of pairs, and ``when`` (``before`` or ``after``):
            what :func:`fairqr.evaluation.probes.pairwise_measures.figure_row` returns, the
            ``verdict``, the ``lean`` beside it, and ``p_holm``.
        changes: One row for each collection, kind and ``measure``, see :func:`kind_changes`. All
            tests and verdicts on a collection are one family for Holm: ``tests`` is its size,
            ``p_holm`` the corrected p, and ``verdict`` is ``up`` or ``down`` if the change holds at
            5 %, ``too_few`` if no change could, ``none`` otherwise, and ``untested``.
        losses: One row for each step, in order.
        missing: How many pairs lack an answer before or after.
    """

    frame_names = ("figures", "changes", "losses")
    template = "tuning"
    report = "fairqr.evaluation.probes.report"

    manifest: LoraManifest
    figures: DataFrame
    changes: DataFrame
    losses: DataFrame
    missing: int

    @property
    def table(self) -> DataFrame:
        """The figures before and after, and what changed, one in each row."""
        import pandas as pd

        rows: list[tuple[object, ...]] = []
        for (collection, kind), found in self.changes.groupby(["collection", "kind"], sort=False):
            figures = self.figures[
                (self.figures.collection == collection) & (self.figures.kind == kind)
            ]
            rows += [
                (collection, kind, row.when, *value)
                for row in figures.itertuples()
                for value in figure_values(row)
            ]
            for row in found.itertuples():
                name = NAMES[row.measure]
                if kind == "relevance":
                    for when in ("before", "after"):
                        before = [getattr(row, when + end) for end in ("", "_low", "_high")]
                        count = int(getattr(row, f"{when}_count"))
                        rows.append((collection, kind, when, name, *before, count, row.pairs))
                change = (row.difference, row.low, row.high, None, row.pairs)
                rows.append((collection, kind, "change", name, *change))
        columns = ["collection", "pairs", "when", "measure", "value", "low", "high", "count", "of"]
        found = pd.DataFrame(rows, columns=columns, dtype=object)
        # Relevance comes last.
        return found.sort_values("pairs", key=lambda kind: kind == "relevance", kind="stable")


def measure_lora(store: LoraStore) -> MeasuredLora:
    """Measure how tuning changed the answers; an unfinished run gives the results so far.

    Raises:
        InputError: The folder holds no tuning, or a line is damaged.
    """
    import pandas as pd

    manifest = store.manifest()
    before, after = store.pairs("before").read(), store.pairs("after").read()
    figures: list[Row] = []
    changes: list[Row] = []
    for entry in manifest.collections:
        own = measure_pairs(entry.name, before, after, manifest.experiment.seed)
        figures += own[0]
        changes += own[1]
    wanted = sum(sum(split.held_out_pairs.values()) for split in manifest.splits)
    whole = (("both", "consistent"), ("relevance", "both_orders"))
    asked = sum(row["pairs"] for row in changes if (row["kind"], row["measure"]) in whole)
    return MeasuredLora(
        manifest,
        pd.DataFrame(figures),
        pd.DataFrame(changes),
        pd.DataFrame([step.model_dump() for step in store.curve()]),
        missing=wanted - asked,
    )


def measure_pairs(
    collection: str,
    before: Sequence[PairRecord],
    after: Sequence[PairRecord],
    seed: int,
) -> tuple[list[Row], list[Row]]:
    """Return the rows of figures and of changes of one collection.

    Args:
        collection: Its name.
        before: The answers before tuning, of all collections.
        after: The answers after it; the model's name does not matter.
        seed: The seed of the tests.
    """
    rows, found, changes = [], [], []
    for kind, kinds in KINDS.items():
        by_query = couples(*(_of(records, collection, kinds) for records in (before, after)))
        random = stream(seed, f"change: {collection}, {kind}")
        groups = list(by_query.values())
        for side, when in enumerate(("before", "after")):
            found.append(
                pair_figures([couple[side] for group in groups for couple in group], random)
            )
            rows.append(
                {"collection": collection, "kind": kind, "when": when} | figure_row(found[-1])
            )
        changes += kind_changes(collection, kind, groups, random)
    relevance = couples(*(_of(records, collection, ["relevance"]) for records in (before, after)))
    if relevance:
        random = stream(seed, f"change: {collection}, relevance")
        changes += kind_changes(collection, "relevance", list(relevance.values()), random)
    tests = [change["p"] for change in changes]
    corrected = corrected_by_holm([*map(p_of_lean, found), *tests])
    size = sum(p is not None for p in corrected)
    for change, p in zip(changes, corrected[len(found) :], strict=True):
        up = "up" if (change["difference"] or 0) > 0 else "down"
        few = "too_few" if too_few(change["queries"], ALPHA / max(1, size)) else "none"
        verdict = "untested" if p is None else up if p <= ALPHA else few
        change |= {"tests": size, "p_holm": p, "verdict": verdict}
    judged = verdicts(found, beside=tests)
    return [
        row | {"verdict": verdict.kind, "lean": verdict.lean, "p_holm": verdict.p}
        for row, verdict in zip(rows, judged, strict=True)
    ], changes


def couples(before: Sequence[PairRecord], after: Sequence[PairRecord]) -> dict[str, list[Couple]]:
    """Return the answers about each pair that has them both times, by query.

    Args:
        before: Each pair once.
        after: The answers after it; the model's name does not matter.
    """
    later = {_pair(record): record for record in after}
    found: dict[str, list[Couple]] = {}
    for record in sorted(before, key=_pair):
        if _pair(record) in later:
            couple = (outcome_of(record), outcome_of(later[_pair(record)]))
            found.setdefault(record.query, []).append(couple)
    return found


def kind_changes(
    collection: str,
    kind: str,
    groups: Sequence[Sequence[Couple]],
    random: np.random.Generator,
) -> list[Row]:
    """Return the changes in the pairs of one kind; missing values are None.

    Each row has ``pairs``, ``queries``, the values ``before`` and ``after`` with ``…_low``,
    ``…_high`` and, of a share, ``…_count``; the ``difference`` with ``low`` and ``high``, over
    queries; and ``p``, of a randomisation test over queries. Its ``measure`` is one of these.

    - ``ratio``: of wins in both orders, protected to unprotected. The difference is |ln before| −
      |ln after|, with ½ added to each count so that it is always a number: above 0 the ratio is
      nearer to 1 after. There is no interval and no test if a count is 0.
    - ``consistent``: the share of pairs that either item wins in both orders.
    - ``log_odds``: the mean over pairs of half the sum of ln P(protected) − ln P(unprotected) in
      both orders, so that position cancels. The difference is |before| − |after|; no test.
    - ``both_orders`` and ``averaged``, of relevance pairs: the share whose relevant item wins in
      both orders, and by the sum of both log-odds.
    """
    ids = {
        "collection": collection,
        "kind": kind,
        "pairs": sum(map(len, groups)),
        "queries": len(groups),
    }
    if kind == "relevance":
        measured = {
            "both_orders": _share_change(groups, lambda it: it.winner == PROTECTED, random),
            "averaged": _share_change(groups, lambda it: (it.balance or 0.0) > 0, random),
        }
    else:
        measured = {
            "ratio": _ratio_change(groups, random),
            "consistent": _share_change(groups, lambda it: it.winner is not None, random),
            "log_odds": _log_odds_change(groups),
        }
    unknown = dict.fromkeys(("before", "after", "difference", "low", "high", "p"))
    return [{**ids, "measure": name, **unknown, **row} for name, row in measured.items()]


def _share_change(
    groups: Sequence[Sequence[Couple]],
    holds: Callable[[PairOutcome], bool],
    random: np.random.Generator,
) -> Row:
    """Return the change of the share of pairs that meet a condition."""
    pairs = np.array([len(group) for group in groups], dtype=np.float64)
    before, after = _counts(groups, holds)
    row: Row = {}
    for when, counts in (("before", before), ("after", after)):
        interval = share_interval(counts, pairs)
        row |= share_columns(when, Share(int(counts.sum()), int(pairs.sum()), interval))
    if not groups:
        return row
    gained = after - before
    test = paired_randomisation(gained, random)
    return row | _change(float(gained.sum() / pairs.sum()), ratio_interval(gained, pairs), test)


def _ratio_change(groups: Sequence[Sequence[Couple]], random: np.random.Generator) -> Row:
    won = _counts(groups, lambda it: it.winner == PROTECTED)
    lost = _counts(groups, lambda it: it.winner == UNPROTECTED)
    if not groups:
        return {}
    before, after = (
        float(one.sum() / other.sum()) if other.any() else None
        for one, other in zip(won, lost, strict=True)
    )
    moved = float(_moved(*(it.sum() for it in (*won, *lost))))
    row = {"before": before, "after": after, **_change(moved, None, None)}
    if len(groups) < 2 or not all(it.any() for it in (*won, *lost)):
        return row
    # How far each query turns the logarithms of both ratios.
    turns = [one / one.sum() - other / other.sum() for one, other in zip(won, lost, strict=True)]
    signs = [1 if it.sum() >= other.sum() else -1 for it, other in zip(won, lost, strict=True)]
    shifts = len(groups) * (signs[0] * turns[0] - signs[1] * turns[1])
    test = _exchanged(won, lost, abs(moved), random)
    return row | _change(moved, mean_interval(moved + shifts.round(12)), test)


def _exchanged(
    won: tuple[Floats, Floats],
    lost: tuple[Floats, Floats],
    observed: float,
    random: np.random.Generator,
) -> float:
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
        return float(as_far.mean())
    return float((as_far.sum() + 1) / (as_far.size + 1))


def _moved(
    won_before: Floats, won_after: Floats, lost_before: Floats, lost_after: Floats
) -> Floats:
    """Return |ln ratio before| − |ln ratio after|, ½ added to each count (Haldane 1956)."""
    before = np.abs(np.log((won_before + 0.5) / (lost_before + 0.5)))
    after = np.abs(np.log((won_after + 0.5) / (lost_after + 0.5)))
    return np.asarray(before - after)


def _log_odds_change(groups: Sequence[Sequence[Couple]]) -> Row:
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
        return {"pairs": 0}
    before, after = (sums.sum(0) / pairs.sum()).tolist()
    row = {"pairs": int(pairs.sum()), "before": before, "after": after}
    for side, when in enumerate(("before", "after")):
        low, high = ends_of(ratio_interval(sums[:, side], pairs))
        row |= {f"{when}_low": low, f"{when}_high": high}
    shrunk = sums @ np.sign([before, -after])
    return row | _change(abs(before) - abs(after), ratio_interval(shrunk, pairs), None)


def _change(difference: float, interval: Interval | None, p: float | None) -> Row:
    low, high = ends_of(interval)
    return {"difference": difference, "low": low, "high": high, "p": p}


def _counts(
    groups: Sequence[Sequence[Couple]], holds: Callable[[PairOutcome], bool]
) -> tuple[Floats, Floats]:
    """Return for each query how many of its pairs something holds of, before and after."""
    before, after = (
        np.array([sum(holds(couple[side]) for couple in group) for group in groups], np.float64)
        for side in (0, 1)
    )
    return before, after


def _of(records: Iterable[PairRecord], collection: str, kinds: Sequence[str]) -> list[PairRecord]:
    return [it for it in records if it.collection == collection and it.kind in kinds]


def _pair(record: PairRecord) -> tuple[str, ...]:
    return (
        record.collection,
        record.query,
        record.kind,
        record.protected,
        record.unprotected,
    )
