"""Counts over sampled rankings who was read, who was used, and what was answered.

The figures come from Kim & Diaz (2024), "Towards Fair RAG".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.agents.attribution.attributor import Attributor
from fairqr.agents.attribution.checking import unchecked_warning
from fairqr.agents.generators import Generator, temperature_of
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.answer.result import (
    AnswerCounts,
    AnswerResult,
    AnswerText,
    AttributeExposure,
    ExposedDocument,
    GroupExposure,
    RankingAnswer,
)
from fairqr.graph.answer.state import State
from fairqr.graph.search.result import RankedDocument, memberships_of
from fairqr.graph.usage import total_usage, usage_of, usage_report
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension, dimensions_of
from fairqr.retrieval.fairness.exposure import FloatArray


async def summarised(
    engine: SearchEngine,
    state: State,
    context: AnswerContext,
    *,
    generator: Generator,
    prompt: PromptReference,
    attributor: Attributor | None,
) -> AnswerResult:
    """Put the result together; see :class:`AnswerResult` for what its figures mean."""
    search, settings = state["result"], context.answer
    pool = [RankedDocument.model_validate(place) for place in search["ranking"]]
    ids = [document.id for document in pool]
    answers = _answers(state)
    read = len(answers[0].ids)
    judged = [answer for answer in answers if any(used is not None for used in answer.used)]
    exposure = mean_exposure(answers, ids)
    attributed = mean_exposure(judged, ids, used=True) if judged else None
    spent = [record["usage"] for record in [*state["generations"], *state["verdicts"]]]
    dimensions = dimensions_of(engine.schema, context.attributes, intersect=context.intersect)
    return AnswerResult(
        question=state["query"],
        corpus=engine.name,
        method=context.method,
        retriever=engine.retriever,
        generator=generator.name,
        prompt=prompt,
        attributor=attributor.name if attributor else None,
        hypothesis=settings.hypothesis,
        alpha=settings.alpha,
        form=settings.form,
        pool=len(pool),
        documents=read,
        seed=state["seed"],
        temperature=temperature_of(generator, settings.temperature),
        answers=answers,
        distribution=_distribution(answers),
        ranking=[
            ExposedDocument(
                rank=document.rank,
                id=document.id,
                title=document.title,
                groups=document.groups,
                exposure=float(exposure[place]),
                attributed=None if attributed is None else float(attributed[place]),
            )
            for place, document in enumerate(pool)
        ],
        groups=[
            _of_attribute(
                dimension,
                memberships_of(pool, dimension),
                search["target"][dimension.name],
                exposure,
                attributed,
            )
            for dimension in dimensions
        ],
        disparity=float(exposure @ exposure) / read,
        attributed_disparity=None if attributed is None else float(attributed @ attributed) / read,
        attribution_rate=attribution_rate(judged),
        counts=_counts(answers, judged),
        usage=usage_report(total_usage(spent, usage_of(search))),
        warnings=await _warnings(state, attributor, judged),
    )


def _answers(state: State) -> list[RankingAnswer]:
    """Join the sampled rankings with their answers and verdicts, one item per ranking."""
    generations = {record["number"]: record for record in state["generations"]}
    verdicts = {record["number"]: record for record in state["verdicts"]}
    answers: list[RankingAnswer] = []
    for ranking in state["sampled"]:
        generation, verdict = generations[ranking["number"]], verdicts.get(ranking["number"])
        judgement: dict[str, Any] = {}
        if verdict is not None:
            judgement = {
                "used": verdict["used"],
                "verdicts": verdict["statuses"],
                "scores": verdict["scores"],
            }
        answers.append(
            RankingAnswer(
                ids=ranking["ids"],
                samples=ranking["times"],
                status=generation["status"],
                text=generation["text"],
                message=generation["message"],
                **judgement,
            )
        )
    return answers


def _distribution(answers: Sequence[RankingAnswer]) -> list[AnswerText]:
    samples: dict[str, int] = {}
    rankings: dict[str, int] = {}
    for answer in answers:
        if answer.status == "ok":
            samples[answer.text] = samples.get(answer.text, 0) + answer.samples
            rankings[answer.text] = rankings.get(answer.text, 0) + 1
    # Sorting is stable: equally frequent answers stay in the order of their first draw.
    return [
        AnswerText(text=text, samples=samples[text], rankings=rankings[text])
        for text in sorted(samples, key=lambda text: -samples[text])
    ]


def _of_attribute(
    dimension: Dimension,
    members: FloatArray,
    target: Mapping[str, float],
    exposure: FloatArray,
    attributed: FloatArray | None,
) -> AttributeExposure:
    read, read_unknown = group_shares(members, exposure)
    used, used_unknown = (None, None) if attributed is None else group_shares(members, attributed)
    return AttributeExposure(
        attribute=dimension.name,
        groups=[
            GroupExposure(
                group=group,
                target=target[group],
                exposure=None if read is None else float(read[place]),
                attributed=None if used is None else float(used[place]),
            )
            for place, group in enumerate(dimension.groups)
        ],
        unknown=read_unknown or 0.0,
        attributed_unknown=used_unknown,
    )


def _counts(answers: Sequence[RankingAnswer], judged: Sequence[RankingAnswer]) -> AnswerCounts:
    failed: dict[str, int] = {}
    for answer in answers:
        if answer.status != "ok":
            failed[answer.status] = failed.get(answer.status, 0) + answer.samples
    return AnswerCounts(
        samples=sum(answer.samples for answer in answers),
        rankings=len(answers),
        answered=sum(answer.samples for answer in answers if answer.status == "ok"),
        failed=failed,
        judged=sum(answer.samples for answer in judged),
        unjudged=sum(answer.samples * answer.used.count(None) for answer in answers),
    )


async def _warnings(
    state: State, attributor: Attributor | None, judged: Sequence[RankingAnswer]
) -> list[str]:
    """Return the warnings of the search, and then those of answering."""
    warnings: list[str] = [*state["result"]["warnings"], *state["warnings"]]
    for record in state["verdicts"]:
        lost = sum(status not in ("ok", "empty_document") for status in record["statuses"])
        if lost:
            warnings += [f"Not every document could be judged. {m}" for m in record["messages"][:1]]
    if attributor is not None and judged:
        # This reads files.
        unchecked = await asyncio.to_thread(unchecked_warning, attributor)
        warnings += [unchecked] if unchecked else []
    return list(dict.fromkeys(warnings))


def mean_exposure(
    answers: Sequence[RankingAnswer], ids: Sequence[str], *, used: bool = False
) -> FloatArray:
    """Return the expected exposure of documents to a machine user, or the attributed exposure.

    ε_i = (1/N) Σ_s MU(rank_s(i)), where MU is 1 for documents that the generator reads and 0 for
    the others. For attributed exposure, a sample only counts if its answer used the document. (That
    formula is reconstructed, since it was illegible in our copy of the paper.)

    Args:
        answers: The documents read and used, with the number of samples; at least one answer.
        ids: The n documents of the pool, which include all that were read.
        used: Only count documents that were used; a missing verdict counts as not used.

    Returns:
        Shape (n,), each in [0, 1]. Exposure sums to the number of documents read.
    """
    place = {id_: position for position, id_ in enumerate(ids)}
    total = np.zeros(len(ids))
    for answer in answers:
        counted = answer.used if used else [True] * len(answer.ids)
        for id_, counts in zip(answer.ids, counted, strict=True):
            total[place[id_]] += answer.samples if counts else 0
    return total / sum(answer.samples for answer in answers)


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
    total = 0.0
    for answer in judged:
        known = [used for used in answer.used if used is not None]
        total += answer.samples * sum(known) / len(known)
    return total / sum(answer.samples for answer in judged)


def group_shares(
    members: FloatArray, exposure: FloatArray
) -> tuple[FloatArray | None, float | None]:
    """Return each group's share of the exposure with a label, (G,), and the share without a label.

    Args:
        members: The share of each group in each document, shape (n, G); rows sum to at most 1.
        exposure: The exposure of each document, shape (n,), at least 0.

    Returns:
        The groups' shares, which sum to 1, or None if no document with a label has exposure; and
        the share of all exposure without a label, in [0, 1], or None without any exposure.
    """
    mass = exposure @ members
    known, total = float(mass.sum()), float(exposure.sum())
    if total == 0:
        return None, None
    unknown = min(1.0, max(0.0, 1 - known / total))
    return (mass / known if known > 0 else None), unknown
