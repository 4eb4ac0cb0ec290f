"""The steps that answer: sample rankings, answer from each, judge the answers, and count.

``prepare → search → sample → generate* → collect → attribute* → summarise``; steps with a star
run once for each distinct ranking, several at a time.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessageChunk
from langgraph.graph.message import push_message
from langgraph.runtime import Runtime
from langgraph.types import Overwrite, Send

from fairqr.agents.attribution.attributor import Attributor, Entailment, Pair, hypothesis_of
from fairqr.agents.generators import GenerationRequest, Generator, temperature_of
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import ModelError, ModelUnavailableError
from fairqr.base.telemetry import current_span
from fairqr.graph.answer.context import AnswerContext, AnswerSettings
from fairqr.graph.answer.state import (
    AttributionTask,
    GenerationRecord,
    GenerationTask,
    SampledRanking,
    State,
    VerdictRecord,
)
from fairqr.graph.answer.summary import summarised
from fairqr.graph.outcome_span import record_outcome, record_verdict
from fairqr.graph.steps import Update, context_of, forgotten, require_hits, traced
from fairqr.graph.usage import seconds_left, usage_record
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sampling.plackett_luce import sample_plackett_luce, stream_of
from fairqr.retrieval.sources.documents import Document

PROMPT = "answer"
"""The id of the prompt that asks for answers."""


class Nodes:
    """The steps over one engine.

    Args:
        engine: The search engine.
        generator: Writes the answers; without one, runs fail.
        attributor: Judges which documents an answer used; None skips that.
        prompts: The library of prompts.
        default: The context of runs that bring none of ours.
    """

    def __init__(
        self,
        engine: SearchEngine,
        generator: Generator | None,
        attributor: Attributor | None,
        prompts: PromptLibrary,
        default: AnswerContext,
    ) -> None:
        self._engine = engine
        self._generator = generator
        self._attributor = attributor
        self._prompts = prompts
        self._default = default

    def _context(self, runtime: Runtime[AnswerContext]) -> AnswerContext:
        return context_of(runtime, self._default)

    @traced
    async def prepare(self, state: State, runtime: Runtime[AnswerContext]) -> Update:
        """Start the models, so that missing parts are found before anything is searched.

        Raises:
            ModelUnavailableError: No generator is given, or a model cannot be started.
            PromptError: There is no such prompt.
        """
        context = self._context(runtime)
        self._prompt(context)
        await self._given_generator().start()
        if self._attributor is not None:
            await self._attributor.start()
        return {
            **forgotten(state, "result", "answer"),
            "seconds": Overwrite(0.0),
            "seed": secrets.randbelow(2**31) if context.seed is None else context.seed,
            "sampled": [],
            "generations": Overwrite([]),
            "verdicts": Overwrite([]),
            "warnings": Overwrite([]),
        }

    @traced
    async def sample(self, state: State, runtime: Runtime[AnswerContext]) -> Update:
        """Draw rankings from the final one, and count equal ones.

        Raises:
            NoMatchError: No document matches the question.
        """
        settings, opened = self._context(runtime).answer, current_span()
        places = state["result"]["ranking"]
        require_hits(places, self._engine, state["query"])
        sampled = _distinct_rankings(places, settings, state["seed"], state["query"])
        opened.set("fairqr.alpha", settings.alpha)
        opened.set("fairqr.seed", state["seed"])
        opened.set("fairqr.samples", settings.samples)
        opened.set("fairqr.rankings", len(sampled))
        read = len(sampled[0]["ids"])
        warnings = []
        if read < settings.documents:
            warnings.append(
                f"The generator should read {settings.documents} documents, but only {read} were "
                "found; it read these."
            )
        return {
            "sampled": sampled,
            "warnings": warnings,
            "seconds": state["result"]["usage"]["milliseconds"] / 1000,
        }

    @traced
    async def generate(self, state: GenerationTask, runtime: Runtime[AnswerContext]) -> Update:
        """Answer the question from the documents of one ranking."""
        context, opened = self._context(runtime), current_span()
        settings, prompt, ranking = context.answer, self._prompt(context), state["ranking"]
        opened.set("fairqr.ranking", ranking["number"])
        opened.set("fairqr.prompt.sha256", prompt.sha256)
        temperature = settings.temperature
        used = temperature_of(
            self._given_generator(),
            prompt.defaults.temperature if temperature is None else temperature,
        )
        documents = await self._engine.documents(ranking["ids"])
        request = GenerationRequest(
            prompt=prompt,
            question=state["query"],
            sources=[_fields(document, place) for place, document in enumerate(documents, start=1)],
            temperature=temperature,
            # At temperature 0, a seed would only prevent hits in the cache.
            seed=None if used == 0 else state["seed"],
        )
        deadline = seconds_left(context)

        message = str(uuid.uuid4())

        def tell(piece: str) -> None:
            push_message(AIMessageChunk(content=piece, id=message), state_key=None)

        found = await self._given_generator().generate(
            request, deadline, tell if settings.stream and state["is_alone"] else None
        )
        opened.set("fairqr.status", found.status)
        opened.content("fairqr.answer", found.text)
        record = GenerationRecord(
            number=ranking["number"],
            status=found.status,
            text=found.text,
            message=found.message,
            usage=usage_record(found.usage),
        )
        return {"generations": [record]}

    @traced
    async def collect(self, state: State, runtime: Runtime[AnswerContext]) -> Update:
        """Warn about samples without an answer, and say why they have none.

        Raises:
            ModelError: No sample has an answer.
        """
        failed = {r["number"]: r for r in state["generations"] if r["status"] != "ok"}
        times = {ranking["number"]: ranking["times"] for ranking in state["sampled"]}
        lost = sum(times[number] for number in failed)
        current_span().set("fairqr.failed", lost)
        if not lost:
            return {}
        record = failed[min(failed)]
        first = record["message"] or f"The model gave no answer ({record['status']})."
        if len(failed) == len(times):
            raise ModelError(record["status"], first)
        samples = self._context(runtime).answer.samples
        return {"warnings": [f"{lost} of {samples} samples have no answer. {first}"]}

    def to_attribute(self, state: State) -> list[Send] | Literal["summarise"]:
        """Send each answer to be judged, if there is an attributor and an answer."""
        if self._attributor is None:
            return "summarise"
        rankings = {ranking["number"]: ranking for ranking in state["sampled"]}
        sends = [
            Send(
                "attribute",
                AttributionTask(
                    ranking=rankings[record["number"]],
                    text=record["text"],
                    seconds=state["seconds"],
                ),
            )
            for record in state["generations"]
            if record["status"] == "ok"
        ]
        return sends or "summarise"

    @traced
    async def attribute(self, state: AttributionTask, runtime: Runtime[AnswerContext]) -> Update:
        """Judge which documents of a ranking its answer used."""
        opened, ranking = current_span(), state["ranking"]
        if self._attributor is None:  # to_attribute() sends nothing then
            raise ModelUnavailableError("No attributor is given.")
        hypothesis = hypothesis_of(state["text"], self._context(runtime).answer.hypothesis)
        documents = {d.id: d for d in await self._engine.documents(ranking["ids"])}
        premises = [_premise(documents.get(id_)) for id_ in ranking["ids"]]
        pairs = [Pair(premise, hypothesis) for premise in premises if premise]
        try:
            async with asyncio.timeout(seconds_left(self._context(runtime))):
                judged = await self._attributor.judge(pairs)
        except TimeoutError:
            judged = [Entailment("timeout", message=_NO_TIME_LEFT)] * len(pairs)
        left = iter(judged)
        verdicts = [next(left) if premise else _NOTHING_TO_JUDGE for premise in premises]
        opened.set("fairqr.ranking", ranking["number"])
        opened.set("fairqr.attributed", sum(verdict.attributed or False for verdict in verdicts))
        opened.set("fairqr.statuses", [verdict.status for verdict in verdicts])
        for rank, verdict in enumerate(verdicts, start=1):
            record_verdict(opened, rank, verdict)
        return {"verdicts": [_verdict_record(ranking["number"], verdicts)]}

    @traced
    async def summarise(self, state: State, runtime: Runtime[AnswerContext]) -> Update:
        """Put the result together: the answers, and the exposure of documents and groups."""
        context, opened = self._context(runtime), current_span()
        result = await summarised(
            self._engine,
            state,
            context,
            generator=self._given_generator(),
            prompt=self._prompt(context).reference,
            attributor=self._attributor,
        )
        for name in ("disparity", "attributed_disparity", "attribution_rate"):
            if (figure := getattr(result, name)) is not None:
                opened.set(f"fairqr.{name}", figure)
        models = {"generator": result.generator, "attributor": result.attributor}
        record_outcome(opened, result.usage, [result.prompt], **models)
        return {"answer": result.model_dump(mode="json")}

    def _prompt(self, context: AnswerContext) -> PromptTemplate:
        return self._prompts.get(PROMPT, context.prompts.get(PROMPT))

    def _given_generator(self) -> Generator:
        if self._generator is None:
            raise ModelUnavailableError(
                "No model is given to answer with; name a chat model, or give a generator."
            )
        return self._generator


def to_generate(state: State) -> list[Send]:
    """Send each distinct ranking to be answered from."""
    return [
        Send(
            "generate",
            GenerationTask(
                query=state["query"],
                ranking=ranking,
                seed=state["seed"],
                seconds=state["seconds"],
                is_alone=len(state["sampled"]) == 1,
            ),
        )
        for ranking in state["sampled"]
    ]


def _distinct_rankings(
    places: Sequence[Mapping[str, Any]], settings: AnswerSettings, seed: int, query: str
) -> list[SampledRanking]:
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
        The rankings in the order of their first draw; ``times`` sums to the number of samples.
    """
    worths = sorted((place["score"] for place in places), reverse=True)
    stream = stream_of(seed, query)
    drawn = sample_plackett_luce(
        worths, settings.alpha, settings.samples, settings.documents, stream, settings.form
    )
    counts: dict[tuple[int, ...], int] = {}
    for row in drawn.tolist():
        counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    return [
        SampledRanking(number=number, ids=[places[at]["id"] for at in row], times=times)
        for number, (row, times) in enumerate(counts.items())
    ]


_NO_TIME_LEFT = "The time of the budget was spent before the answer was judged."
_NOTHING_TO_JUDGE = Entailment("empty_document", message="The document has no text.")


def _fields(document: Document, number: int) -> dict[str, str]:
    """Return the fields of a document that a prompt may show."""
    return {"number": str(number), "title": document.title, "text": document.text}


def _premise(document: Document | None) -> str:
    """Return the whole text of a document, even if the generator read only its beginning.

    The title comes first, because it is often the subject of the text.
    """
    if document is None:  # it was deleted meanwhile
        return ""
    return "\n".join(part.strip() for part in (document.title, document.text) if part.strip())


def _verdict_record(number: int, verdicts: Sequence[Entailment]) -> VerdictRecord:
    return VerdictRecord(
        number=number,
        used=[verdict.attributed for verdict in verdicts],
        statuses=[verdict.status for verdict in verdicts],
        scores=[verdict.score for verdict in verdicts],
        messages=list(dict.fromkeys(verdict.message for verdict in verdicts if verdict.message)),
        usage=usage_record(sum((verdict.usage for verdict in verdicts), Usage())),
    )
