"""The result of answering a question: a contract that other programs read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fairqr.agents.attribution.verdicts import VerdictStatus
from fairqr.agents.replies import TextStatus
from fairqr.graph.search.context import Method
from fairqr.graph.usage import UsageReport
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.sampling.plackett_luce import Form

__all__ = [
    "AnswerCounts",
    "AnswerResult",
    "AnswerText",
    "AttributeExposure",
    "ExposedDocument",
    "GroupExposure",
    "RankingAnswer",
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RankingAnswer(_Frozen):
    """What was answered from one of the sampled rankings.

    Attributes:
        ids: The documents that the generator read, best first.
        samples: How many of the samples are this ranking.
        status: ``ok``, or why there is no answer.
        text: The answer; empty unless ``ok``.
        message: Why there is none, for people; empty if ``ok``.
        used: For each document whether the answer used it; None where that was not judged. Empty
            where nothing was.
        verdicts: For each document the status of the judgement.
        scores: For each document the probability, in [0, 1], that it entails the answer; None
            where the attributor has none.
    """

    ids: list[str]
    samples: int
    status: TextStatus
    text: str = ""
    message: str = ""
    used: list[bool | None] = []
    verdicts: list[VerdictStatus] = []
    scores: list[float | None] = []


class AnswerText(_Frozen):
    """An answer that one or several rankings gave, word for word.

    Attributes:
        text: The answer.
        samples: How many samples have it.
        rankings: How many distinct rankings gave it.
    """

    text: str
    samples: int
    rankings: int


class ExposedDocument(_Frozen):
    """A document of the pool, and how it fares over the samples.

    Attributes:
        rank: Its place in the final ranking, from 1.
        id: The document's.
        title: The document's.
        groups: For each attribute the share of each group in the document; no groups if unknown.
        exposure: The share of all samples whose generator read it, in [0, 1].
        attributed: The share of the judged samples that read it and used it, in [0, 1]; None where
            no sample was judged.
    """

    rank: int
    id: str
    title: str
    groups: dict[str, dict[str, float]]
    exposure: float
    attributed: float | None


class GroupExposure(_Frozen):
    """How a group fares over the samples.

    Attributes:
        group: Its name.
        target: Its share of ε*.
        exposure: Its share of the exposure that went to documents with a label; None if none did.
        attributed: Its share of the attributed exposure of documents with a label; None if there
            is none, or nothing was judged.
    """

    group: str
    target: float
    exposure: float | None
    attributed: float | None


class AttributeExposure(_Frozen):
    """How the groups of an attribute fare, each document counted by its shares of them.

    Attributes:
        attribute: The attribute, or a product such as ``gender×continent``.
        groups: All of its groups.
        unknown: The share of exposure that went to documents without a label.
        attributed_unknown: Likewise of attributed exposure; None if there is none.
    """

    attribute: str
    groups: list[GroupExposure]
    unknown: float
    attributed_unknown: float | None


class AnswerCounts(_Frozen):
    """Over how many the figures are.

    Attributes:
        samples: Drawn.
        rankings: Distinct ones among them; each was asked about once.
        answered: Samples with an answer.
        failed: Samples without one, by the status of the generation.
        judged: Samples with an answer of which at least one document could be judged.
        unjudged: Pairs of a document and an answer, over all samples with an answer, that could
            not be judged; 0 where nothing was to be.
    """

    samples: int
    rankings: int
    answered: int
    failed: dict[str, int]
    judged: int
    unjudged: int


class AnswerResult(_Frozen):
    """The answers to a question over sampled rankings, and whose documents they came from.

    The browsing model is the machine user's: it reads the first ``documents`` of a ranking alike,
    and nothing further. A document whose verdict is missing counts as not attributed, and is left
    out of its answer's attribution rate.

    Attributes:
        question: As it was asked.
        corpus: The index searched.
        method: That made the final ranking; see :data:`fairqr.graph.search.context.METHODS`.
        retriever: ``bm25``, or ``dense:…`` for vector search.
        generator: What answered.
        prompt: The prompt it was asked with.
        attributor: What judged; None if nothing was to be judged.
        hypothesis: What made answers into hypotheses.
        alpha, form: Of the sampling.
        pool: How many documents took part in it: the length of the final ranking.
        documents: How many documents of a ranking the generator read: k, at most ``pool``.
        seed: With it the same rankings are drawn again.
        temperature: Of the generator. None for the prompt's own, for a generator that draws
            nothing, and for a model of LangChain's that does not say its temperature.
        answers: One for each distinct ranking, in the order in which they were first drawn.
        distribution: The distinct answers, the most frequent first.
        ranking: The final ranking, which the samples were drawn from.
        groups: By attribute.
        disparity: EE-D/k = Σ ε_i²/k over the pool; from k/pool (all alike) to 1 (one ranking).
        attributed_disparity: EAE-D/k = Σ (ε^a_i)²/k; None where no sample was judged.
        attribution_rate: EAR, the mean over the judged samples of the share of the judged documents
            read that the answer used, in [0, 1]; None where no sample was judged.
        counts: Over how many.
        usage: What the run cost, refinement included.
        warnings: Sentences for people.
    """

    question: str
    corpus: str
    method: Method
    retriever: str
    generator: str
    prompt: PromptReference
    attributor: str | None
    hypothesis: str
    alpha: float
    form: Form
    pool: int
    documents: int
    seed: int
    temperature: float | None
    answers: list[RankingAnswer]
    distribution: list[AnswerText]
    ranking: list[ExposedDocument]
    groups: list[AttributeExposure]
    disparity: float
    attributed_disparity: float | None
    attribution_rate: float | None
    counts: AnswerCounts
    usage: UsageReport
    warnings: list[str] = []
