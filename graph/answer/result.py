"""What an answer is: its classes, and the figures that say whose documents were read and used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fairqr.agents.attribution.attributor import VerdictStatus
from fairqr.agents.models.replies import Status
from fairqr.base.notebook import paragraphs, table
from fairqr.graph.running import UsageReport
from fairqr.graph.search.context import Frozen, Method
from fairqr.graph.search.result import Place
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.fairness.exposure import FloatArray, item_exposure
from fairqr.retrieval.sampling.plackett_luce import Form


class SampledRanking(Frozen):
    """A distinct ranking among the samples."""

    ids: list[str] = Field(description="The documents that the generator reads, best first.")
    samples: int = Field(description="How many of the samples are this ranking.")


class RankingAnswer(SampledRanking):
    """What was answered from one of the sampled rankings."""

    status: Status = Field(description="`ok`, or why there is no answer.")
    text: str = Field("", description="The answer; empty unless `ok`.")
    message: str = Field(
        "", description="A sentence that says why there is no answer; empty if `ok`."
    )
    used: list[bool | None] = Field(
        [],
        description=(
            "Whether the answer used each document; None if that was not judged. The list is empty "
            "if nothing was judged."
        ),
    )
    verdicts: list[VerdictStatus] = Field(
        [], description="The status of the judgement of each document."
    )
    scores: list[float | None] = Field(
        [],
        description=(
            "The probability, in [0, 1], that each document entails the answer; None if the "
            "attributor gives none."
        ),
    )


class AnswerText(Frozen):
    """A distinct answer, which one or several rankings gave word for word."""

    text: str = Field(description="The answer.")
    samples: int = Field(description="How many samples have it.")
    rankings: int = Field(description="How many distinct rankings gave it.")


class ExposedDocument(Place, extra="ignore"):
    """A document of the pool at its final rank, and how it fares over the samples."""

    exposure: float = Field(
        description="The share of all samples in which the generator read it, in [0, 1]."
    )
    attributed: float | None = Field(
        description=(
            "The share of the judged samples in which the answer used it, in [0, 1]; None if no "
            "sample was judged."
        )
    )


class GroupExposure(Frozen):
    """How a group fares over the samples."""

    group: str
    target: float = Field(description="Its share of ε*.")
    exposure: float | None = Field(
        description=(
            "Its share of the exposure that went to documents with a label; None if none did."
        )
    )
    attributed: float | None = Field(
        description=(
            "Its share of the attributed exposure of documents with a label; None if there is "
            "none, or nothing was judged."
        )
    )


class AttributeExposure(Frozen):
    """How the groups of an attribute fare. A document counts for each group by its share."""

    attribute: str = Field(description="The attribute, or a product such as `gender×continent`.")
    groups: list[GroupExposure] = Field(description="All of its groups.")
    unknown: float = Field(
        description="The share of exposure that went to documents without a label."
    )
    attributed_unknown: float | None = Field(
        description="The same share of attributed exposure; None if there is none."
    )


class AnswerCounts(Frozen):
    """How many samples the figures are based on."""

    samples: int = Field(description="The rankings that were drawn.")
    rankings: int = Field(description="The distinct rankings among them; each was answered once.")
    answered: int = Field(description="The samples with an answer.")
    failed: dict[str, int] = Field(
        description="The samples without an answer, by the status of the generation."
    )
    judged: int = Field(description="The samples with an answer and at least one judged document.")
    unjudged: int = Field(
        description=(
            "The pairs of a document and an answer that could not be judged, over all samples with "
            "an answer; 0 without an attributor."
        )
    )


class AnswerResult(Frozen):
    """The answers to a question over sampled rankings, and whose documents they used.

    The browsing model is a machine user who gives the first `documents` of a ranking equal
    attention, and the others none. A document without a verdict counts as not attributed, and is
    left out of the attribution rate of its answer.
    """

    question: str = Field(description="The question as the user asked it.")
    corpus: str = Field(description="The index that was searched.")
    method: Method = Field(description="The method of the final ranking; see `METHODS`.")
    retriever: str = Field(description="`bm25`, or `dense:…` for vector search.")
    generator: str = Field(description="The generator that answered.")
    prompt: PromptReference = Field(description="The prompt of the generator.")
    attributor: str | None = Field(description="The attributor that judged; None without one.")
    hypothesis: str = Field(description="The template that turns answers into hypotheses.")
    alpha: float = Field(description="How rankings were sampled.")
    form: Form = Field(description="How rankings were sampled.")
    pool: int = Field(
        description="How many documents were sampled from: the length of the final ranking."
    )
    documents: int = Field(
        description="How many documents of a ranking the generator read; at most `pool`."
    )
    seed: int = Field(description="The seed that draws the same rankings again.")
    temperature: float | None = Field(
        description=(
            "The temperature of the generator. None means the prompt's own, a generator that does "
            "not sample, or a model of LangChain that does not state it."
        )
    )
    answers: list[RankingAnswer] = Field(
        description="One for each distinct ranking, in the order in which they were first drawn."
    )
    distribution: list[AnswerText] = Field(
        description="The distinct answers, the most frequent first."
    )
    ranking: list[ExposedDocument] = Field(
        description="The final ranking, which the samples were drawn from."
    )
    groups: list[AttributeExposure] = Field(description="How the groups fare, by attribute.")
    disparity: float = Field(
        description="EE-D/k = Σ ε_i²/k over the pool; from k/pool (all equal) to 1 (one ranking)."
    )
    attributed_disparity: float | None = Field(
        description="EAE-D/k = Σ (ε^a_i)²/k; None if no sample was judged."
    )
    attribution_rate: float | None = Field(
        description=(
            "EAR, the mean over the judged samples of the share of the judged documents that the "
            "answer used, in [0, 1]; None if no sample was judged."
        )
    )
    counts: AnswerCounts = Field(description="How many samples the figures are based on.")
    usage: UsageReport = Field(description="What the run cost, refinement included.")
    warnings: list[str] = Field([], description="Sentences for users.")

    def _repr_html_(self) -> str:
        """Return the answers and the exposure of each group as tables, for a notebook."""
        answers = [[answer.text, answer.samples] for answer in self.distribution]
        exposure = []
        for attribute in self.groups:
            for group in attribute.groups:
                shares = [group.exposure, group.attributed, group.target]
                exposure.append([attribute.attribute, group.group, *shares])
        heads = ["attribute", "group", "exposure", "used", "target"]
        return (
            table(["answer", "samples"], answers)
            + table(heads, exposure)
            + paragraphs(self.warnings)
        )


def distribution_of(answers: Sequence[RankingAnswer]) -> list[AnswerText]:
    """Return the distinct answers; equally frequent ones in the order of their first draw."""
    answered = [answer for answer in answers if answer.status == "ok"]
    rankings = Counter(answer.text for answer in answered)
    samples = Counter[str]()
    for answer in answered:
        samples[answer.text] += answer.samples
    return [
        AnswerText(text=text, samples=count, rankings=rankings[text])
        for text, count in samples.most_common()
    ]


def counts_of(answers: Sequence[RankingAnswer], judged: Sequence[RankingAnswer]) -> AnswerCounts:
    """Return how many samples the figures are based on."""
    times = Counter[str]()
    for answer in answers:
        times[answer.status] += answer.samples
    return AnswerCounts(
        samples=times.total(),
        rankings=len(answers),
        answered=times.pop("ok", 0),
        failed=dict(times),
        judged=sum(answer.samples for answer in judged),
        unjudged=sum(answer.samples * answer.used.count(None) for answer in answers),
    )


def mean_exposure(
    answers: Sequence[RankingAnswer], ids: Sequence[str], *, used: bool = False
) -> FloatArray:
    """Return the expected exposure of documents to a machine user, or the attributed exposure.

    See :func:`fairqr.retrieval.fairness.exposure.item_exposure`.

    Args:
        answers: The documents read and used, with the number of samples; at least one answer.
        ids: The n documents of the pool, which include all that were read.
        used: Only count documents that were used; a missing verdict counts as not used.
    """
    positions = {id_: position for position, id_ in enumerate(ids)}
    read = []
    gained = []
    for answer in answers:
        read.append([positions[id_] for id_ in answer.ids])
        gained.append([bool(verdict) for verdict in answer.used])
    samples = [answer.samples for answer in answers]
    return item_exposure(read, len(ids), samples, gained if used else 1.0)


def attribution_rate(judged: Sequence[RankingAnswer]) -> float | None:
    """Return EAR, the mean over samples of the share of read documents that the answer used.

    Args:
        judged: Answers with at least one verdict each. Documents without a verdict are left out of
            the share.

    Returns:
        The rate in [0, 1], or None if there is no answer.
    """
    if not judged:
        return None
    shares = []
    for answer in judged:
        verdicts = [verdict for verdict in answer.used if verdict is not None]
        shares.append(np.mean(verdicts))
    return float(np.average(shares, weights=[answer.samples for answer in judged]))


def group_shares(
    members: FloatArray, exposure: FloatArray | None
) -> tuple[list[float | None], float | None]:
    """Return each group's share of the exposure with a label, and the share without a label.

    Args:
        members: The share of each group in each document, shape (n, G); rows sum to at most 1.
        exposure: The exposure of each document, shape (n,), at least 0; None if there is none.

    Returns:
        The G shares, which sum to 1, or are None if no document with a label has exposure; and the
        share of all exposure without a label, in [0, 1], or None without any exposure.
    """
    if exposure is None:
        exposure = np.zeros(len(members))
    by_group = exposure @ members
    labelled = by_group.sum()
    shares: list[float | None] = [None] * len(by_group)
    if labelled > 0:
        shares = [float(share / labelled) for share in by_group]
    total = exposure.sum()
    if not total:
        return shares, None
    return shares, min(1.0, max(0.0, float(1 - labelled / total)))
