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

from fairqr.agents.attribution import attributor as judging
from fairqr.agents.attribution.checking import unchecked_warning
from fairqr.agents.generators import GenerationRequest, temperature_of
from fairqr.agents.models.cache import ReplyCache, asking_with
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, ModelError, first_problem
from fairqr.base.loops import run_together
from fairqr.base.telemetry import current_span, span
from fairqr.graph import running
from fairqr.graph.answer import result as results
from fairqr.graph.answer.context import AnswerContext, AnswerSettings
from fairqr.graph.answer.parts import AnswerParts
from fairqr.graph.answer.result import AnswerResult, RankingAnswer
from fairqr.graph.answer.state import AnswerState, RankingTask
from fairqr.graph.running import Update
from fairqr.graph.search.result import RankedDocument, memberships_of
from fairqr.graph.search.state import Record
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sampling.plackett_luce import sample_plackett_luce, stream_of

_NO_TIME_LEFT = "The time of the budget was spent before the answer was judged."
_NOTHING_TO_JUDGE = judging.Entailment("empty_document", message="The document has no text.")


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
    running.add_seconds(state["result"])
    places = state["result"]["ranking"]
    running.require_hits(places, parts.engine, state["query"])
    sampled = _distinct_rankings(places, context.answer, state["seed"], state["query"])
    running.record(seed=state["seed"], rankings=len(sampled))
    return {"sampled": sampled}


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
    temperature = settings.temperature
    usual = prompt.defaults.temperature if temperature is None else temperature
    used = temperature_of(generator, usual)
    documents = await parts.engine.documents(ranking["ids"])
    request = GenerationRequest(
        prompt=prompt,
        question=task["query"],
        sources=[
            {"number": str(place), "title": document.title, "text": document.text}
            for place, document in enumerate(documents, start=1)
        ],
        temperature=temperature,
        # At temperature 0, a seed would only prevent hits in the cache.
        seed=None if used == 0 else task["seed"],
    )
    message = str(uuid.uuid4())

    def tell(piece: str) -> None:
        push_message(AIMessageChunk(content=piece, id=message), state_key=None)

    # Only the one ranking of all samples: nobody can read pieces of several answers at once.
    is_alone = ranking["samples"] == settings.samples
    on_token = tell if settings.stream and is_alone else None
    reply = await generator.generate(request, running.seconds_left(context), on_token)
    running.record(status=reply.status)
    current_span().content("fairqr.answer", reply.text)
    answer = RankingAnswer(**ranking, status=reply.status, text=reply.text, message=reply.message)
    return {"answers": [answer.model_dump()], "usages": [asdict(reply.usage)]}


async def attribute(state: AnswerState, context: AnswerContext, parts: AnswerParts) -> Update:
    """Judge which documents of its ranking each answer used, several answers at a time."""
    attributor = cast("judging.Attributor", parts.attributor)
    answers = _answers(state)
    limit = asyncio.Semaphore(get_config().get("max_concurrency") or running.CONCURRENCY)

    async def judged(answer: RankingAnswer) -> list[judging.Entailment]:
        if answer.status != "ok":
            return []
        async with limit:
            return await _verdicts(answer, attributor, context, parts.engine)

    # Several answers may be the same, and judged by the same documents.
    with asking_with(cache=ReplyCache()):
        verdicts = await run_together([judged(answer) for answer in answers])
    notes = []
    for each in verdicts:
        if {verdict.status for verdict in each} - {"ok", "empty_document"}:
            message = next((verdict.message for verdict in each if verdict.message), "")
            notes.append(f"Not every document could be judged. {message}".rstrip())
    spent = sum((verdict.usage for each in verdicts for verdict in each), Usage())
    pairs = zip(answers, verdicts, strict=True)
    return {
        "answers": Overwrite([_with_verdicts(answer, each) for answer, each in pairs]),
        "usages": [asdict(spent)],
        "notes": notes,
    }


async def summarize(state: AnswerState, context: AnswerContext, parts: AnswerParts) -> Update:
    """Put the result together: the answers, and the exposure of documents and groups.

    Raises:
        ModelError: No sample has an answer.
    """
    search = state["result"]
    settings = context.answer
    answers = _answers(state)
    warnings = [*search["warnings"], *state["notes"], *_failures(answers, settings)]
    judged = [answer for answer in answers if any(used is not None for used in answer.used)]
    if parts.attributor is not None and judged:
        # This reads files.
        warnings.append(await asyncio.to_thread(unchecked_warning, parts.attributor))
    pool = [RankedDocument.model_validate(place) for place in search["ranking"]]
    ids = [document.id for document in pool]
    k = len(answers[0].ids)
    exposure = results.mean_exposure(answers, ids)
    attributed = results.mean_exposure(judged, ids, used=True) if judged else None
    shown = [None] * len(pool) if attributed is None else attributed
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
        distribution=results.distribution_of(answers),
        ranking=[
            results.ExposedDocument(**place.model_dump(), exposure=one, attributed=other)
            for place, one, other in zip(pool, exposure, shown, strict=True)
        ],
        groups=_group_exposures(pool, exposure, attributed, search["target"], context, parts),
        disparity=exposure @ exposure / k,
        attributed_disparity=None if attributed is None else attributed @ attributed / k,
        attribution_rate=results.attribution_rate(judged),
        counts=results.counts_of(answers, judged),
        usage=running.usage_report(spent),
        warnings=list(dict.fromkeys(filter(None, warnings))),
    )
    models = {"generator": result.generator, "attributor": result.attributor}
    running.record_outcome(result.usage, [result.prompt], **models)
    return {"answer": result.model_dump(mode="json")}


def _distinct_rankings(
    places: Sequence[Mapping[str, Any]], settings: AnswerSettings, seed: int, query: str
) -> list[Record]:
    """Draw rankings by Plackett–Luce, and return each distinct one once.

    The document at rank i gets the i-th greatest score of the ranking. A fair re-ranking moves
    documents without changing their scores; with this rule, its order counts. A ranking by score,
    such as a baseline ranking, keeps its own scores.

    Args:
        places: The final ranking: ``id`` and ``score`` of each document, best first; at least one.
        settings: How many rankings to draw, how sharply, and how many documents of each are read.
        seed: With the same seed, query and ranking, the same rankings are drawn.
        query: The original query.

    Returns:
        Objects of :class:`fairqr.graph.answer.result.SampledRanking`, in the order of their first
        draw.
    """
    worths = sorted((place["score"] for place in places), reverse=True)
    stream = stream_of(seed, query)
    drawn = sample_plackett_luce(
        worths, settings.alpha, settings.samples, settings.documents, stream, settings.form
    )
    counts = Counter(map(tuple, drawn.tolist()))
    return [
        {"ids": [places[at]["id"] for at in row], "samples": times} for row, times in counts.items()
    ]


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


async def _verdicts(
    answer: RankingAnswer,
    attributor: judging.Attributor,
    context: AnswerContext,
    engine: SearchEngine,
) -> list[judging.Entailment]:
    """Judge whether an answer used each document of its ranking."""
    hypothesis = judging.hypothesis_of(answer.text, context.answer.hypothesis)
    # The whole text, even if the generator read only its beginning. The title comes first,
    # because it is often the subject of the text.
    texts = {
        document.id: "\n".join(filter(None, (document.title.strip(), document.text.strip())))
        for document in await engine.documents(answer.ids)
    }
    # Others have no text, or were deleted meanwhile.
    known = [id_ for id_ in answer.ids if texts.get(id_)]
    pairs = [judging.Pair(texts[id_], hypothesis) for id_ in known]
    with span("fairqr.judge"):
        try:
            async with asyncio.timeout(running.seconds_left(context)):
                judged = await attributor.judge(pairs)
        except TimeoutError:
            judged = [judging.Entailment("timeout", message=_NO_TIME_LEFT)] * len(known)
        by_id = dict(zip(known, judged, strict=True))
        verdicts = [by_id.get(id_, _NOTHING_TO_JUDGE) for id_ in answer.ids]
        running.record(statuses=[verdict.status for verdict in verdicts])
        labels = {True: "attributed", False: "not_attributed", None: None}
        for rank, verdict in enumerate(verdicts, start=1):
            about = {"label": labels[verdict.attributed], "fairqr.document.rank": rank}
            current_span().evaluation("attribution", verdict.score, **about)
    return verdicts


def _with_verdicts(answer: RankingAnswer, verdicts: Sequence[judging.Entailment]) -> Record:
    return {
        **answer.model_dump(),
        "used": [verdict.attributed for verdict in verdicts],
        "verdicts": [verdict.status for verdict in verdicts],
        "scores": [verdict.score for verdict in verdicts],
    }


def _failures(answers: Sequence[RankingAnswer], settings: AnswerSettings) -> list[str]:
    """Say how many samples have no answer, if there are such.

    Raises:
        ModelError: No sample has an answer.
    """
    failed = [answer for answer in answers if answer.status != "ok"]
    if not failed:
        return []
    lost = sum(answer.samples for answer in failed)
    first = failed[0]
    message = first.message or f"The model gave no answer ({first.status})."
    running.record(failed=lost)
    if len(failed) == len(answers):
        raise ModelError(first.status, message)
    return [f"{lost} of {settings.samples} samples have no answer. {message}"]


def _group_exposures(
    pool: Sequence[RankedDocument],
    exposure: FloatArray,
    attributed: FloatArray | None,
    target: Mapping[str, Mapping[str, float]],
    context: AnswerContext,
    parts: AnswerParts,
) -> list[results.AttributeExposure]:
    """Return how the groups of each attribute fare."""
    dimensions = dimensions_of(parts.engine.schema, context.attributes, intersect=context.intersect)
    found = []
    for dimension in (it.with_groups_of(target[it.name]) for it in dimensions):
        members = memberships_of(pool, dimension)
        read, unknown = results.group_shares(members, exposure)
        used, unknown_used = results.group_shares(members, attributed)
        groups = [
            results.GroupExposure(
                group=group,
                target=target[dimension.name][group],
                exposure=read_share,
                attributed=used_share,
            )
            for group, read_share, used_share in zip(dimension.groups, read, used, strict=True)
        ]
        found.append(
            results.AttributeExposure(
                attribute=dimension.name,
                groups=groups,
                unknown=unknown or 0.0,
                attributed_unknown=unknown_used,
            )
        )
    return found
