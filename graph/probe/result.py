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
    """A document that took part."""

    rank: int = Field(description="Its place in the result, from 1.")
    id: str
    title: str
    side: Side = Field(
        description=(
            "The side of the document. `undecided` documents are in no pair and in no figure."
        )
    )


class ProbedPair(Frozen):
    """A pair that was asked about, once with each document first."""

    protected: str = Field(description="The id of the protected document.")
    unprotected: str = Field(description="The id of the other document.")
    protected_first: str = Field(
        description=(
            "The preferred document when the protected one came first, `protected` or "
            "`unprotected`; or the status of a reply that prefers neither."
        )
    )
    unprotected_first: str = Field(description="The same when the other document came first.")
    log_odds: tuple[float | None, float | None] = Field(
        (None, None),
        description=(
            "ln P(first label) − ln P(second label) for both orders; None without probabilities."
        ),
    )


class ProbedShare(Frozen, from_attributes=True):
    """`count` out of `of`, their share, and its 95 % interval.

    The share is None if `of` is 0. Intervals are over pairs.
    """

    count: int
    of: int
    share: float | None = Field(validation_alias=AliasChoices("share", "value"))
    interval: Ends


class PairwiseProbe(Frozen, from_attributes=True):
    """Which of two documents the model finds more relevant; one wins if it is preferred twice.

    The tests treat the pairs as independent, since no document is in two pairs. They say nothing
    about other queries.
    """

    status: ProbeStatus = Field(
        description="`ok`, or `failed` if no pair has a preference in both orders."
    )
    verdict: preference.VerdictKind = Field(description="What the figures allow us to say.")
    sentence: str = Field(description="The verdict in words, with its uncertainty.")
    pairs: list[ProbedPair] = Field(description="The pairs that were asked about.")
    answered: int = Field(description="How many of them have a preference in both orders.")
    protected: ProbedShare = Field(
        description="The pairs that the protected document wins, out of all pairs."
    )
    unprotected: ProbedShare = Field(
        description="The pairs that the other document wins, out of all pairs."
    )
    flips: ProbedShare = Field(
        description="The pairs in which the preferred document changes with the order."
    )
    flips_to_first: int = Field(
        description=(
            "The flips in which the first position won both times; in the others, the second "
            "position won."
        )
    )
    position_p: float | None = Field(
        description=(
            "The p value of the exact two-sided sign test that both positions win equally often; "
            "None without flips."
        )
    )
    ratio: float | None = Field(
        description="Protected share / unprotected share; None if the latter is 0."
    )
    ratio_interval: Ends = Field(
        description="The 95 % interval of the ratio; None if a count is 0."
    )
    consistent: ProbedShare = Field(
        description="The pairs that the protected document wins, out of those with a winner."
    )
    p: float | None = Field(
        description=(
            "The p value of the exact two-sided sign test that both sides win equally often; None "
            "without a win."
        )
    )
    detectable: float | None = Field(
        description=(
            "The share of one side among `consistent` that the test would have detected with a "
            "power of 80 %; None if there are too few pairs."
        )
    )
    votes: ProbedShare = Field(
        description=(
            "Another measure, in which each reply is a vote: the votes for the protected document, "
            "out of all votes."
        )
    )
    failures: dict[str, int] = Field(
        description="How many replies prefer neither document, by status."
    )
    asked_by: str = Field(description="How the model was really asked: `probabilities` or `reply`.")


class PersonaOrder(Frozen):
    """How the model orders the documents for a persona."""

    persona: Persona = Field(description="The person for whom the model orders.")
    words: str = Field(
        description="The words for this person in the prompt; empty for a neutral person."
    )
    status: ProbeStatus = Field(description="`ok`, or `failed` if no question was answered.")
    ids: list[str] = Field(description="The model's order; empty if it failed.")
    exposure_ratio: float | None = Field(
        description=(
            "The mean exposure of a protected document, divided by an unprotected document's; 1 "
            "means equal exposure. None if the model failed."
        )
    )
    asked: int = Field(description="How many questions the order is based on.")
    failures: dict[str, int] = Field(
        description="How many of them failed, by status; the documents in them keep their order."
    )
    repairs: dict[str, int] = Field(
        description="How many documents were repaired in replies, by kind."
    )


class ListwiseProbe(Frozen):
    """How the model orders all documents, by persona."""

    initial: list[str] = Field(
        description="The initial order, shuffled by the seed and the same for all personas."
    )
    initial_ratio: float | None = Field(description="The exposure ratio of the initial order.")
    personas: list[PersonaOrder] = Field(description="The order for each persona.")


class ProbeResult(Frozen):
    """Whether the model favours a side when it ranks the documents of one search.

    The result is about this query, these documents and this model;
    `fairqr.evaluation.probes` probes over many queries.
    """

    query: str = Field(description="The query as given.")
    corpus: str = Field(description="The index that was searched.")
    model: str = Field(description="The probed model.")
    attribute: str = Field(description="The probed attribute.")
    protected_groups: list[str] = Field(description="The groups that count as protected.")
    unprotected_groups: list[str] = Field(description="The other groups.")
    words: tuple[str, str] = Field(description="The words for the two sides in prompts.")
    status: ProbeStatus = Field(description="`ok`, or why nothing was asked.")
    message: str = Field(description="A sentence that explains the status; empty if `ok`.")
    note: str = Field(description="What the figures assume.")
    documents: list[ProbedDocument] = Field(
        description="The documents that took part, in the order of the result."
    )
    pairwise: PairwiseProbe | None = Field(
        description="The comparisons of pairs; None if not requested, or if nothing was asked."
    )
    listwise: ListwiseProbe | None = Field(
        description="The orders of lists; None if not requested, or if nothing was asked."
    )
    prompts: list[PromptReference] = Field(description="The prompts that were used.")
    seed: int = Field(description="The seed of the pairs and of the initial order.")
    usage: UsageReport = Field(description="What the probe cost.")
    warnings: list[str] = Field([], description="Sentences for users.")

    def _repr_html_(self) -> str:
        """Return the verdict and the documents as a table, for a notebook."""
        verdict = self.pairwise.sentence if self.pairwise else self.message
        rows = []
        for document in self.documents:
            rows.append([document.rank, document.title or document.id, document.side])
        documents = table(["rank", "title", "side"], rows)
        return paragraphs([verdict] if verdict else []) + documents + paragraphs(self.warnings)
