"""The steps that answer: sample rankings, answer from each, judge the answers, and count.

``prepare → search → sample → generate* → collect → attribute* → summarise``; steps with a star
run once for each distinct ranking, several at a time.
"""

from __future__ import annotations

import asyncio
import operator
import secrets
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langgraph.graph import START
from langgraph.graph.message import push_message
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Checkpointer, Send

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.agents.attribution.attributor import Attributor, Entailment, Pair, hypothesis_of
from fairqr.agents.attribution.checking import unchecked_warning
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import GenerationRequest, Generator, ModelGenerator, temperature_of
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import open_generator
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import ModelError, ModelUnavailableError
from fairqr.base.telemetry import Span
from fairqr.graph import steps
from fairqr.graph.answer import result as results
from fairqr.graph.answer.context import AnswerContext, AnswerSettings
from fairqr.graph.answer.result import RankingAnswer
from fairqr.graph.search.builder import RECURSION_LIMIT, build_search_graph
from fairqr.graph.search.context import require_context
from fairqr.graph.search.rankers import GivenModel, GivenRanker, Rankers, model_of, require_method
from fairqr.graph.search.result import InputState, RankedDocument, memberships_of
from fairqr.graph.search.result import OutputState as SearchOutput
from fairqr.graph.steps import CONCURRENCY, SEARCH, Node, longest
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sampling.plackett_luce import sample_plackett_luce, stream_of


class RankingTask(TypedDict):
    """The input of a node that answers from a ranking, or judges the answer.

    ``ranking`` is the object of :class:`fairqr.graph.answer.result.SampledRanking`, or of
    :class:`fairqr.graph.answer.result.RankingAnswer` once there is an answer.
    """

    query: str
    seed: int
    seconds: float
    ranking: dict[str, Any]


class OutputState(SearchOutput):
    """What a run ends with: the search's result and the answer's.

    ``answer`` is the object of :class:`fairqr.graph.answer.result.AnswerResult`.
    """

    answer: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes that answer share.

    Attributes:
        seconds: How long the steps have taken so far, including the search.
        seed: The seed of the samples.
        sampled: The distinct rankings, as objects of
            :class:`fairqr.graph.answer.result.SampledRanking`.
        generated: What was answered from each of them, as objects of
            :class:`fairqr.graph.answer.result.RankingAnswer`.
        judged: Those of them that were judged, with the verdicts.
        spent: What each question to a model cost.
        warnings: Sentences for users.
    """

    seconds: Annotated[float, longest]
    seed: int
    sampled: list[dict[str, Any]]
    generated: Annotated[list[dict[str, Any]], operator.add]
    judged: Annotated[list[dict[str, Any]], operator.add]
    spent: Annotated[list[dict[str, Any]], operator.add]
    warnings: Annotated[list[str], operator.add]


PROMPT = "answer"
"""The id of the prompt that asks for answers."""

_NO_TIME_LEFT = "The time of the budget was spent before the answer was judged."
_NOTHING_TO_JUDGE = Entailment("empty_document", message="The document has no text.")


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
    attributor: Attributor | None
    prompts: PromptLibrary

    def _prompt(self, context: AnswerContext) -> PromptTemplate:
        return self.prompts.get(PROMPT, context.prompts.get(PROMPT))

    def _given_generator(self) -> Generator:
        if self.generator is None:
            raise ModelUnavailableError(
                "No model is given to answer with; name a chat model, or give a generator."
            )
        return self.generator

    @steps.traced
    async def prepare(self, state: State, context: AnswerContext, opened: Span) -> steps.Update:
        """Start the models, so that missing parts are found before anything is searched.

        Raises:
            ModelUnavailableError: No generator is given, or a model cannot be started.
            PromptError: There is no such prompt.
        """
        self._prompt(context)
        await self._given_generator().start()
        if self.attributor is not None:
            await self.attributor.start()
        return {"seed": secrets.randbelow(2**31) if context.seed is None else context.seed}

    @steps.traced
    async def sample(self, state: State, context: AnswerContext, opened: Span) -> steps.Update:
        """Draw rankings from the final one, and count equal ones.

        Raises:
            QueryError: No document matches the question.
        """
        settings, places = context.answer, state["result"]["ranking"]
        steps.require_hits(places, self.engine, state["query"])
        sampled = _distinct_rankings(places, settings, state["seed"], state["query"])
        opened.set("fairqr.seed", state["seed"])
        opened.set("fairqr.rankings", len(sampled))
        warnings = []
        if (read := len(sampled[0]["ids"])) < settings.documents:
            warnings.append(
                f"The generator should read {settings.documents} documents, but only {read} were "
                "found; it read these."
            )
        return {
            "sampled": sampled,
            "warnings": warnings,
            "seconds": state["result"]["usage"]["milliseconds"] / 1000,
        }

    @steps.traced
    async def generate(
        self, state: RankingTask, context: AnswerContext, opened: Span
    ) -> steps.Update:
        """Answer the question from the documents of one ranking."""
        settings, prompt, generator = context.answer, self._prompt(context), self._given_generator()
        temperature = settings.temperature
        used = temperature_of(
            generator, prompt.defaults.temperature if temperature is None else temperature
        )
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
        reply = await generator.generate(request, steps.seconds_left(context), on_token)
        opened.set("fairqr.prompt.sha256", prompt.sha256)
        opened.set("fairqr.status", reply.status)
        opened.content("fairqr.answer", reply.text)
        answer = RankingAnswer(
            **state["ranking"], status=reply.status, text=reply.text, message=reply.message
        )
        return {"generated": [answer.model_dump()], "spent": [asdict(reply.usage)]}

    @steps.traced
    async def collect(self, state: State, context: AnswerContext, opened: Span) -> steps.Update:
        """Warn about samples without an answer, and say why they have none.

        Raises:
            ModelError: No sample has an answer.
        """
        failed = [answer for answer in state["generated"] if answer["status"] != "ok"]
        lost = sum(answer["samples"] for answer in failed)
        opened.set("fairqr.failed", lost)
        if not failed:
            return {}
        status, message = failed[0]["status"], failed[0]["message"]
        message = message or f"The model gave no answer ({status})."
        if len(failed) == len(state["sampled"]):
            raise ModelError(status, message)
        samples = context.answer.samples
        return {"warnings": [f"{lost} of {samples} samples have no answer. {message}"]}

    async def to_attribute(self, state: State) -> list[Send] | str:
        """Send each answer to be judged, if there is an attributor and an answer."""
        answered = [answer for answer in state["generated"] if answer["status"] == "ok"]
        return (_sent("attribute", state, answered) if self.attributor else []) or "summarise"

    @steps.traced
    async def attribute(
        self, state: RankingTask, context: AnswerContext, opened: Span
    ) -> steps.Update:
        """Judge which documents of a ranking its answer used."""
        if self.attributor is None:  # to_attribute() sends nothing then
            raise ModelUnavailableError("No attributor is given.")
        answer = state["ranking"]
        hypothesis = hypothesis_of(answer["text"], context.answer.hypothesis)
        # The whole text, even if the generator read only its beginning. The title comes first,
        # because it is often the subject of the text.
        texts = {
            document.id: "\n".join(filter(None, (document.title.strip(), document.text.strip())))
            for document in await self.engine.documents(answer["ids"])
        }
        # Others have no text, or were deleted meanwhile.
        known = [id_ for id_ in answer["ids"] if texts.get(id_)]
        try:
            async with asyncio.timeout(steps.seconds_left(context)):
                judged = await self.attributor.judge(
                    [Pair(texts[id_], hypothesis) for id_ in known]
                )
        except TimeoutError:
            judged = [Entailment("timeout", message=_NO_TIME_LEFT)] * len(known)
        by_id = dict(zip(known, judged, strict=True))
        verdicts = [by_id.get(id_, _NOTHING_TO_JUDGE) for id_ in answer["ids"]]
        opened.set("fairqr.attributed", sum(verdict.attributed or False for verdict in verdicts))
        opened.set("fairqr.statuses", [verdict.status for verdict in verdicts])
        labels = {True: "attributed", False: "not_attributed", None: None}
        for rank, verdict in enumerate(verdicts, start=1):
            about = {"label": labels[verdict.attributed], "fairqr.document.rank": rank}
            if verdict.status != "ok":
                about["error.type"] = verdict.status
            opened.evaluation("attribution", verdict.score, **about)
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
        return {"judged": [record], "spent": [spent], "warnings": warnings}

    @steps.traced
    async def summarise(self, state: State, context: AnswerContext, opened: Span) -> steps.Update:
        """Put the result together: the answers, and the exposure of documents and groups."""
        search, settings, generator = state["result"], context.answer, self._given_generator()
        pool = [RankedDocument.model_validate(place) for place in search["ranking"]]
        ids = [document.id for document in pool]
        done = {tuple(it["ids"]): it for it in [*state["generated"], *state["judged"]]}
        answers = [RankingAnswer(**done[tuple(it["ids"])]) for it in state["sampled"]]
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
                results.AttributeExposure(
                    attribute=dimension.name,
                    groups=[
                        results.GroupExposure(
                            group=group, target=target[group], exposure=one, attributed=other
                        )
                        for group, one, other in zip(dimension.groups, read, used, strict=True)
                    ],
                    unknown=unknown or 0.0,
                    attributed_unknown=unknown_used,
                )
            )
        warnings = [*search["warnings"], *state["warnings"]]
        if self.attributor is not None and judged:
            # This reads files.
            warnings.append(await asyncio.to_thread(unchecked_warning, self.attributor))
        k, shown = len(answers[0].ids), [None] * len(pool) if attributed is None else attributed
        result = results.AnswerResult(
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
                results.ExposedDocument(**place.model_dump(), exposure=one, attributed=other)
                for place, one, other in zip(pool, exposure, shown, strict=True)
            ],
            groups=groups,
            disparity=exposure @ exposure / k,
            attributed_disparity=None if attributed is None else attributed @ attributed / k,
            attribution_rate=attribution_rate(judged),
            counts=_counts(answers, judged),
            usage=steps.usage_report(steps.total_usage(state["spent"], steps.usage_of(search))),
            warnings=list(dict.fromkeys(filter(None, warnings))),
        )
        for name in ("disparity", "attributed_disparity", "attribution_rate"):
            if (figure := getattr(result, name)) is not None:
                opened.set(f"fairqr.{name}", figure)
        models = {"generator": result.generator, "attributor": result.attributor}
        steps.record_outcome(opened, result.usage, [result.prompt], **models)
        return {"answer": result.model_dump(mode="json")}


async def to_generate(state: State) -> list[Send]:
    """Send each distinct ranking to be answered from."""
    return _sent("generate", state, state["sampled"])


def _sent(node: str, state: State, rankings: Sequence[dict[str, Any]]) -> list[Send]:
    shared = {key: state[key] for key in ("query", "seed", "seconds")}
    return [Send(node, {**shared, "ranking": ranking}) for ranking in rankings]


def _distinct_rankings(
    places: Sequence[Mapping[str, Any]], settings: AnswerSettings, seed: int, query: str
) -> list[dict[str, Any]]:
    """Draw rankings by Plackett–Luce, and return each distinct one once.

    The document at rank i gets the i-th greatest score of the ranking. A fair re-ranking moves
    documents without changing their scores; with this rule, its order counts. A ranking by score,
    such as a plain retrieval, keeps its own scores.

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


def _distribution(answers: Sequence[RankingAnswer]) -> list[results.AnswerText]:
    """Return the distinct answers; equally frequent ones in the order of their first draw."""
    answered = [answer for answer in answers if answer.status == "ok"]
    rankings, samples = Counter(answer.text for answer in answered), Counter[str]()
    for answer in answered:
        samples[answer.text] += answer.samples
    return [
        results.AnswerText(text=text, samples=count, rankings=rankings[text])
        for text, count in samples.most_common()
    ]


def _counts(
    answers: Sequence[RankingAnswer], judged: Sequence[RankingAnswer]
) -> results.AnswerCounts:
    times = Counter[str]()
    for answer in answers:
        times[answer.status] += answer.samples
    return results.AnswerCounts(
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
        read = zip(answer.ids, counted, strict=True)
        total[[place[id_] for id_, counts in read if counts]] += answer.samples
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
    attributor: Attributor | BaseChatModel | str | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
    checkpointer: Checkpointer = None,
) -> CompiledStateGraph[State, AnswerContext, InputState, OutputState]:
    """Build the graph that answers a question from randomly drawn rankings.

    ``prepare → search → sample → generate* → collect → attribute* → summarise``, where ``search``
    is the graph of :func:`fairqr.graph.search.builder.build_search_graph`. Steps with a star run
    once for each distinct ranking.

    Call it with ``await graph.ainvoke({"query": "…"}, context=AnswerContext(…))``; the state that
    comes back has ``answer``, the object of :class:`fairqr.graph.answer.result.AnswerResult`, and
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
    require_context(AnswerContext, context)
    model, context = model_of(model, engine), context or AnswerContext()
    rankers = Rankers.of(ranker, model, prompts)
    search = build_search_graph(engine, model, context=context, ranker=rankers)
    chat = model if isinstance(model, ChatModel) else None
    judge = _attributor(attributor, chat, rankers.prompts, concurrency)
    nodes = AnswerNodes(
        engine=engine,
        default=context,
        generator=_generator(generator, chat),
        attributor=judge,
        prompts=rankers.prompts,
    )
    graph = StateGraph(
        State, context_schema=AnswerContext, input_schema=InputState, output_schema=OutputState
    )
    node, grows = nodes.node, ("generated", "judged", "spent", "warnings")
    begins: list[Any] = [node(nodes.prepare, grows=grows), (SEARCH, search), node(nodes.sample)]
    graph.add_sequence(begins)
    graph.add_sequence([node(nodes.generate), node(nodes.collect)])
    graph.add_sequence([node(nodes.attribute), node(nodes.summarise)])
    graph.add_edge(START, "prepare")
    graph.add_conditional_edges("sample", Node(to_generate), ["generate"])
    graph.add_conditional_edges("collect", Node(nodes.to_attribute), ["attribute", "summarise"])
    compiled = graph.compile(checkpointer=checkpointer, name="fair_answer")
    graph.compiled = False  # whoever adds nodes to it compiles it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)


def _generator(
    given: Generator | BaseChatModel | str | None, chat: ChatModel | None
) -> Generator | None:
    if isinstance(given, str):
        return open_generator(given)
    if isinstance(given, BaseChatModel):
        return ModelGenerator(ChatModel.of(given))
    if given is None:
        return ModelGenerator(chat) if chat else None
    require_method("generator", given, "generate")
    return given


def _attributor(
    given: Attributor | BaseChatModel | str | None,
    chat: ChatModel | None,
    prompts: PromptLibrary,
    concurrency: int,
) -> Attributor | None:
    if isinstance(given, BaseChatModel):
        chat, given = ChatModel.of(given), "llm"
    if isinstance(given, str):
        return open_attributor(given, chat=chat, prompts=prompts, concurrency=concurrency)
    if given is not None:
        require_method("attributor", given, "judge")
    return given
