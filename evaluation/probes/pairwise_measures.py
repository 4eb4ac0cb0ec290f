"""Measures of pairs: which group a model prefers, and how sure that is.

Definitions: Wang et al. 2024, "Do Large Language Models Rank Fairly?", section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fairqr.agents.ranking.lean import (
    PairFigures,
    PairOutcome,
    Share,
    pair_figures,
    verdicts,
)
from fairqr.agents.statistics import Interval, stream
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.probes.collection import ProbeCollection
from fairqr.evaluation.probes.pairs import planned_pairs
from fairqr.evaluation.probes.store import PairRecord, ProbeRunManifest
from fairqr.graph.probe.builder import verdict_in_words

if TYPE_CHECKING:
    from pandas import DataFrame

PairKind = Literal["relevant", "irrelevant", "both", "relevance"]
"""``both`` is relevant and irrelevant pairs together; ``relevance`` is about no group: a relevant
item replaces the protected one, and an irrelevant one the other."""

SHARES = {
    "protected": "protected",
    "unprotected": "unprotected",
    "flips": "flips",
    "consistent": "protected of consistent",
    "votes": "votes for protected",
    "averaged": "averaged protected",
}
"""The names of the shares of :class:`fairqr.agents.ranking.lean.PairFigures` in CSV files."""


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
        import pandas as pd

        rows = [
            (row.collection, row.model, row.kind, *value)
            for row in self.figures.itertuples()
            for value in figure_values(row)
        ]
        columns = ["collection", "model", "pairs", "measure", "value", "low", "high", "count", "of"]
        return pd.DataFrame(rows, columns=columns, dtype=object)


def measure_pairwise(
    manifest: ProbeRunManifest,
    collections: Sequence[ProbeCollection],
    records: Iterable[PairRecord],
) -> MeasuredPairwise:
    """Measure the pairs of an experiment: each kind alone, and the two of groups together.

    Args:
        manifest: The settings that they were compared with.
        collections: The manifest's, in its order.
        records: The pairs that were compared; the missing ones are counted.

    Raises:
        InputError: The manifest belongs to another kind of experiment.
    """
    import pandas as pd

    experiment = manifest.pairs
    kinds: tuple[PairKind, ...] = ("relevant", "irrelevant", "both")
    kinds = (*kinds, "relevance") if experiment.relevance_pairs else kinds
    by_key = {record.key: record for record in records}
    rows: list[dict[str, Any]] = []
    for collection in collections:
        name, built = collection.manifest.name, collection.manifest
        drawn = (experiment.pairs, experiment.relevance_pairs, experiment.seed)
        planned = [(query.id, planned_pairs(query, *drawn)) for query in collection.queries]
        own, found = [], []
        for model, kind in ((model, kind) for model in experiment.models for kind in kinds):
            wanted = [
                [
                    (name, model, query, pair.kind, pair.protected.id, pair.unprotected.id)
                    for pair in pairs
                    if pair.kind in (("relevant", "irrelevant") if kind == "both" else (kind,))
                ]
                for query, pairs in planned
            ]
            asked = [by_key[key] for keys in wanted for key in keys if key in by_key]
            random = stream(experiment.seed, f"figures: {name}, {model}, {kind}")
            found.append(pair_figures(map(outcome_of, asked), random))
            own.append(
                {"collection": name, "model": model, "kind": kind}
                | figure_row(found[-1])
                | {
                    "queries_in_all": len(wanted),
                    "without_pairs": sum(not keys for keys in wanted),
                    "planned": sum(map(len, wanted)),
                    "model_calls": sum(record.spent.model_calls for record in asked),
                    "tokens": sum(record.spent.tokens for record in asked),
                }
            )
        # A reader sees all verdicts on a collection together, so they are one family for Holm.
        words = (built.protected, built.unprotected)
        for row, verdict, figures in zip(own, verdicts(found), found, strict=True):
            rows.append(
                row
                | {
                    "verdict": verdict.kind,
                    "lean": verdict.lean,
                    "p_holm": verdict.p,
                    "sentence": verdict_in_words(verdict, figures, words),
                }
            )
    return MeasuredPairwise(manifest, pd.DataFrame(rows))


def outcome_of(record: PairRecord) -> PairOutcome:
    """Return the outcome in a record."""
    return PairOutcome(
        record.query, record.protected_first, record.unprotected_first, record.log_odds
    )


def figure_row(figures: PairFigures) -> dict[str, Any]:
    """Return figures of pairs as the columns of a row; missing values are None.

    Each of :data:`SHARES` has five columns, see :func:`share_columns`. ``failures`` counts the
    replies that prefer neither item, by status. The others are named as in
    :class:`fairqr.agents.ranking.lean.PairFigures`.
    """
    low, high = ends_of(figures.ratio_interval)
    row: dict[str, Any] = {
        "pairs": figures.pairs,
        "queries": figures.queries,
        "answered": figures.answered,
        "replies": figures.replies,
        "failed": figures.failed,
        "failures": dict(figures.failures),
        "flips_to_first": figures.flips_to_first,
        "flips_to_second": figures.flips_to_second,
        "consistent_queries": figures.consistent_queries,
        "ratio": figures.ratio,
        "ratio_low": low,
        "ratio_high": high,
        "p_pairs": figures.p,
        "p_queries": figures.over_queries,
        "p_position": figures.position_p,
        "p_averaged": figures.averaged_p,
        "equal": figures.averaged_equal,
        "log_odds_replies": figures.log_odds_replies,
        "log_odds_mean": figures.log_odds_mean,
    }
    for name in SHARES:
        row |= share_columns(name, getattr(figures, name))
    return row


def share_columns(name: str, share: Share) -> dict[str, Any]:
    """Return the value of a share, both ends of its interval, its count and its total."""
    low, high = ends_of(share.interval)
    return {
        name: share.value,
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_count": share.count,
        f"{name}_of": share.of,
    }


def figure_values(row: Any) -> Iterator[tuple[object, ...]]:
    """Yield name, value, both ends of the interval, count and total of each figure of a row."""
    for name, title in SHARES.items():
        ends = (getattr(row, f"{name}_{end}") for end in ("low", "high", "count", "of"))
        yield title, getattr(row, name), *ends
    yield "ratio", row.ratio, row.ratio_low, row.ratio_high, None, None
    yield "p over pairs", row.p_pairs, None, None, None, row.consistent_of
    yield "p over queries", row.p_queries, None, None, None, row.consistent_queries
    yield "p of position", row.p_position, None, None, None, row.flips_count
    failures: Mapping[str, int] = row.failures
    for status, count in failures.items():
        yield f"failed: {status}", None, None, None, count, row.replies


def ends_of(interval: Interval | None) -> tuple[float | None, float | None]:
    """Return both ends of an interval, which may be None."""
    return (interval.low, interval.high) if interval else (None, None)
