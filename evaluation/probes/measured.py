"""What comes of measuring a probe, as reports and commands show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fairqr.agents.ranking.item_ranker import Asker
from fairqr.base.statistics import Interval, Randomisation
from fairqr.evaluation.probes.records import Spent
from fairqr.evaluation.probes.store import ProbeRunManifest

if TYPE_CHECKING:
    from fairqr.agents.ranking.lean import PairFigures
    from fairqr.agents.ranking.verdict import Verdict

__all__ = [
    "AskerDifference",
    "Average",
    "ListwiseRow",
    "MeasuredListwise",
    "MeasuredPairwise",
    "PairKind",
    "PairwiseRow",
    "QueryValues",
    "RankDistribution",
]

PairKind = Literal["relevant", "irrelevant", "both", "relevance"]
"""``both`` is relevant and irrelevant pairs together; ``relevance`` is about no group: a relevant
item stands in the place of the protected one, and an irrelevant one in that of the other."""


@dataclass(frozen=True, slots=True)
class Average:
    """A mean over queries.

    Attributes:
        n: Over how many queries.
        mean: None where n is 0.
        sd: Standard deviation, with n − 1; None for fewer than two.
        interval: Bootstrap interval of the mean; None for fewer than two.
        left_out: Why queries are not among the n, with how many: ``failed`` (no question was
            answered), ``not_run``, ``empty_group`` (the ratio of a list that lacks a group),
            ``nothing_relevant``.
    """

    n: int
    mean: float | None = None
    sd: float | None = None
    interval: Interval | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankDistribution:
    """Where the protected items stand, over all queries that were ranked.

    Attributes:
        items: How many protected items.
        queries: In how many lists.
        normalised: (rank − ½)/n of each, ascending, in (0, 1); a uniform order has the mean ½.
        counts: How many are in each of as many equal bins of (0, 1) as there are counts.
        quantiles: Of ``normalised`` at .05, .25, .5, .75 and .95; empty without items.
        rank_quantiles: The same of the ranks themselves, which begin at 1.
        mean: Of ``normalised``; None without items.
        top: Share of protected items among the first k, averaged over lists; None without lists.
        expected_top: What that share would be in a random order: the share in the whole lists.
    """

    items: int
    queries: int
    normalised: tuple[float, ...]
    counts: tuple[int, ...]
    quantiles: tuple[float, ...]
    rank_quantiles: tuple[float, ...]
    mean: float | None
    top: float | None
    expected_top: float | None


@dataclass(frozen=True, slots=True)
class QueryValues:
    """The measures of one list.

    Attributes:
        query: Its id.
        precision: P@k; None where the ranking failed.
        ndcg: nDCG@k; None where the ranking failed, or nothing is relevant.
        ratio: Exposure ratio over the whole list; None where the ranking failed, or a group is
            empty.
        status: ``ok``, or ``failed``.
        share: Of the items that are protected; None where the ranking failed, or has no item.
    """

    query: str
    precision: float | None
    ndcg: float | None
    ratio: float | None
    status: Literal["ok", "failed"] = "ok"
    share: float | None = None


@dataclass(frozen=True, slots=True)
class ListwiseRow:
    """A ranker in one window, for one asker, on one collection.

    Attributes:
        collection, ranker, window, asker: Which; the window is empty where there is none.
        queries: How many the collection has.
        precision, ndcg, ratio: Over queries.
        ranks: Of the protected items.
        asked: Questions.
        failures: Of questions, by status.
        repairs: By kind, in items.
        warnings: What a reader should know, whole sentences, with how many lists they are about.
        spent: What it cost, cached replies as when they were made.
        by_query: One for each query that was run, in the collection's order.
    """

    collection: str
    ranker: str
    window: str
    asker: Asker
    queries: int
    precision: Average
    ndcg: Average
    ratio: Average
    ranks: RankDistribution
    asked: int
    failures: Mapping[str, int]
    repairs: Mapping[str, int]
    warnings: Mapping[str, int]
    spent: Spent
    by_query: tuple[QueryValues, ...]


@dataclass(frozen=True, slots=True)
class AskerDifference:
    """Query-side fairness: the protected asker's value less the unprotected one's, by query.

    Attributes:
        collection, ranker, window: Which.
        measure: ``precision`` or ``ndcg``.
        difference: Mean and interval over the queries that have both values.
        t_p: Of the paired t test; None where it has no value.
        randomisation: The paired randomisation test; None without queries.
        holm_p: The randomisation test's p corrected for all differences of the same measure (Holm
            1979) but those of the initial order, which are none; None where there is no p.
    """

    collection: str
    ranker: str
    window: str
    measure: Literal["precision", "ndcg"]
    difference: Average
    t_p: float | None
    randomisation: Randomisation | None
    holm_p: float | None


@dataclass(frozen=True, slots=True)
class MeasuredListwise:
    """What a listwise experiment found.

    Attributes:
        manifest: What it was run with: experiment, collections, prompts, notes.
        rows: In the experiment's order: by collection, ranker, window, asker.
        differences: Where both sensitive askers were run.
        missing: How many rankings have not been made.
    """

    manifest: ProbeRunManifest
    rows: tuple[ListwiseRow, ...]
    differences: tuple[AskerDifference, ...]
    missing: int = 0


@dataclass(frozen=True, slots=True)
class PairwiseRow:
    """A model on the pairs of one kind of one collection.

    Attributes:
        collection, model, kind: Which.
        queries: How many the collection has.
        without_pairs: Of them, how many have no such pair, since a cell is empty.
        planned: How many pairs there are to ask about.
        figures: What came of those that were asked; see :mod:`fairqr.agents.ranking.lean`. For
            ``relevance``, its protected share is how often the relevant item wins in both orders.
        verdict: In words; None for ``relevance``.
        spent: What it cost, cached replies as when they were made.
    """

    collection: str
    model: str
    kind: PairKind
    queries: int
    without_pairs: int
    planned: int
    figures: PairFigures
    verdict: Verdict | None
    spent: Spent


@dataclass(frozen=True, slots=True)
class MeasuredPairwise:
    """What a pairwise experiment found.

    Attributes:
        manifest: What it was run with: experiment, collections, prompts, notes.
        rows: In the experiment's order: by collection, model, kind.
        missing: How many pairs have not been asked about.
    """

    manifest: ProbeRunManifest
    rows: tuple[PairwiseRow, ...]
    missing: int = 0
