"""The nodes of the graph that answers: each takes the state and returns what it changes in it.

``prepare → retrieve → sample → generate → attribute → summarize``; ``retrieve`` is the graph that
searches, and ``generate`` runs once for each distinct ranking, several at a time.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from langchain_core.messages import AIMessageChunk
from langgraph.config import get_config
from langgraph.graph.message import push_message
from langgraph.types import Overwrite, Send
from pydantic import ValidationError

from fairqr.agents.attribution.attributor import Attributor, Entailment, Pair, hypothesis_of
from fairqr.agents.attribution.checking import unchecked_warning
from fairqr.agents.generators import GenerationRequest, temperature_of
from fairqr.agents.models.cache import ReplyCache, asking_with
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, ModelError, first_problem
from fairqr.base.loops import run_together
from fairqr.base.telemetry import current_span, span
from fairqr.graph import running
from fairqr.graph.answer.context import AnswerContext, AnswerSettings
from fairqr.graph.answer.parts import AnswerParts
from fairqr.graph.answer.result import (
    AnswerResult,
    AttributeExposure,
    ExposedDocument,
    GroupExposure,
    RankingAnswer,
    attribution_rate,
    counts_of,
    distribution_of,
    group_shares,
    mean_exposure,
)
from fairqr.graph.answer.state import AnswerState, RankingTask
from fairqr.graph.running import Update
from fairqr.graph.search.result import RankedDocument, memberships_of
from fairqr.graph.search.state import Record
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sampling.plackett_luce import sample_plackett_luce, stream_of

_NO_TIME_LEFT = "The time of the budget was spent before the answer was judged."
_NOTHING_TO_JUDGE = Entailment("empty_document", message="The document has no text.")


async def prepare(state: AnswerState, context: AnswerContext, parts: AnswerParts) -> Update:
    """Start the models, so that missing parts are found before anything is searched.

    Raises:
        ModelUnavailableError: No generator is given, or a model cannot be started.
        PromptError: There is no such prompt.
    """
    parts.prompt(context)
    await parts.generator.start()
    if parts.attributor is not None:
        await parts.attributor.start()
    seed = secrets.randbelow(2**31) if context.seed is None else context.seed
    # The thread may contain an earlier run.
    return {
        "seed": seed,
        "answers": Overwrite([]),
        "usages": Overwrite([]),
        "notes": [],
        "result": None,
        "answer": None,
    }


async def sample(state: AnswerState, context: AnswerContext, parts: AnswerParts) -> Update:
    """Draw rankings from the final one, and count equal ones.

    Raises:
        QueryError: No document matches the question.
    """
    result = state["result"]
    running.add_seconds(result)
    running.require_hits(result["ranking"], parts.engine, state["query"])
    rankings = _distinct_rankings(result["ranking"], context.answer, state["seed"], state["query"])
    running.record(seed=state["seed"], rankings=len(rankings))
    return {"sampled": rankings}


async def each_ranking(state: AnswerState) -> list[Send]:
    """Answer from each of the sampled rankings."""
    shared = {name: state[name] for name in ("query", "seed", "seconds")}
    return [Send("generate", {**shared, "ranking": ranking}) for ranking in state["sampled"]]


async def generate(task: RankingTask, context: AnswerContext, parts: AnswerParts) -> Update:
    """Answer the question from the documents of one ranking."""
    settings = context.answer
    generator = parts.generator
    prompt = parts.prompt(context)
    ranking = task["ranking"]
    sources = []
    for number, document in enumerate(await parts.engine.documents(ranking["ids"]), start=1):
        source = {"number": str(number), "title": document.title, "text": document.text}
        sources.append(source)
    temperature = settings.temperature
    if temperature is None:
        temperature = prompt.defaults.temperature
    is_deterministic = temperature_of(generator, temperature) == 0
    request = GenerationRequest(
        prompt=prompt,
        question=task["query"],
        sources=sources,
        temperature=settings.temperature,
        # At temperature 0, a seed would only prevent hits in the cache.
        seed=None if is_deterministic else task["seed"],
    )

    message_id = str(uuid.uuid4())

    def publish(piece: str) -> None:
        push_message(AIMessageChunk(content=piece, id=message_id), state_key=None)

    # Only the one ranking of all samples: nobody can read pieces of several answers at once.
    is_only_ranking = ranking["samples"] == settings.samples
    on_token = publish if settings.stream and is_only_ranking else None
    reply = await generator.generate(request, running.seconds_left(context), on_token)
    running.record(status=reply.status)
    current_span().content("fairqr.answer", reply.text)
    answer = RankingAnswer(**ranking, status=reply.status, text=reply.text, message=reply.message)
    return {"answers": [answer.model_dump()], "usages": [asdict(reply.usage)]}


async def attribute(state: AnswerState, context: AnswerContext, parts: AnswerParts) -> Update:
    """Judge which documents of its ranking each answer used, several answers at a time."""
    attributor = cast("Attributor", parts.attributor)
    answers = _answers(state)
    most_at_once = get_config().get("max_concurrency") or running.CONCURRENCY
    turns = asyncio.Semaphore(most_at_once)

    async def judge(answer: RankingAnswer) -> list[Entailment]:
        if answer.status != "ok":
            return []
        async with turns:
            return await _judge(answer, attributor, context, parts.engine)

    # Several answers may be the same, and judged by the same documents.
    with asking_with(cache=ReplyCache()):
        verdicts_by_answer = await run_together([judge(answer) for answer in answers])

    judged_answers = []
    notes = []
    spent = Usage()
    for answer, verdicts in zip(answers, verdicts_by_answer, strict=True):
        judged_answers.append(_with_verdicts(answer, verdicts))
        notes += _notes_on(verdicts)
        spent = sum((verdict.usage for verdict in verdicts), spent)
    return {
        "answers": Overwrite(judged_answers),
        "usages": [asdict(spent)],
        "notes": notes,
    }


def _notes_on(verdicts: Sequence[Entailment]) -> list[str]:
    """Return a sentence if a document of an answer could not be judged."""
    statuses = {verdict.status for verdict in verdicts}
    if statuses <= {"ok", "empty_document"}:
        return []
    message = next((verdict.message for verdict in verdicts if verdict.message), "")
    return [f"Not every document could be judged. {message}".rstrip()]


async def summarize(state: AnswerState, context: AnswerContext, parts: AnswerParts) -> Update:
    """Put the result together: the answers, and the exposure of documents and groups.

    Raises:
        ModelError: No sample has an answer.
    """
    search = state["result"]
    settings = context.answer
    answers = _answers(state)
    warnings = [*search["warnings"], *state["notes"], *_warnings_of_failures(answers, settings)]
    judged = [answer for answer in answers if any(used is not None for used in answer.used)]
    if parts.attributor is not None and judged:
        # This reads files.
        warnings.append(await asyncio.to_thread(unchecked_warning, parts.attributor))

    pool = [RankedDocument.model_validate(record) for record in search["ranking"]]
    ids = [document.id for document in pool]
    k = len(answers[0].ids)
    exposure = mean_exposure(answers, ids)
    attributed = None
    attributed_disparity = None
    if judged:
        attributed = mean_exposure(judged, ids, used=True)
        attributed_disparity = attributed @ attributed / k
    spent = sum((Usage(**usage) for usage in state["usages"]), running.usage_of(search))

    result = AnswerResult(
        question=state["query"],
        corpus=search["corpus"],
        method=search["method"],
        retriever=search["retriever"],
        generator=parts.generator.name,
        prompt=parts.prompt(context).reference,
        attributor=parts.attributor.name if parts.attributor else None,
        hypothesis=settings.hypothesis,
        alpha=settings.alpha,
        form=settings.form,
        pool=len(pool),
        documents=k,
        seed=state["seed"],
        temperature=temperature_of(parts.generator, settings.temperature),
        answers=answers,
        distribution=distribution_of(answers),
        ranking=_exposed_documents(pool, exposure, attributed),
        groups=_group_exposures(pool, exposure, attributed, search["target"], context, parts),
        disparity=exposure @ exposure / k,
        attributed_disparity=attributed_disparity,
        attribution_rate=attribution_rate(judged),
        counts=counts_of(answers, judged),
        usage=running.usage_report(spent),
        warnings=list(dict.fromkeys(filter(None, warnings))),
    )
    models = {"generator": result.generator, "attributor": result.attributor}
    running.record_outcome(result.usage, [result.prompt], **models)
    return {"answer": result.model_dump(mode="json")}


def _distinct_rankings(
    ranking: Sequence[Mapping[str, Any]], settings: AnswerSettings, seed: int, query: str
) -> list[Record]:
    """Draw rankings by Plackett–Luce, and return each distinct one once.

    The document at rank i gets the i-th greatest score of the ranking. A fair re-ranking moves
    documents without changing their scores; with this rule, its order counts. A ranking by score,
    such as a baseline ranking, keeps its own scores.

    Args:
        ranking: The final ranking: ``id`` and ``score`` of each document, best first; at least one.
        settings: How many rankings to draw, how sharply, and how many documents of each are read.
        seed: With the same seed, query and ranking, the same rankings are drawn.
        query: The original query.

    Returns:
        Objects of :class:`fairqr.graph.answer.result.SampledRanking`, in the order of their first
        draw.
    """
    worths = sorted((document["score"] for document in ranking), reverse=True)
    stream = stream_of(seed, query)
    drawn = sample_plackett_luce(
        worths, settings.alpha, settings.samples, settings.documents, stream, settings.form
    )
    rankings: list[Record] = []
    for positions, samples in Counter(map(tuple, drawn.tolist())).items():
        ids = [ranking[position]["id"] for position in positions]
        rankings.append({"ids": ids, "samples": samples})
    return rankings


def _answers(state: AnswerState) -> list[RankingAnswer]:
    """Return the answers in the state.

    Raises:
        InputError: Somebody put something else there.
    """
    try:
        return [RankingAnswer.model_validate(answer) for answer in state["answers"]]
    except ValidationError as error:
        field, problem = first_problem(error)
        raise InputError(
            "The answers in the state are not as 'generate' writes them: "
            f"{field or 'an answer'}: {problem}."
        ) from None


async def _judge(
    answer: RankingAnswer,
    attributor: Attributor,
    context: AnswerContext,
    engine: SearchEngine,
) -> list[Entailment]:
    """Judge whether an answer used each document of its ranking."""
    hypothesis = hypothesis_of(answer.text, context.answer.hypothesis)
    pairs: dict[str, Pair] = {}
    for document in await engine.documents(answer.ids):
        # The whole text, even if the generator read only its beginning. The title comes first,
        # because it is often the subject of the text.
        text = "\n".join(filter(None, (document.title.strip(), document.text.strip())))
        if text:
            pairs[document.id] = Pair(text, hypothesis)
    # Other documents have no text, or were deleted meanwhile.
    ids = [id_ for id_ in answer.ids if id_ in pairs]
    with span("fairqr.judge"):
        try:
            async with asyncio.timeout(running.seconds_left(context)):
                judged = await attributor.judge([pairs[id_] for id_ in ids])
        except TimeoutError:
            judged = [Entailment("timeout", message=_NO_TIME_LEFT)] * len(ids)
        by_id = dict(zip(ids, judged, strict=True))
        verdicts = [by_id.get(id_, _NOTHING_TO_JUDGE) for id_ in answer.ids]
        _record_verdicts(verdicts)
    return verdicts


def _record_verdicts(verdicts: Sequence[Entailment]) -> None:
    """Record the verdict on each document in the current span."""
    running.record(statuses=[verdict.status for verdict in verdicts])
    labels = {True: "attributed", False: "not_attributed", None: None}
    for rank, verdict in enumerate(verdicts, start=1):
        attributes = {"label": labels[verdict.attributed], "fairqr.document.rank": rank}
        current_span().evaluation("attribution", verdict.score, **attributes)


def _with_verdicts(answer: RankingAnswer, verdicts: Sequence[Entailment]) -> Record:
    return {
        **answer.model_dump(),
        "used": [verdict.attributed for verdict in verdicts],
        "verdicts": [verdict.status for verdict in verdicts],
        "scores": [verdict.score for verdict in verdicts],
    }


def _warnings_of_failures(answers: Sequence[RankingAnswer], settings: AnswerSettings) -> list[str]:
    """Return a warning if some samples have no answer.

    Raises:
        ModelError: No sample has an answer.
    """
    failed = [answer for answer in answers if answer.status != "ok"]
    if not failed:
        return []
    samples = sum(answer.samples for answer in failed)
    running.record(failed=samples)
    first = failed[0]
    message = first.message or f"The model gave no answer ({first.status})."
    if len(failed) == len(answers):
        raise ModelError(first.status, message)
    return [f"{samples} of {settings.samples} samples have no answer. {message}"]


def _exposed_documents(
    pool: Sequence[RankedDocument], exposure: FloatArray, attributed: FloatArray | None
) -> list[ExposedDocument]:
    """Return how each document of the pool fares."""
    documents = []
    for row, document in enumerate(pool):
        exposed = ExposedDocument(
            **document.model_dump(),
            exposure=exposure[row],
            attributed=None if attributed is None else attributed[row],
        )
        documents.append(exposed)
    return documents


def _group_exposures(
    pool: Sequence[RankedDocument],
    exposure: FloatArray,
    attributed: FloatArray | None,
    target: Mapping[str, Mapping[str, float]],
    context: AnswerContext,
    parts: AnswerParts,
) -> list[AttributeExposure]:
    """Return how the groups of each attribute fare."""
    exposures = []
    schema = parts.engine.schema
    for declared in dimensions_of(schema, context.attributes, intersect=context.intersect):
        # Open attributes have the groups that the search found.
        dimension = declared.with_groups_of(target[declared.name])
        members = memberships_of(pool, dimension)
        read_shares, unknown = group_shares(members, exposure)
        used_shares, unknown_used = group_shares(members, attributed)
        groups = []
        for group, read, used in zip(dimension.groups, read_shares, used_shares, strict=True):
            share = target[dimension.name][group]
            groups.append(GroupExposure(group=group, target=share, exposure=read, attributed=used))
        of_attribute = AttributeExposure(
            attribute=dimension.name,
            groups=groups,
            unknown=unknown or 0.0,
            attributed_unknown=unknown_used,
        )
        exposures.append(of_attribute)
    return exposures
