"""The result of probing a model on the documents of a search: a contract for other programs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fairqr.agents.ranking.item_ranker import Asker
from fairqr.graph.usage import UsageReport
from fairqr.prompts.template import PromptReference

__all__ = [
    "AskerOrder",
    "ListwiseProbe",
    "PairwiseProbe",
    "ProbeResult",
    "ProbeStatus",
    "ProbeVerdict",
    "ProbedDocument",
    "ProbedPair",
    "ProbedShare",
    "Side",
]

ProbeStatus = Literal[
    "ok",
    "one_sided",  # one of the sides has no document, so there is nothing to compare
    "budget",  # what the search left of the budget has no room for it
    "failed",  # the model gave no usable reply at all
]
Side = Literal["protected", "unprotected", "undecided"]

ProbeVerdict = Literal[
    "favours_protected",
    "favours_unprotected",
    "no_lean_found",
    "position_decides",
    "too_few",
    "failed",
]
"""See :class:`fairqr.agents.ranking.verdict.Verdict`."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProbedDocument(_Frozen):
    """A document that took part.

    Attributes:
        rank: Its place in the result, from 1.
        id: The document's.
        title: The document's.
        side: ``undecided`` documents are in no pair, and count in no figure.
    """

    rank: int
    id: str
    title: str
    side: Side


class ProbedPair(_Frozen):
    """A pair that was asked about, once with each document first.

    Attributes:
        protected: The id of the protected document.
        unprotected: The id of the other.
        protected_first: Which document was preferred when the protected one came first,
            ``protected`` or ``unprotected``; or the status of a reply that prefers neither.
        unprotected_first: The same when the other came first.
        log_odds: ln P(first label) − ln P(second label) for both orders; None if not weighed.
    """

    protected: str
    unprotected: str
    protected_first: str
    unprotected_first: str
    log_odds: tuple[float | None, float | None] = (None, None)


class ProbedShare(_Frozen):
    """``count`` out of ``of``, their share, and its 95 % interval.

    The share is None if ``of`` is 0. Intervals are bootstrapped over pairs.
    """

    count: int
    of: int
    share: float | None
    interval: tuple[float, float] | None


class PairwiseProbe(_Frozen):
    """Which of two documents the model finds more relevant; one wins if it is preferred twice.

    The tests treat the pairs as independent, since no document is in two of them. They say nothing
    about other queries.

    Attributes:
        status: ``ok``, or ``failed`` if no pair has a preference in both orders.
        verdict: What the figures allow us to say.
        sentence: The verdict in words, with its uncertainty.
        pairs: The pairs that were asked about.
        answered: How many of them have a preference in both orders.
        protected: The pairs that the protected document wins, of all that were asked about.
        unprotected: The same of the other.
        flips: The pairs whose preferred document changes with the order.
        flips_to_first: The flips where the first position won both times; the others went to the
            second one.
        position_p: Of the exact two-sided sign test that neither position wins; None without flips.
        ratio: Protected share / unprotected share; None where the latter is 0.
        ratio_interval: Of 95 %; None where a count is 0.
        consistent: The pairs that the protected document wins, of those that either wins.
        p: Of the exact two-sided sign test that neither side wins; None without a win.
        detectable: The share of one side among ``consistent`` that the test would have found with a
            power of 80 %; None where there are too few.
        votes: Another measure: each reply that prefers a document is a vote; those for the
            protected one, of all votes.
        failures: How many replies prefer neither, by status.
        asked_by: ``probabilities`` or ``reply``: how the model was really asked.
    """

    status: ProbeStatus
    verdict: ProbeVerdict
    sentence: str
    pairs: list[ProbedPair]
    answered: int
    protected: ProbedShare
    unprotected: ProbedShare
    flips: ProbedShare
    flips_to_first: int
    position_p: float | None
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    consistent: ProbedShare
    p: float | None
    detectable: float | None
    votes: ProbedShare
    failures: dict[str, int]
    asked_by: str


class AskerOrder(_Frozen):
    """How the model orders the documents for somebody.

    Attributes:
        asker: For whom.
        words: What the prompt calls them; empty for nobody in particular.
        status: ``ok``, or ``failed`` where no question was answered.
        ids: The model's order; empty where it failed.
        exposure_ratio: Mean exposure of a protected document over that of an unprotected one, 1
            where they fare alike; None where it failed.
        asked: Questions that the order rests on.
        failures: How many of them failed, by status; documents stay there as they were before.
        repairs: How often replies were mended, by kind, in documents.
    """

    asker: Asker
    words: str
    status: ProbeStatus
    ids: list[str]
    exposure_ratio: float | None
    asked: int
    failures: dict[str, int]
    repairs: dict[str, int]


class ListwiseProbe(_Frozen):
    """How the model orders all documents, by asker.

    Attributes:
        initial: The order in which they were given, shuffled by the seed; the same for all askers.
        initial_ratio: Its exposure ratio, which an order that the model leaves as it is has too.
        askers: One order each.
    """

    initial: list[str]
    initial_ratio: float | None
    askers: list[AskerOrder]


class ProbeResult(_Frozen):
    """Whether the model favours a side when it ranks the documents of one search.

    It is about this query, these documents and this model: :mod:`fairqr.evaluation.probes` asks
    over many queries.

    Attributes:
        query: As it was asked.
        corpus: The index searched.
        model: What was probed.
        attribute: Of the corpus.
        protected_groups: The groups that count as protected.
        unprotected_groups: Those that do not.
        words: What the two sides are called.
        status: ``ok``, or why nothing was asked.
        message: The same for people; empty if ``ok``.
        note: What the figures take for granted.
        documents: Those that took part, in the order of the result.
        pairwise: None where it was not asked for, or nothing was asked.
        listwise: None likewise.
        prompts: Those that were used.
        seed: Of the pairs and of the initial order.
        usage: What the probe cost.
        warnings: Sentences for people.
    """

    query: str
    corpus: str
    model: str
    attribute: str
    protected_groups: list[str]
    unprotected_groups: list[str]
    words: tuple[str, str]
    status: ProbeStatus
    message: str
    note: str
    documents: list[ProbedDocument]
    pairwise: PairwiseProbe | None
    listwise: ListwiseProbe | None
    prompts: list[PromptReference]
    seed: int
    usage: UsageReport
    warnings: list[str] = []
