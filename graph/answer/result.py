"""The result of answering a question: a contract that other programs read."""

from __future__ import annotations

from pydantic import Field

from fairqr.agents.attribution.attributor import VerdictStatus
from fairqr.agents.models.replies import Status
from fairqr.graph.search.context import Frozen, Method
from fairqr.graph.search.result import Place
from fairqr.graph.steps import UsageReport
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.sampling.plackett_luce import Form


class SampledRanking(Frozen):
    """A distinct ranking among the samples.

    Attributes:
        ids: The documents that the generator reads, best first.
        samples: How many of the samples are this ranking.
    """

    ids: list[str]
    samples: int


class RankingAnswer(SampledRanking):
    """What was answered from one of the sampled rankings.

    Attributes:
        status: ``ok``, or why there is no answer.
        text: The answer; empty unless ``ok``.
        message: A sentence that says why there is no answer; empty if ``ok``.
        used: Whether the answer used each document; None if that was not judged. The list is empty
            if nothing was judged.
        verdicts: The status of the judgement of each document.
        scores: The probability, in [0, 1], that each document entails the answer; None if the
            attributor gives none.
    """

    status: Status
    text: str = ""
    message: str = ""
    used: list[bool | None] = Field([])
    verdicts: list[VerdictStatus] = Field([])
    scores: list[float | None] = Field([])


class AnswerText(Frozen):
    """A distinct answer, which one or several rankings gave word for word.

    Attributes:
        text: The answer.
        samples: How many samples have it.
        rankings: How many distinct rankings gave it.
    """

    text: str
    samples: int
    rankings: int


class ExposedDocument(Place, extra="ignore"):
    """A document of the pool, at its rank in the final ranking, and how it fares over the samples.

    Attributes:
        exposure: The share of all samples in which the generator read it, in [0, 1].
        attributed: The share of the judged samples in which the answer used it, in [0, 1]; None if
            no sample was judged.
    """

    exposure: float
    attributed: float | None


class GroupExposure(Frozen):
    """How a group fares over the samples.

    Attributes:
        target: Its share of ε*.
        exposure: Its share of the exposure that went to documents with a label; None if none did.
        attributed: Its share of the attributed exposure of documents with a label; None if there
            is none, or nothing was judged.
    """

    group: str
    target: float
    exposure: float | None
    attributed: float | None


class AttributeExposure(Frozen):
    """How the groups of an attribute fare. A document counts for each group by its share.

    Attributes:
        attribute: The attribute, or a product such as ``gender×continent``.
        groups: All of its groups.
        unknown: The share of exposure that went to documents without a label.
        attributed_unknown: The same share of attributed exposure; None if there is none.
    """

    attribute: str
    groups: list[GroupExposure]
    unknown: float
    attributed_unknown: float | None


class AnswerCounts(Frozen):
    """How many samples the figures are based on.

    Attributes:
        samples: The rankings that were drawn.
        rankings: The distinct rankings among them; each was answered once.
        answered: The samples with an answer.
        failed: The samples without an answer, by the status of the generation.
        judged: The samples with an answer and at least one judged document.
        unjudged: The pairs of a document and an answer that could not be judged, over all samples
            with an answer; 0 without an attributor.
    """

    samples: int
    rankings: int
    answered: int
    failed: dict[str, int]
    judged: int
    unjudged: int


class AnswerResult(Frozen):
    """The answers to a question over sampled rankings, and whose documents they used.

    The browsing model is a machine user who gives the first ``documents`` of a ranking equal
    attention, and the others none. A document without a verdict counts as not attributed, and is
    left out of the attribution rate of its answer.

    Attributes:
        question: The question as the user asked it.
        corpus: The index that was searched.
        method: The method of the final ranking; see :data:`fairqr.graph.search.context.METHODS`.
        retriever: ``bm25``, or ``dense:…`` for vector search.
        generator: The generator that answered.
        prompt: The prompt of the generator.
        attributor: The attributor that judged; None without one.
        hypothesis: The template that turns answers into hypotheses.
        alpha, form: How rankings were sampled.
        pool: How many documents were sampled from: the length of the final ranking.
        documents: How many documents of a ranking the generator read; at most ``pool``.
        seed: The seed that draws the same rankings again.
        temperature: The temperature of the generator. None means the prompt's own, a generator that
            does not sample, or a model of LangChain that does not state it.
        answers: One for each distinct ranking, in the order in which they were first drawn.
        distribution: The distinct answers, the most frequent first.
        ranking: The final ranking, which the samples were drawn from.
        groups: How the groups fare, by attribute.
        disparity: EE-D/k = Σ ε_i²/k over the pool; from k/pool (all equal) to 1 (one ranking).
        attributed_disparity: EAE-D/k = Σ (ε^a_i)²/k; None if no sample was judged.
        attribution_rate: EAR, the mean over the judged samples of the share of the judged documents
            that the answer used, in [0, 1]; None if no sample was judged.
        counts: How many samples the figures are based on.
        usage: What the run cost, refinement included.
        warnings: Sentences for users.
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
    warnings: list[str] = Field([])
