"""The keywords of searches, answers, probes and audits, for editors and type checkers.

What each one means, its default and its range stand in the model that it is a field of:
:class:`fairqr.graph.search.context.Context` for a search, with
:class:`fairqr.graph.answer.context.AnswerSettings` for an answer, with
:class:`fairqr.graph.probe.context.ProbeSettings` for a probe, and
:class:`fairqr.evaluation.audit.specification.AuditSpec` for an audit. A keyword that is left out,
or is None, has its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from fairqr.agents.ranking.rankers import Persona, Shown
    from fairqr.graph.probe.context import ProbeKind
    from fairqr.graph.search.context import (
        Ask,
        Budget,
        FinalRound,
        FinalStep,
        Groups,
        Method,
        Pool,
        RankingSettings,
        Rerank,
    )
    from fairqr.retrieval.fairness.divergence import Direction, Lack
    from fairqr.retrieval.fairness.exposure import Discount
    from fairqr.retrieval.fairness.relevance import EvidenceWeights
    from fairqr.retrieval.fairness.target import Target
    from fairqr.retrieval.rerankers.fair import OverAttributes, WithinGroups
    from fairqr.retrieval.sampling.plackett_luce import Form

    Names = str | Sequence[str]
    Settings = Mapping[str, Any]


class SearchKeywords(TypedDict, total=False):
    """The keywords of a search. ``attribute`` takes one attribute or several."""

    attribute: Names | None
    attributes: Names | None
    intersect: bool | None
    target: Target | Names | None
    k: int | None
    page: int | None
    method: Method | None
    depth: int | None
    pool: Pool | None
    rerank: Rerank | None
    final_step: FinalStep | None
    ranking: RankingSettings | Settings | None
    options: Settings | None
    ask: Ask | None
    least_gain: float | None
    fairness_weight: float | None
    front: Sequence[float] | None
    order: WithinGroups | None
    fairness: OverAttributes | None
    spread: Sequence[int] | None
    at_most: float | None
    equal_chance: bool | None
    certify: bool | None
    groups: Groups | None
    lack: Lack | None
    final_round: FinalRound | None
    discount: Discount | str | None
    threshold: float | None
    direction: Direction | None
    smoothing: float | None
    patience: int | None
    max_iterations: int | None
    max_groups: int | None
    word_weights: EvidenceWeights | Settings | None
    rrf_k: int | None
    prompts: Mapping[str, str] | None
    temperature: float | None
    seed: int | None
    budget: Budget | Settings | None
    review: bool | None


class AnswerKeywords(SearchKeywords, total=False):
    """The keywords of an answer: how to search, how to sample, and how to answer.

    ``k`` is the number of documents to sample from; ``temperature`` applies to the answer.
    """

    answer: Settings | None
    alpha: float | None
    form: Form | None
    samples: int | None
    documents: int | None
    hypothesis: str | None
    stream: bool | None


class ProbeKeywords(SearchKeywords, total=False):
    """The keywords of a probe: how to search, and what to ask the model.

    ``depth`` is how many of the ``k`` documents take part; ``seed`` applies to the probe.
    """

    probe: Settings | None
    protected: str | None
    words: tuple[str, str] | None
    kinds: Sequence[ProbeKind] | None
    pairs: int | None
    persona: Persona | None
    personas: Sequence[Persona] | None
    by: Literal["probabilities", "reply"] | None
    shown: Shown | None
    length: int | None
    window: int | None
    step: int | None


class AuditKeywords(TypedDict, total=False):
    """The keywords of an audit that say what it measures."""

    attributes: Names
    intersections: bool
    k: int
    depth: int
    discount: Discount | str
    target: Target | Names
    judge: Literal["relevance", "estimate"]
    reference: Mapping[str, str]
    sample: int | None
    widen: bool
    rerank: int
    pairs_by: str
    failures: float
    rare: float
    seed: int
