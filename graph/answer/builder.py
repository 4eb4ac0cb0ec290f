"""The steps that answer: sample rankings, answer from each, judge the answers, and count.

``sample → generate* → attribute* → summarise``; steps with a star run once for each distinct
ranking, several at a time. They are one node: a durable run keeps each reply as it comes.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langgraph.graph import START
from langgraph.graph.message import push_message
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Checkpointer
from pydantic import Field

from fairqr.agents.attribution import attributor as judging
from fairqr.agents.attribution.checking import unchecked_warning
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import GenerationRequest, Generator, ModelGenerator, temperature_of
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import open_generator
from fairqr.agents.models.recorded import RecordedModel
from fairqr.agents.models.replies import Status, Usage
from fairqr.base.errors import ModelError, ModelUnavailableError
from fairqr.base.telemetry import current_span
from fairqr.graph import running, steps
from fairqr.graph.answer.context import AnswerContext, AnswerSettings
from fairqr.graph.running import UsageReport
from fairqr.graph.search.builder import RECURSION_LIMIT, as_node, build_search_graph
from fairqr.graph.search.context import Frozen, Method
from fairqr.graph.search.models import GivenModel, model_of, require_method
from fairqr.graph.search.rankers import GivenRanker, Rankers
from fairqr.graph.search.result import Place, RankedDocument, memberships_of
from fairqr.graph.search.state import InputState
from fairqr.graph.search.state import OutputState as SearchOutput
from fairqr.graph.steps import CONCURRENCY, SEARCH
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptReference, PromptTemplate
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.fairness.exposure import FloatArray, item_exposure
from fairqr.retrieval.sampling.plackett_luce import Form, sample_plackett_luce, stream_of


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
    verdicts: list[judging.VerdictStatus] = Field([])
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


class OutputState(SearchOutput):
    """What a run ends with: the search's result and the answer's.

    ``answer`` is the object of :class:`fairqr.graph.answer.builder.AnswerResult`.
    """

    answer: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes that answer share.

    Attributes:
        seconds: How long the steps have taken so far, including the search.
        seed: The seed of the samples.
    """

    seconds: float
    seed: int


class RankingTask(InputState):
    """What a step needs to answer from a ranking, or to judge the answer.

    ``ranking`` is the object of :class:`fairqr.graph.answer.builder.SampledRanking`, or of
    :class:`fairqr.graph.answer.builder.RankingAnswer` once there is an answer.
    """

    seed: int
    ranking: dict[str, Any]


PROMPT = "answer"
"""The id of the prompt that asks for answers."""

_NO_TIME_LEFT = "The time of the budget was spent before the answer was judged."
_NOTHING_TO_JUDGE = judging.Entailment("empty_document", message="The document has no text.")


@dataclass(frozen=True, kw_only=True)
class AnswerNodes(steps.Nodes[AnswerContext]):
    """The steps that answer.

    Attributes:
        generator: Writes the answers; without one, runs fail.
        attributor: Judges which documents an answer used; None skips that.
        prompts: The library of prompts.
    """

    kind = AnswerContext
    generator: Generator | None
    attributor: judging.Attributor | None
    prompts: PromptLibrary

    def _prompt(self, context: AnswerContext) -> PromptTemplate:
        return self.prompts.get(PROMPT, context.prompts.get(PROMPT))

    @steps.traced
    async def prepare(self, state: State, context: AnswerContext) -> running.Update:
        """Start the models, so that missing parts are found before anything is searched.

        Raises:
            ModelUnavailableError: No generator is given, or a model cannot be started.
            PromptError: There is no such prompt.
        """
        self._prompt(context)
        if self.generator is None:
            raise ModelUnavailableError(
                "No model is given to answer with; name a chat model, or give a generator."
            )
        await self.generator.start()
        if self.attributor is not None:
            await self.attributor.start()
        return {"seed": secrets.randbelow(2**31) if context.seed is None else context.seed}

    async def answer(self, state: State, context: AnswerContext) -> running.Update:
        """Answer from each of the sampled rankings, judge the answers, and put all together."""
        running.add_seconds(state["result"])
        begun = await self.sample(state, context)
        tasks = [
            RankingTask(query=state["query"], seed=state["seed"], ranking=ranking)
            for ranking in begun["sampled"]
        ]
        done = await steps.at_once(self._answered, tasks, context)
        return await self.summarise({**state, "done": done}, context)

    async def _answered(self, task: RankingTask, context: AnswerContext) -> list[running.Update]:
        """Answer from one ranking, and judge the answer if there are one and an attributor."""
        generated = await self.generate(task, context)
        answer = generated["generated"]
        if self.attributor is None or answer["status"] != "ok":
            return [generated]
        return [generated, await self.attribute({**task, "ranking": answer}, context)]

    @steps.traced
    async def sample(self, state: State, context: AnswerContext) -> running.Update:
        """Draw rankings from the final one, and count equal ones.

        Raises:
            QueryError: No document matches the question.
        """
        settings, places = context.answer, state["result"]["ranking"]
        steps.require_hits(places, self.engine, state["query"])
        sampled = _distinct_rankings(places, settings, state["seed"], state["query"])
        running.record(seed=state["seed"], rankings=len(sampled))
        return {"sampled": sampled}

    @steps.traced
    async def generate(self, state: RankingTask, context: AnswerContext) -> running.Update:
        """Answer the question from the documents of one ranking."""
        settings, generator = context.answer, cast("Generator", self.generator)
        prompt, temperature = self._prompt(context), settings.temperature
        usual = prompt.defaults.temperature if temperature is None else temperature
        used = temperature_of(generator, usual)
        documents = await self.engine.documents(state["ranking"]["ids"])
        request = GenerationRequest(
            prompt=prompt,
            question=state["query"],
            sources=[
                {"number": str(place), "title": document.title, "text": document.text}
                for place, document in enumerate(documents, start=1)
            ],
            temperature=temperature,
            # At temperature 0, a seed would only prevent hits in the cache.
            seed=None if used == 0 else state["seed"],
        )
        message = str(uuid.uuid4())

        def tell(piece: str) -> None:
            push_message(AIMessageChunk(content=piece, id=message), state_key=None)

        # Only the one ranking of all samples: nobody can read pieces of several answers at once.
        is_alone = state["ranking"]["samples"] == settings.samples
        on_token = tell if settings.stream and is_alone else None
        reply = await generator.generate(request, running.seconds_left(context), on_token)
        running.record(status=reply.status)
        current_span().content("fairqr.answer", reply.text)
        answer = RankingAnswer(
            **state["ranking"], status=reply.status, text=reply.text, message=reply.message
        )
        return {"generated": answer.model_dump(), "usage": asdict(reply.usage)}

    @steps.traced
    async def attribute(self, state: RankingTask, context: AnswerContext) -> running.Update:
        """Judge which documents of a ranking its answer used."""
        answer, attributor = state["ranking"], cast("judging.Attributor", self.attributor)
        hypothesis = judging.hypothesis_of(answer["text"], context.answer.hypothesis)
        # The whole text, even if the generator read only its beginning. The title comes first,
        # because it is often the subject of the text.
        texts = {
            document.id: "\n".join(filter(None, (document.title.strip(), document.text.strip())))
            for document in await self.engine.documents(answer["ids"])
        }
        # Others have no text, or were deleted meanwhile.
        known = [id_ for id_ in answer["ids"] if texts.get(id_)]
        pairs = [judging.Pair(texts[id_], hypothesis) for id_ in known]
        try:
            async with asyncio.timeout(running.seconds_left(context)):
                judged = await attributor.judge(pairs)
        except TimeoutError:
            judged = [judging.Entailment("timeout", message=_NO_TIME_LEFT)] * len(known)
        by_id = dict(zip(known, judged, strict=True))
        verdicts = [by_id.get(id_, _NOTHING_TO_JUDGE) for id_ in answer["ids"]]
        running.record(statuses=[verdict.status for verdict in verdicts])
        labels = {True: "attributed", False: "not_attributed", None: None}
        for rank, verdict in enumerate(verdicts, start=1):
            about = {"label": labels[verdict.attributed], "fairqr.document.rank": rank}
            current_span().evaluation("attribution", verdict.score, **about)
        warnings = []
        if {verdict.status for verdict in verdicts} - {"ok", "empty_document"}:
            message = next((verdict.message for verdict in verdicts if verdict.message), "")
            warnings.append(f"Not every document could be judged. {message}".rstrip())
        record = {
            **answer,
            "used": [verdict.attributed for verdict in verdicts],
            "verdicts": [verdict.status for verdict in verdicts],
            "scores": [verdict.score for verdict in verdicts],
        }
        spent = asdict(sum((verdict.usage for verdict in verdicts), Usage()))
        return {"judged": record, "usage": spent, "warnings": warnings}

    @steps.traced
    async def summarise(self, state: Any, context: AnswerContext) -> running.Update:
        """Put the result together: the answers, and the exposure of documents and groups.

        Raises:
            ModelError: No sample has an answer.
        """
        search, generator = state["result"], cast("Generator", self.generator)
        settings, done = context.answer, state["done"]
        updates = [*itertools.chain.from_iterable(done)]
        answers = [RankingAnswer(**last.get("judged", last.get("generated"))) for *_, last in done]
        warnings = [*search["warnings"]]
        warnings += [it for update in updates for it in update.get("warnings", ())]
        if failed := [answer for answer in answers if answer.status != "ok"]:
            lost, first = sum(answer.samples for answer in failed), failed[0]
            message = first.message or f"The model gave no answer ({first.status})."
            running.record(failed=lost)
            if failed == answers:
                raise ModelError(first.status, message)
            warnings.append(f"{lost} of {settings.samples} samples have no answer. {message}")
        spent = sum((Usage(**it["usage"]) for it in updates), running.usage_of(search))
        pool = [RankedDocument.model_validate(place) for place in search["ranking"]]
        ids = [document.id for document in pool]
        judged = [answer for answer in answers if any(used is not None for used in answer.used)]
        exposure = mean_exposure(answers, ids)
        attributed = mean_exposure(judged, ids, used=True) if judged else None
        groups = []
        for dimension in dimensions_of(
            self.engine.schema, context.attributes, intersect=context.intersect
        ):
            members = memberships_of(pool, dimension)
            read, unknown = group_shares(members, exposure)
            used, unknown_used = group_shares(members, attributed)
            target = search["target"][dimension.name]
            groups.append(
                AttributeExposure(
                    attribute=dimension.name,
                    groups=[
                        GroupExposure(
                            group=group, target=target[group], exposure=one, attributed=other
                        )
                        for group, one, other in zip(dimension.groups, read, used, strict=True)
                    ],
                    unknown=unknown or 0.0,
                    attributed_unknown=unknown_used,
                )
            )
        if self.attributor is not None and judged:
            # This reads files.
            warnings.append(await asyncio.to_thread(unchecked_warning, self.attributor))
        k, shown = len(answers[0].ids), [None] * len(pool) if attributed is None else attributed
        result = AnswerResult(
            question=state["query"],
            **{name: search[name] for name in ("corpus", "method", "retriever")},
            generator=generator.name,
            prompt=self._prompt(context).reference,
            attributor=self.attributor.name if self.attributor else None,
            **settings.model_dump(include={"hypothesis", "alpha", "form"}),
            pool=len(pool),
            documents=k,
            seed=state["seed"],
            temperature=temperature_of(generator, settings.temperature),
            answers=answers,
            distribution=_distribution(answers),
            ranking=[
                ExposedDocument(**place.model_dump(), exposure=one, attributed=other)
                for place, one, other in zip(pool, exposure, shown, strict=True)
            ],
            groups=groups,
            disparity=exposure @ exposure / k,
            attributed_disparity=None if attributed is None else attributed @ attributed / k,
            attribution_rate=attribution_rate(judged),
            counts=_counts(answers, judged),
            usage=running.usage_report(spent),
            warnings=list(dict.fromkeys(filter(None, warnings))),
        )
        models = {"generator": result.generator, "attributor": result.attributor}
        running.record_outcome(result.usage, [result.prompt], **models)
        return {"answer": result.model_dump(mode="json")}


def _distinct_rankings(
    places: Sequence[Mapping[str, Any]], settings: AnswerSettings, seed: int, query: str
) -> list[dict[str, Any]]:
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
        Objects of :class:`fairqr.graph.answer.builder.SampledRanking`, in the order of their first
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


def _distribution(answers: Sequence[RankingAnswer]) -> list[AnswerText]:
    """Return the distinct answers; equally frequent ones in the order of their first draw."""
    answered = [answer for answer in answers if answer.status == "ok"]
    rankings, samples = Counter(answer.text for answer in answered), Counter[str]()
    for answer in answered:
        samples[answer.text] += answer.samples
    return [
        AnswerText(text=text, samples=count, rankings=rankings[text])
        for text, count in samples.most_common()
    ]


def _counts(answers: Sequence[RankingAnswer], judged: Sequence[RankingAnswer]) -> AnswerCounts:
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
    place = {id_: position for position, id_ in enumerate(ids)}
    read = [[place[id_] for id_ in answer.ids] for answer in answers]
    gained = [[bool(verdict) for verdict in it.used] for it in answers] if used else 1.0
    return item_exposure(read, len(ids), [it.samples for it in answers], gained)


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
    shares = [np.mean([used for used in it.used if used is not None]) for it in judged]
    return float(np.average(shares, weights=[it.samples for it in judged]))


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
    mass = np.zeros(len(members)) if exposure is None else exposure
    known, total = (mass @ members).sum(), mass.sum()
    shares = [float(share / known) if known > 0 else None for share in mass @ members]
    return shares, min(1.0, max(0.0, float(1 - known / total))) if total else None


def build_answer_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: AnswerContext | None = None,
    generator: Generator | BaseChatModel | str | None = None,
    attributor: judging.Attributor | BaseChatModel | str | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
    checkpointer: Checkpointer = None,
) -> CompiledStateGraph[State, AnswerContext, InputState, OutputState]:
    """Build the graph that answers a question from randomly drawn rankings.

    ``prepare → search → generate``, where ``search`` is the graph of
    :func:`fairqr.graph.search.builder.build_search_graph`, and ``generate`` also samples rankings
    and judges the answers.

    Call it with ``await graph.ainvoke({"query": "…"}, context=AnswerContext(…))``; the state that
    comes back has ``answer``, the object of :class:`fairqr.graph.answer.builder.AnswerResult`, and
    the ``result`` of the search. To add or replace nodes, change its ``builder`` and compile that.

    Args:
        engine: The search engine.
        model: Refines and ranks, as in a search; also writes the answers if no generator is given.
        context: The context of runs that bring none of ours.
        generator: Writes the answers: a generator, a chat model of LangChain's, or a name. Defaults
            to the model, if that is a chat model.
        attributor: Judges which documents an answer used: an attributor, its name, or a chat model
            of LangChain's. None skips that.
        ranker: Re-ranks, as in a search.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        concurrency: How many rankings are answered from or judged at the same time, unless the
            config of a call sets ``max_concurrency``. A chat model that is named as the attributor
            gets at most as many questions at once.
        checkpointer: A checkpointer of LangGraph's.
    """
    model, context = model_of(model, engine), AnswerContext() if context is None else context
    rankers = Rankers.of(ranker, model, prompts)
    search = build_search_graph(engine, model, context=context, ranker=rankers)
    chat = model if isinstance(model, ChatModel) else None
    if isinstance(generator, str):
        generator = open_generator(generator)
    elif isinstance(generator, BaseChatModel):
        generator = ModelGenerator(ChatModel.of(generator))
    elif generator is not None:
        require_method("generator", generator, "generate")
    elif isinstance(model, ChatModel | RecordedModel):
        generator = ModelGenerator(model)  # one that only refines says so when it is started
    if isinstance(attributor, BaseChatModel):
        chat, attributor = ChatModel.of(attributor), "llm"
    if isinstance(attributor, str):
        attributor = open_attributor(
            attributor, chat=chat, prompts=rankers.prompts, concurrency=concurrency
        )
    elif attributor is not None:
        require_method("attributor", attributor, "judge")
    nodes = AnswerNodes(
        engine=engine,
        default=context,
        generator=generator,
        attributor=attributor,
        prompts=rankers.prompts,
    )
    graph = StateGraph(
        State, context_schema=AnswerContext, input_schema=InputState, output_schema=OutputState
    )
    begins: list[Any] = [nodes.node(nodes.prepare, is_first=True), (SEARCH, as_node(search))]
    graph.add_sequence([*begins, nodes.node(nodes.answer, "generate")]).add_edge(START, "prepare")
    compiled = graph.compile(checkpointer=checkpointer, name="fair_answer")
    graph.compiled = False  # whoever adds nodes to it compiles it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)
