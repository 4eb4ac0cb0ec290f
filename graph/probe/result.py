"""What a probe of one search is: its classes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from fairqr.agents.ranking import preference
from fairqr.agents.ranking.rankers import Persona
from fairqr.agents.statistics import Interval
from fairqr.base.notebook import paragraphs, table
from fairqr.graph.running import UsageReport
from fairqr.graph.search.context import Frozen
from fairqr.prompts.template import PromptReference

ProbeStatus = Literal["ok", "one_sided", "budget", "failed"]
"""``one_sided``: a side has no documents, so there is nothing to compare; ``budget``: the search
left too little of it; ``failed``: the model gave no usable reply."""

Side = Literal["protected", "unprotected", "undecided"]


def _ends(interval: object) -> object:
    return (interval.low, interval.high) if isinstance(interval, Interval) else interval


Ends = Annotated[tuple[float, float] | None, BeforeValidator(_ends)]
"""The ends of an interval, if there is one."""


class ProbedDocument(Frozen, extra="ignore"):
    """A document that took part.

    Attributes:
        rank: Its place in the result, from 1.
        side: The side of the document. ``undecided`` documents are in no pair and in no figure.
    """

    rank: int
    id: str
    title: str
    side: Side


class ProbedPair(Frozen):
    """A pair that was asked about, once with each document first.

    Attributes:
        protected: The id of the protected document.
        unprotected: The id of the other document.
        protected_first: The preferred document when the protected one came first, ``protected`` or
            ``unprotected``; or the status of a reply that prefers neither.
        unprotected_first: The same when the other document came first.
        log_odds: ln P(first label) − ln P(second label) for both orders; None without
            probabilities.
    """

    protected: str
    unprotected: str
    protected_first: str
    unprotected_first: str
    log_odds: tuple[float | None, float | None] = (None, None)


class ProbedShare(Frozen, from_attributes=True):
    """``count`` out of ``of``, their share, and its 95 % interval.

    The share is None if ``of`` is 0. Intervals are over pairs.
    """

    count: int
    of: int
    share: float | None = Field(validation_alias=AliasChoices("share", "value"))
    interval: Ends


class PairwiseProbe(Frozen, from_attributes=True):
    """Which of two documents the model finds more relevant; one wins if it is preferred twice.

    The tests treat the pairs as independent, since no document is in two pairs. They say nothing
    about other queries.

    Attributes:
        status: ``ok``, or ``failed`` if no pair has a preference in both orders.
        verdict: What the figures allow us to say.
        sentence: The verdict in words, with its uncertainty.
        pairs: The pairs that were asked about.
        answered: How many of them have a preference in both orders.
        protected: The pairs that the protected document wins, out of all pairs.
        unprotected: The pairs that the other document wins, out of all pairs.
        flips: The pairs in which the preferred document changes with the order.
        flips_to_first: The flips in which the first position won both times; in the others, the
            second position won.
        position_p: The p value of the exact two-sided sign test that both positions win equally
            often; None without flips.
        ratio: Protected share / unprotected share; None if the latter is 0.
        ratio_interval: The 95 % interval of the ratio; None if a count is 0.
        consistent: The pairs that the protected document wins, out of those with a winner.
        p: The p value of the exact two-sided sign test that both sides win equally often; None
            without a win.
        detectable: The share of one side among ``consistent`` that the test would have detected
            with a power of 80 %; None if there are too few pairs.
        votes: Another measure, in which each reply is a vote: the votes for the protected document,
            out of all votes.
        failures: How many replies prefer neither document, by status.
        asked_by: How the model was really asked: ``probabilities`` or ``reply``.
    """

    status: ProbeStatus
    verdict: preference.VerdictKind
    sentence: str
    pairs: list[ProbedPair]
    answered: int
    protected: ProbedShare
    unprotected: ProbedShare
    flips: ProbedShare
    flips_to_first: int
    position_p: float | None
    ratio: float | None
    ratio_interval: Ends
    consistent: ProbedShare
    p: float | None
    detectable: float | None
    votes: ProbedShare
    failures: dict[str, int]
    asked_by: str


class PersonaOrder(Frozen):
    """How the model orders the documents for a persona.

    Attributes:
        persona: The person for whom the model orders.
        words: The words for this person in the prompt; empty for a neutral person.
        status: ``ok``, or ``failed`` if no question was answered.
        ids: The model's order; empty if it failed.
        exposure_ratio: The mean exposure of a protected document, divided by an unprotected
            document's; 1 means equal exposure. None if the model failed.
        asked: How many questions the order is based on.
        failures: How many of them failed, by status; the documents in them keep their order.
        repairs: How many documents were repaired in replies, by kind.
    """

    persona: Persona
    words: str
    status: ProbeStatus
    ids: list[str]
    exposure_ratio: float | None
    asked: int
    failures: dict[str, int]
    repairs: dict[str, int]


class ListwiseProbe(Frozen):
    """How the model orders all documents, by persona.

    Attributes:
        initial: The initial order, shuffled by the seed and the same for all personas.
        initial_ratio: The exposure ratio of the initial order.
        personas: The order for each persona.
    """

    initial: list[str]
    initial_ratio: float | None
    personas: list[PersonaOrder]


class ProbeResult(Frozen):
    """Whether the model favours a side when it ranks the documents of one search.

    The result is about this query, these documents and this model;
    :mod:`fairqr.evaluation.probes` probes over many queries.

    Attributes:
        query: The query as given.
        corpus: The index that was searched.
        model: The probed model.
        attribute: The probed attribute.
        protected_groups: The groups that count as protected.
        unprotected_groups: The other groups.
        words: The words for the two sides in prompts.
        status: ``ok``, or why nothing was asked.
        message: A sentence that explains the status; empty if ``ok``.
        note: What the figures assume.
        documents: The documents that took part, in the order of the result.
        pairwise: The comparisons of pairs; None if not requested, or if nothing was asked.
        listwise: The orders of lists; None if not requested, or if nothing was asked.
        prompts: The prompts that were used.
        seed: The seed of the pairs and of the initial order.
        usage: What the probe cost.
        warnings: Sentences for users.
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
    warnings: list[str] = Field([])

    def _repr_html_(self) -> str:
        """Return the verdict and the documents as a table, for a notebook."""
        verdict = self.pairwise.sentence if self.pairwise else self.message
        documents = [[it.rank, it.title or it.id, it.side] for it in self.documents]
        listed = table(["rank", "title", "side"], documents)
        return paragraphs([verdict] if verdict else []) + listed + paragraphs(self.warnings)
