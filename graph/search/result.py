"""The result of a search: a contract that others read, and that the service returns.

The nodes work with the same records. Some say more in the state than in a result, which leaves out
what only the search itself needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal, Self

import numpy as np
from pydantic import Field

from fairqr.base.notebook import paragraphs, table
from fairqr.graph.running import UsageReport
from fairqr.graph.search.context import Frozen, Method
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, intersection
from fairqr.retrieval.fairness.objective import DIGITS
from fairqr.retrieval.fairness.table import shares_in_groups
from fairqr.retrieval.rerankers.certificate import Among, Certificate

Settled = Literal["converged", "little_to_gain", "no_hits", "no_improvement", "no_new_words"]
"""The reasons to stop because another round is not worth its cost."""

StopReason = Literal[Settled, "max_iterations", "budget", "model_failed", "not_refining"]
GroupKey = tuple[str, str]
"""The names of an attribute and of one of its groups."""


Shares = dict[str, dict[str, float]]
"""A share for each group, by attribute and then by group."""


class Objective(Frozen):
    """How good a list is; see `fairqr.retrieval.fairness.objective`."""

    relevance: float = Field(
        description=(
            "Its expected relevance, in [0, 1]: the share that it has of what the most relevant "
            "documents found would have."
        )
    )
    fairness: float = Field(description="How near its exposure is to the target, in [0, 1].")
    value: float = Field(
        description="relevance · fairness^w, where w is the mean weight of the attributes."
    )
    weight: float = Field(
        1.0,
        description=(
            "The weight of fairness; if a target was given for some attributes, theirs, and that "
            "of the others is 1."
        ),
    )
    bound: float | None = Field(
        None,
        description=(
            "No other order of the documents found that is `among` those bounded has a higher "
            "value; see `Certificate`. None for lists that the fair step did not make last, and "
            "with `certify` off."
        ),
    )
    price: Shares | None = Field(
        None,
        description=(
            "By attribute and group, how much relevance one more point of exposure costs near the "
            "best order; negative for groups with more than their target. None without `bound`."
        ),
    )
    bounded: float | None = Field(
        None,
        description=(
            "The value as the bound counts it, without what is left out. None without `bound`."
        ),
    )
    leaves_out: tuple[str, ...] = Field(
        (), description="The parameters that bound and price leave out, such as spread."
    )
    among: tuple[Among, ...] = Field(
        (),
        description=(
            "What the orders that are bounded have in common, if they are not all: they keep the "
            "engine's order of documents of the same groups (engine_order), or expose labelled "
            "documents as much as this list (labelled_exposure)."
        ),
    )
    broken: tuple[str, ...] = Field(
        (), description="A sentence for each limit, such as at_most, that the list does not obey."
    )

    def certified(self, certificate: Certificate | None) -> Self:
        """Return it with what a certificate says of the list, if there is one."""
        if certificate is None:
            return self
        return self.model_copy(update=asdict(certificate))

    @property
    def below_best(self) -> float | None:
        """By what share of the best value this is lower, at most; None without a bound."""
        if not self.bound or self.bounded is None:
            return None
        return max(0.0, 1 - self.bounded / self.bound)


class Tradeoff(Frozen):
    """What another weight of fairness would give."""

    weight: float = Field(description="The weight of fairness, of all attributes.")
    relevance: float = Field(
        description=(
            "As in `Objective`, of the list that the fair step would make of the same documents."
        )
    )
    fairness: float = Field(
        description=(
            "As in `Objective`, of the list that the fair step would make of the same documents."
        )
    )


class Reached(Objective):
    """What the fair step reached."""

    undefined: int = Field(description="How many attributes have no exposure.")
    missed: int = Field(
        description=(
            "By how many points a group missed a target that was given; 0 if by at most one."
        )
    )
    most: float = Field(
        description=(
            "What relevance is a share of; times it, values of different rounds can be compared."
        )
    )

    @property
    def worth(self) -> float:
        """The value on a scale that all rounds share, rounded as the value itself."""
        return round(self.value * self.most, DIGITS)

    @property
    def preference(self) -> tuple[float, ...]:
        """A key that sorts lists from best to worst.

        A target of one's own comes first, and then the lowest weight of fairness that led so near
        to it, which pays least relevance. The value is only comparable at the same weight.
        """
        return self.undefined, self.missed, self.weight, -self.worth


class Place(Frozen):
    """A document at its rank."""

    rank: int = Field(description="Counted from 1.")
    id: str
    title: str
    groups: Shares = Field(
        description=(
            "For each attribute, the share of each group in the document; empty if unknown."
        )
    )


class RankedDocument(Place):
    """A document of a ranking."""

    score: float = Field(
        description=(
            "The score before the final step: from the retriever, from fusion, or 1/rank if a "
            "model re-ranked."
        )
    )
    relevance: float | None = Field(
        None,
        description=(
            "The probability that it is relevant; None if the retriever does not estimate it."
        ),
    )
    evidence: dict[str, float] = Field(
        {},
        description=(
            "The probability by each kind of query: `query` by the original one, `topic`, "
            "`queries` and `passage` by those with the model's words of the topic, `group` by the "
            "best of those with its words of a group, `named` if its title holds a name that the "
            "model gave. Empty unless a model's words count."
        ),
    )


class Unused(Frozen):
    """A part of a model's reply that was not used."""

    text: str = Field(description="The part, or how it begins if it is long.")
    reason: str = Field(description="Why, in words that continue a sentence: `repeats the query`.")


class RefinedTopic(Frozen):
    """What a model says about the topic of the query."""

    words: list[str] = Field([], description="Words and phrases of the topic.")
    queries: list[str] = Field([], description="Other ways to ask, as whole queries.")
    passage: str = Field("", description="A made text, as a relevant document might say it.")
    status: str = Field("ok", description="`ok`, or why there are no words.")
    left_out: list[Unused] = Field([], description="What of the reply was not used.")


class RefinedGroup(Frozen):
    """What was added to the query for one group in a round."""

    attribute: str
    group: str
    keywords: list[str] = Field(
        [], description="The added words of the group; nothing is added unless the status is `ok`."
    )
    phrases: list[str] = Field([], description="The added phrases of topic and group.")
    names: list[str] = Field(
        [], description="The added names. They only find documents that hold one of them whole."
    )
    passage: str = Field("", description="A made text about the group.")
    dropped: list[str] = Field(
        [], description="Keywords of earlier rounds that this round removed."
    )
    reason: str = Field("", description="The model's reason, if the prompt asks for one.")
    status: str = Field("ok", description="`ok`, or why there are no words.")
    left_out: list[Unused] = Field([], description="What of the reply was not used.")


class Exposed(Frozen):
    """Exposure in the first k documents of a list, by attribute and group."""

    exposure: Shares = Field(description="Zeros for an attribute if no document has a label.")
    divergence: float | None = Field(
        description=(
            "KL(ε*‖ε) in nats, the mean over the attributes that have one; None if none has."
        )
    )
    divergences: dict[str, float | None] = Field(
        description="The divergence of each attribute; None if no document has a label."
    )


class Measured(Exposed):
    """Exposure, and how much of it went to nobody."""

    unknown: dict[str, float] = Field(
        description=(
            "For each attribute, the share of exposure that went to documents without a label."
        )
    )

    @property
    def distance(self) -> tuple[int, float]:
        """A key that sorts lists from best to worst; undefined divergences are worst."""
        undefined = sum(value is None for value in self.divergences.values())
        return undefined, self.divergence or 0.0


class FairList(Measured):
    """The ranking that the fair step made of all documents found up to a round."""

    iteration: int
    ids: list[str]
    scores: list[float]
    relevance: float | None = Field(
        description=(
            "The mean probability of relevance over the ranking, weighted by the discount; None if "
            "none is estimated."
        )
    )
    objective: Reached


class Iteration(Exposed):
    """A round: 0 is the original query, and each later round a refinement.

    `ids` are the first k documents that the round retrieved, before any re-ranking; exposure and
    divergence are measured on them. `objective` is what the fair step then reaches with all
    documents found so far, by what the search knows of relevance in the end; None if the method has
    another step. `topic` is what the model was asked about the topic in this round, if it was.
    See `SearchResult` for what None means otherwise.
    """

    index: int
    queries: list[str]
    topic: RefinedTopic | None = None
    refinements: list[RefinedGroup]
    ids: list[str] = Field([])
    objective: Objective | None = None


class Round(Iteration, Measured):
    """A round as the search itself sees it, which decides by what a result leaves out."""

    objective: Reached | None

    @property
    def badness(self) -> tuple[tuple[float, ...], int]:
        """A key that sorts rounds from best to worst: by the objective, or else the divergence."""
        best = self.distance if self.objective is None else self.objective.preference
        return best, self.index


class RankingCost(Frozen):
    """The largest cost of a model that re-ranks or is probed."""

    documents: int = Field(0, description="How many documents it reads.")
    calls: int = Field(0, description="How often it is asked.")
    tokens: int = Field(0, description="The approximate number of tokens that it reads and writes.")


class Gaps(Frozen):
    """What groups lack of their target, by attribute and group, in shares of the exposure."""

    unattainable: Shares = Field(
        description="What no ranking of the relevant documents found could give."
    )
    ranking: Shares = Field(
        description="What this ranking withholds, though such documents were found."
    )


class Baseline(Exposed):
    """The baseline ranking of the original query; see `SearchResult` for the fields."""

    ranking: list[RankedDocument]
    relevance: float | None = None
    expected_relevance: float | None = None
    objective: Objective | None = None
    gaps: Gaps | None = None


class WithoutModel(Frozen):
    """What the same search gives without asking the model."""

    divergence: float | None = Field(description="The divergence of that ranking from the target.")
    relevance: float | None = Field(
        description="The mean probability of relevance in that ranking."
    )
    objective: Objective = Field(description="How good that ranking is.")
    documents: int = Field(
        description=(
            "How many documents are in the returned ranking only because of the model's queries."
        )
    )


class Reranking(Frozen):
    """How re-ranking by a model went."""

    ranker: str = Field(
        description="The ranker and its model, e.g. `listwise(local:smollm2-135m, 20/10)`."
    )
    lists: int = Field(description="1, or 0 if the budget had no room.")
    documents: int = Field(description="How many documents it read.")
    asked: int = Field(
        description=(
            "How many questions it was asked: windows, or comparisons in both orders; 0 for a "
            "model that scores each document alone."
        )
    )
    failures: dict[str, int] = Field(description="How many questions failed, by status.")
    repairs: dict[str, int] = Field(
        description="How many documents were repaired in replies, by kind."
    )


class SearchResult(Frozen):
    """A fair search."""

    query: str = Field(description="The query as given.")
    corpus: str = Field(description="The index that was searched.")
    method: Method = Field(description="One of `METHODS`.")
    retriever: str = Field(
        "bm25", description="`bm25`, `dense:…` for vectors, or `hybrid:…` for both."
    )
    model: str | None = Field(description="The model that refined; None if no model was asked.")
    prompts: list[PromptReference] = Field(description="The prompts of the refiner.")
    ranker: str | None = Field(
        None, description="The ranker and its model; None if no model re-ranked."
    )
    reranking: Reranking | None = Field(
        None, description="How re-ranking went; None if no model re-ranked."
    )
    attributes: list[str] = Field(description="The measured attributes.")
    target: Shares = Field(
        description="The target exposure ε*, by attribute and group; zeros if nothing was found."
    )
    target_origin: dict[str, str] = Field(
        {}, description="How the target of each attribute came about, as a phrase."
    )
    iterations: list[Iteration] = Field(description="All rounds, from the original query on.")
    unused_topic: RefinedTopic | None = Field(
        None, description="The last answer about the topic, if no query came from the last answers."
    )
    unused_refinements: list[RefinedGroup] = Field(
        [],
        description=(
            "The last answers about groups, if no query came from them; they belong to no round. "
            "The status of each says why."
        ),
    )
    best_iteration: int = Field(description="The index of the round that the ranking comes from.")
    stop_reason: StopReason = Field(description="Why the loop ended.")
    page: int = Field(
        1,
        description=(
            "Which page of the list this is, counted from 1. All figures but `iterations`, which "
            "are of the first page, are of this page alone, as if it were a list of its own; the "
            "best order is one of the documents that earlier pages left."
        ),
    )
    pages: int = Field(
        1, description="How many pages of k documents the list has; 0 if nothing was found."
    )
    ranking: list[RankedDocument] = Field(description="The k documents of the page.")
    exposure: Shares = Field(
        description=(
            "The exposure of each group in the ranking, by attribute; zeros if no document has a "
            "label."
        )
    )
    divergence: float | None = Field(
        description=(
            "KL(ε*‖ε) in nats, the mean over the attributes; None if no document has a label."
        )
    )
    divergences: dict[str, float | None] = Field(description="The divergence of each attribute.")
    unknown: dict[str, float] = Field(
        description=(
            "For each attribute, the share of exposure that went to documents without a label."
        )
    )
    relevance: float | None = Field(
        None,
        description=(
            "The mean probability of relevance in the ranking, weighted by the discount; None if "
            "the retriever does not estimate it."
        ),
    )
    expected_relevance: float | None = Field(
        None,
        description=(
            "What the ranking has of the highest expected relevance that the documents found "
            "allow, in [0, 1], as in `objective`. Without estimates it goes by the ranks of the "
            "original query: what that did not find counts as unlikely. None if the page is empty."
        ),
    )
    objective: Objective | None = Field(
        None,
        description=(
            "How good the ranking is; None if the method does not weigh relevance against "
            "fairness. Without estimates of relevance it goes by the engine's ranks."
        ),
    )
    front: list[Tradeoff] = Field(
        [], description="What each weight of fairness in `front` of the context would give."
    )
    attainable: Shares | None = Field(
        None,
        description=(
            "For each attribute, the exposure nearest to the target that the relevant documents "
            "found could give; None if no relevance was estimated, or the method does not look at "
            "it."
        ),
    )
    gaps: Gaps | None = Field(
        None, description="What each group still lacks; None without `attainable`."
    )
    without_model: WithoutModel | None = Field(
        None,
        description=(
            "What the search gives without the model; None if the model was not asked, or the "
            "method has no fair step, and for later pages than the first."
        ),
    )
    baseline: Baseline = Field(description="The same page of the baseline ranking.")
    explanation: list[str] = Field(
        [],
        description=(
            "Sentences that explain these numbers: what each group lacked and why, how relevance "
            "changed, and what the model brought. If no relevance was estimated, they say what "
            "that means."
        ),
    )
    usage: UsageReport = Field(description="The time, calls and tokens that the run took.")
    warnings: list[str] = Field(
        [], description="What the user should know about this result, in sentences."
    )

    def _repr_html_(self) -> str:
        """Return the ranking and the exposure of each group as tables, for a notebook."""
        ranking = []
        for document in self.ranking:
            groups = []
            for attribute in self.attributes:
                groups.append(", ".join(document.groups.get(attribute, {})))
            title = document.title or document.id
            ranking.append([document.rank, title, *groups, document.relevance])
        columns = ["rank", "title", *self.attributes, "relevance"]

        exposure = []
        for attribute, shares in self.exposure.items():
            before = self.baseline.exposure[attribute]
            target = self.target[attribute]
            for group, share in shares.items():
                exposure.append([attribute, group, before[group], share, target[group]])
        heads = ["attribute", "group", "exposure before", "exposure", "target"]
        return table(columns, ranking) + table(heads, exposure) + paragraphs(self.warnings)


def memberships_of(places: Sequence[RankedDocument], dimension: Dimension) -> FloatArray:
    """Return the share of each group in the documents of a ranking, shape (len(places), G)."""
    memberships = []
    for factor in dimension.factors:
        shares = [place.groups[factor.name] for place in places]
        if factor.is_found:
            memberships.append(shares_in_groups(shares, factor))
        else:
            rows = np.array([factor.ordered(groups) for groups in shares])
            memberships.append(rows.reshape(len(places), len(factor.universe)))
    return intersection(memberships)
