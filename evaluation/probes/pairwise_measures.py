"""Measures of pairs: which group a model prefers, how sure that is, and what a tuning changed.

Definitions: Wang et al. 2024, "Do Large Language Models Rank Fairly?", sections 3.3 and 5. The
pairs before and after a tuning are the same. Tests and intervals are over queries, each with all of
its answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairqr.agents import statistics
from fairqr.agents.ranking import lean
from fairqr.agents.ranking.lean import PROTECTED, UNPROTECTED, PairFigures, PairOutcome, Share
from fairqr.evaluation.by_group import ratio_interval
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.probes.collection import planned_pairs
from fairqr.evaluation.probes.store import PairRecord, ProbeRunManifest, ProbeStore
from fairqr.graph.probe.builder import verdict_in_words

if TYPE_CHECKING:
    from pandas import DataFrame

GROUPS = {
    "relevant": ("relevant",),
    "irrelevant": ("irrelevant",),
    "both": ("relevant", "irrelevant"),
}
"""The kinds of pairs that are measured, by the kinds of their records."""

RELEVANCE = {"relevance": ("relevance",)}
"""Pairs about no group: a relevant item replaces the protected one, an irrelevant one the other."""

SHARES = {
    "protected": "protected",
    "unprotected": "unprotected",
    "flips": "flips",
    "consistent": "protected of consistent",
    "votes": "votes for protected",
    "averaged": "averaged protected",
}
"""The names of the shares of :class:`fairqr.agents.ranking.lean.PairFigures` in CSV files."""

CHANGES = {
    "ratio": "ratio nearer to 1",
    "consistent": "consistent",
    "log_odds": "log-odds nearer to 0",
    "both_orders": "both orders",
    "averaged": "averaged",
}
"""The names of changes in CSV files."""

_RENAMED = {
    "p": "p_pairs",
    "over_queries": "p_queries",
    "position_p": "p_position",
    "averaged_p": "p_averaged",
    "averaged_equal": "equal",
}

VALUES = ["measure", "value", "low", "high", "count", "of"]

_UNKNOWN = dict.fromkeys(("before", "after", "difference", "low", "high", "p"))

Couple = tuple[PairOutcome, PairOutcome]
"""The answers about a pair before and after tuning."""

Floats = NDArray[np.float64]
Row = dict[str, Any]


@dataclass(frozen=True)
class MeasuredPairwise(Measured):
    """The results of a pairwise experiment.

    Attributes:
        manifest: What it was run with: experiment, collections, prompts, notes.
        figures: One row for each collection, model and kind of pairs, in the experiment's order:
            what :func:`figure_row` returns; how many ``queries_in_all`` there are, how many of them
            have no such pair (``without_pairs``), and how many pairs are ``planned``; the
            ``verdict`` and its ``sentence``, ``lean`` and ``p_holm``, where all verdicts on a
            collection are one family; ``model_calls`` and ``tokens``.
    """

    frame_names = ("figures",)
    template = "pairwise"
    report = "fairqr.evaluation.probes.report"

    manifest: ProbeRunManifest
    figures: DataFrame

    @property
    def missing(self) -> int:
        """How many pairs have not been asked about."""
        # ``both`` counts the same pairs again.
        own = self.figures[self.figures.kind != "both"]
        return int((own.planned - own.pairs).sum())

    @property
    def table(self) -> DataFrame:
        """The figures, one in each row; the pairs themselves are in ``pairs.jsonl``."""
        rows = [
            (row.collection, row.model, row.kind, *value)
            for row in self.figures.itertuples()
            for value in figure_values(row)
        ]
        return _frame(rows, ["collection", "model", "pairs", *VALUES])


def measure_pairwise(store: ProbeStore) -> MeasuredPairwise:
    """Measure the pairs of an experiment: each kind alone, and the two of groups together.

    Raises:
        InputError: The folder holds no run, or a file of it is damaged.
    """
    import pandas as pd

    manifest = store.manifest()
    experiment: Any = manifest.experiment
    drawn = (experiment.pairs, experiment.relevance_pairs, experiment.seed)
    kinds = GROUPS | (RELEVANCE if experiment.relevance_pairs else {})
    by_key = {record.key: record for record in store.lines("pairs").read()}
    rows: list[Row] = []
    for collection in store.collections():
        name, words = collection.manifest.name, collection.manifest.words
        planned = [(it.id, pair) for it in collection.queries for pair in planned_pairs(it, *drawn)]
        own, found = [], []
        for model, kind in ((model, kind) for model in experiment.models for kind in kinds):
            wanted = [(query, pair) for query, pair in planned if pair.kind in kinds[kind]]
            keys = [
                (name, model, query, pair.kind, pair.protected.id, pair.unprotected.id)
                for query, pair in wanted
            ]
            asked = [by_key[key] for key in keys if key in by_key]
            random = statistics.stream(experiment.seed, f"figures: {name}, {model}, {kind}")
            found.append(lean.pair_figures(map(outcome_of, asked), random))
            own.append(
                {"collection": name, "model": model, "kind": kind, **figure_row(found[-1])}
                | {
                    "queries_in_all": len(collection.queries),
                    "without_pairs": len(collection.queries) - len({it for it, _ in wanted}),
                    "planned": len(wanted),
                    "model_calls": sum(record.spent["model_calls"] for record in asked),
                    "tokens": sum(record.spent["tokens"] for record in asked),
                }
            )
        # A reader sees all verdicts on a collection together, so they are one family for Holm.
        for row, verdict, figures in zip(own, lean.verdicts(found), found, strict=True):
            sentence = verdict_in_words(verdict, figures, words)
            rows.append(row | _told(verdict) | {"sentence": sentence})
    return MeasuredPairwise(manifest, pd.DataFrame(rows))


def outcome_of(record: PairRecord) -> PairOutcome:
    """Return the outcome in a record."""
    return PairOutcome(
        record.query, record.protected_first, record.unprotected_first, record.log_odds
    )


def figure_row(figures: PairFigures) -> Row:
    """Return figures of pairs as the columns of a row; missing values are None.

    Each of :data:`SHARES` has five columns: its value, the ends of its interval (``…_low``,
    ``…_high``), its count and its total. ``failed`` is the sum of ``failures``.
    """
    row: Row = {"failed": figures.failed}
    for name in (field.name for field in fields(figures)):
        found = getattr(figures, name)
        if isinstance(found, Share):
            row |= _share(name, found)
        elif name == "ratio_interval":
            row |= _ends("ratio_", found)
        else:
            row[_RENAMED.get(name, name)] = found
    return row


def figure_values(row: Any) -> Iterator[tuple[object, ...]]:
    """Yield name, value, both ends of the interval, count and total of each figure of a row."""
    for name, title in SHARES.items():
        ends = (getattr(row, f"{name}_{end}") for end in ("low", "high", "count", "of"))
        yield title, getattr(row, name), *ends
    yield "ratio", row.ratio, row.ratio_low, row.ratio_high, None, None
    yield "p over pairs", row.p_pairs, None, None, None, row.consistent_of
    yield "p over queries", row.p_queries, None, None, None, row.consistent_queries
    yield "p of position", row.p_position, None, None, None, row.flips_count
    for status, count in row.failures.items():
        yield f"failed: {status}", None, None, None, count, row.replies


def _share(name: str, share: Share) -> Row:
    ends = _ends(f"{name}_", share.interval)
    return {name: share.value, **ends, f"{name}_count": share.count, f"{name}_of": share.of}


def _ends(name: str, interval: statistics.Interval | None) -> Row:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {f"{name}low": low, f"{name}high": high}


def _told(verdict: lean.Verdict) -> Row:
    return {"verdict": verdict.kind, "lean": verdict.lean, "p_holm": verdict.p}


def _frame(rows: Sequence[tuple[object, ...]], columns: Sequence[str]) -> DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=[*columns], dtype=object)


@dataclass(frozen=True)
class MeasuredLora(Measured):
    """The results of a tuning.

    Attributes:
        manifest: What it was run with.
        figures: One row for each collection, kind of pairs, and ``when`` (``before`` or ``after``):
            what :func:`figure_row` returns, the ``verdict``, the ``lean`` beside it, and
            ``p_holm``.
        changes: One row for each collection, kind and ``measure``, see :func:`measure_changes`. All
            tests and verdicts on a collection are one family for Holm: ``tests`` is its size,
            ``p_holm`` the corrected p, and ``verdict`` is ``up`` or ``down`` if the change holds at
            5 %, ``too_few`` if no change could, ``none`` otherwise, and ``untested``.
        losses: One row for each step, in order.
        missing: How many pairs lack an answer before or after.
    """

    frame_names = ("figures", "changes", "losses")
    template = "tuning"
    report = "fairqr.evaluation.probes.report"

    manifest: ProbeRunManifest
    missing: int
    figures: DataFrame
    changes: DataFrame
    losses: DataFrame

    @property
    def table(self) -> DataFrame:
        """The figures before and after, and what changed, one in each row; relevance last."""
        rows: list[tuple[object, ...]] = []
        for (collection, kind), found in self.changes.groupby(["collection", "kind"], sort=False):
            own = self.figures.collection.eq(collection) & self.figures.kind.eq(kind)
            for figures in self.figures[own].itertuples():
                rows += [(collection, kind, figures.when, *it) for it in figure_values(figures)]
            for row in found.itertuples():
                name = CHANGES[row.measure]
                for when in ("before", "after") if kind == "relevance" else ():
                    ends = (getattr(row, f"{when}{end}") for end in ("", "_low", "_high"))
                    count = int(getattr(row, f"{when}_count"))
                    rows.append((collection, kind, when, name, *ends, count, row.pairs))
                change = (row.difference, row.low, row.high, None, row.pairs)
                rows.append((collection, kind, "change", name, *change))
        rows.sort(key=lambda row: row[1] == "relevance")
        return _frame(rows, ["collection", "pairs", "when", *VALUES])


def measure_lora(store: ProbeStore) -> MeasuredLora:
    """Measure how tuning changed the answers; an unfinished run gives the results so far.

    Raises:
        InputError: The folder holds no run, or a file of it is damaged.
    """
    import pandas as pd

    manifest = store.manifest()
    before, after = (store.lines(stage).read() for stage in ("before", "after"))
    splits = manifest.tuning.splits if manifest.tuning else ()
    asked = sum(sum(split.held_out_pairs.values()) for split in splits)
    figures: list[Row] = []
    changes: list[Row] = []
    for split in splits:
        couples = couples_of(split.collection, before, after)
        asked -= len(couples)
        own = measure_changes(split.collection, couples, manifest.experiment.seed)
        figures += own[0]
        changes += own[1]
    steps = sorted((it.model_dump() for it in store.losses.read()), key=lambda it: int(it["step"]))
    frames = (pd.DataFrame(rows) for rows in (figures, changes, steps))
    return MeasuredLora(manifest, asked, *frames)


def couples_of(
    collection: str, before: Iterable[PairRecord], after: Iterable[PairRecord]
) -> list[tuple[str, Couple]]:
    """Return the kind of each pair that was asked about both times, and its answers.

    Args:
        collection: The name of the collection of the pairs.
        before: The answers before tuning.
        after: Those after it.
    """
    later = {record.key: record for record in after if record.collection == collection}
    both = sorted((it for it in before if it.key in later), key=lambda it: it.key)
    return [(it.kind, (outcome_of(it), outcome_of(later[it.key]))) for it in both]


def measure_changes(
    collection: str, couples: Sequence[tuple[str, Couple]], seed: int
) -> tuple[list[Row], list[Row]]:
    """Return the rows of figures, before and after, and of changes of one collection.

    A change has ``pairs``, ``queries``, the values ``before`` and ``after`` with ``…_low``,
    ``…_high`` and, of a share, ``…_count``; the ``difference`` with ``low`` and ``high``, over
    queries; and ``p``, of a randomisation test over queries. Missing values are None. Its
    ``measure`` is one of these.

    - ``ratio``: of wins in both orders, protected to unprotected. The difference is |ln before| −
      |ln after|, with ½ added to each count so that it is always a number: above 0 the ratio is
      nearer to 1 after. There is no interval and no test if a count is 0.
    - ``consistent``: the share of pairs that either item wins in both orders.
    - ``log_odds``: the mean over pairs of half the sum of ln P(protected) − ln P(unprotected) in
      both orders, so that position cancels. The difference is |before| − |after|; no test.
    - ``both_orders`` and ``averaged``, of relevance pairs: the share whose relevant item wins in
      both orders, and by the sum of both log-odds.

    Args:
        collection: Its name.
        couples: As :func:`couples_of` returns them.
        seed: The seed of the tests.
    """
    rows: list[Row] = []
    found: list[PairFigures] = []
    changes: list[Row] = []
    for kind, kinds in (GROUPS | RELEVANCE).items():
        own = [couple for each, couple in couples if each in kinds]
        random = statistics.stream(seed, f"change: {collection}, {kind}")
        for side, when in enumerate(("before", "after")) if kind in GROUPS else ():
            found.append(lean.pair_figures([it[side] for it in own], random))
            ids = {"collection": collection, "kind": kind, "when": when}
            rows.append(ids | figure_row(found[-1]))
        for measure, row in _changes(own, kind, random):
            ids = {"collection": collection, "kind": kind, "measure": measure}
            changes.append(ids | _UNKNOWN | row)
    tests = [change["p"] for change in changes]
    corrected = statistics.corrected_by_holm([*map(lean.p_of_lean, found), *tests])
    size = sum(p is not None for p in corrected)
    for change, p in zip(changes, corrected[len(found) :], strict=True):
        few = statistics.too_few(change["queries"], lean.ALPHA / max(1, size))
        verdict = "untested" if p is None else "too_few" if few else "none"
        if p is not None and p <= lean.ALPHA:
            verdict = "up" if change["difference"] > 0 else "down"
        change |= {"tests": size, "p_holm": p, "verdict": verdict}
    judged = lean.verdicts(found, beside=tests)
    return [row | _told(verdict) for row, verdict in zip(rows, judged, strict=True)], changes


def _changes(
    couples: Sequence[Couple], kind: str, random: np.random.Generator
) -> Iterator[tuple[str, Row]]:
    """Yield the changes in the pairs of one kind, by measure."""
    at = np.unique([it.query for it, _ in couples], return_inverse=True)[1]
    pairs = np.bincount(at).astype(np.float64)

    def totals(values: Any) -> Floats:
        """Return the sums by query of what holds before and after, shape (2, queries)."""
        sides = np.asarray(values, dtype=np.float64).reshape(-1, 2).T
        return np.array([np.bincount(at, side, pairs.size) for side in sides])

    winners = np.array([[it.winner for it in both] for both in couples], object).reshape(-1, 2)
    balances = np.array([[it.balance for it in both] for both in couples], float).reshape(-1, 2)
    won, lost = totals(winners == PROTECTED), totals(winners == UNPROTECTED)
    counts = {"pairs": len(couples), "queries": pairs.size}
    if kind in GROUPS:
        yield "ratio", counts | _ratio_change(won, lost, random)
        yield "consistent", counts | _share_change(won + lost, pairs, random)
        known = ~np.isnan(balances).any(axis=1)
        asked = totals(np.stack([known, known], axis=1))[0]
        sums = totals(np.where(known[:, None], balances / 2, 0.0))[:, asked > 0]
        yield "log_odds", counts | _log_odds_change(sums, asked[asked > 0])
    elif couples:
        yield "both_orders", counts | _share_change(won, pairs, random)
        yield "averaged", counts | _share_change(totals(balances > 0), pairs, random)


def _share_change(counts: Floats, pairs: Floats, random: np.random.Generator) -> Row:
    """Return the change of the share of pairs that meet a condition."""
    row: Row = {}
    for when, own in zip(("before", "after"), counts, strict=True):
        interval = statistics.share_interval(own, pairs)
        row |= _share(when, Share(int(own.sum()), int(pairs.sum()), interval))
    if not pairs.size:
        return row
    gained = counts[1] - counts[0]
    test = statistics.paired_randomisation(gained, random)
    change = float(gained.sum() / pairs.sum())
    return row | _change(change, ratio_interval(gained, pairs), test)


def _ratio_change(won: Floats, lost: Floats, random: np.random.Generator) -> Row:
    """Return the change of the ratio of wins, and whether it is nearer to 1."""
    queries, sums = won.shape[1], (*won.sum(axis=1), *lost.sum(axis=1))
    if not queries:
        return {}
    before, after = (float(sums[it] / sums[it + 2]) if sums[it + 2] else None for it in (0, 1))
    moved = float(_moved(*sums))
    row = {"before": before, "after": after, **_change(moved, None, None)}
    if queries < 2 or not all(sums):
        return row
    # How far each query turns the logarithms of both ratios.
    turns = won / won.sum(axis=1, keepdims=True) - lost / lost.sum(axis=1, keepdims=True)
    signs = np.where(won.sum(axis=1) >= lost.sum(axis=1), 1, -1)
    shifts = queries * (signs[0] * turns[0] - signs[1] * turns[1])
    test = _exchanged(won, lost, abs(moved), random)
    return row | _change(moved, statistics.mean_interval(moved + shifts.round(12)), test)


def _exchanged(won: Floats, lost: Floats, observed: float, random: np.random.Generator) -> float:
    """Test that nothing changed: in each query, a coin says which answers were those before."""
    queries = won[0].size
    is_exact = queries <= statistics.EXACT_UP_TO
    if is_exact:
        swapped = (np.arange(1 << queries)[:, None] >> np.arange(queries)) & 1
    else:
        swapped = random.integers(0, 2, (statistics.PERMUTATIONS, queries), dtype=np.int8)
    counts = []
    for before, after in (won, lost):
        gained = swapped @ (after - before)
        counts += [before.sum() + gained, after.sum() - gained]
    # Equal values differ by rounding.
    as_far = np.abs(_moved(*counts)) >= observed - 1e-9
    return float(as_far.mean() if is_exact else (as_far.sum() + 1) / (as_far.size + 1))


def _moved(
    won_before: Floats, won_after: Floats, lost_before: Floats, lost_after: Floats
) -> Floats:
    """Return |ln ratio before| − |ln ratio after|, ½ added to each count (Haldane 1956)."""
    before = np.abs(np.log((won_before + 0.5) / (lost_before + 0.5)))
    after = np.abs(np.log((won_after + 0.5) / (lost_after + 0.5)))
    return np.asarray(before - after)


def _log_odds_change(sums: Floats, pairs: Floats) -> Row:
    """Return the change of the mean log-odds; no row of pairs without probabilities."""
    if not pairs.size:
        return {"pairs": 0}
    before, after = (sums.sum(axis=1) / pairs.sum()).tolist()
    row: Row = {"pairs": int(pairs.sum()), "before": before, "after": after}
    for own, when in zip(sums, ("before", "after"), strict=True):
        row |= _ends(f"{when}_", ratio_interval(own, pairs))
    shrunk = np.sign([before, -after]) @ sums
    return row | _change(abs(before) - abs(after), ratio_interval(shrunk, pairs), None)


def _change(difference: float, interval: statistics.Interval | None, p: float | None) -> Row:
    return {"difference": difference, **_ends("", interval), "p": p}
