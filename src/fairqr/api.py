"""The façade: fair search, fair answers, and probes of models, in two lines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fairqr.agents.attribution.base import Attributor
from fairqr.agents.attribution.open import DEFAULT_ATTRIBUTOR
from fairqr.agents.generation import Generator
from fairqr.base.errors import InputError
from fairqr.base.loops import Background
from fairqr.graph.answer.builder import build_answer_graph
from fairqr.graph.answer.context import AnswerContext, answer_context
from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.probe.builder import build_probe_graph
from fairqr.graph.probe.context import ProbeContext, probe_context
from fairqr.graph.probe.result import ProbeResult
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context, make_context
from fairqr.graph.search.rankers import (
    GivenModel,
    GivenRanker,
    Rankers,
    model_of,
    open_language_model,
)
from fairqr.graph.search.result import SearchResult
from fairqr.graph.steps import CONCURRENCY
from fairqr.graph.stream import Step, Token, run_graph
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.documents import Document
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.source import Source, source_of

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from fairqr.parts import FairRetriever

__all__ = ["FairSearch", "Step", "Token", "open_engine"]

T = TypeVar("T")
C = TypeVar("C", bound=Context)

_NAMED = (str, Path, Source, Mapping)
"""What a source is opened from; all else is an engine that is open."""


async def open_engine(
    source: str | Path | Source | Mapping[str, Any],
    *,
    retriever: str | Encoder = "bm25",
    schema: Path | None = None,
) -> SearchEngine:
    """Open a search engine; whoever opens it closes it with ``await engine.aclose()``.

    Args:
        source: The name of an attached source, of an index or of a built-in corpus; the path of a
            source file or of a corpus, which is indexed first; or a source, also as the mapping
            that a source file would hold.
        retriever: ``bm25``; ``dense`` or ``dense:ENCODER`` for vector search; or an encoder.
        schema: The schema of a corpus that is a path.

    Raises:
        FairqrError: There is no such source, or it cannot be opened; the message says what to do.
    """
    if isinstance(source, Mapping):
        source = source_of(source)
    named = str(source) if isinstance(source, Path) else source
    return await Catalog().resolve(named, retriever=retriever, schema=schema)


class Graphs(NamedTuple):
    """The three graphs over one engine."""

    engine: SearchEngine
    search: Any
    answer: Any
    probe: Any


class FairSearch:
    """Searches fairly through a search engine, answers questions from it, and probes models on it.

    What it opened it closes: use it as ``with FairSearch(…)`` from code that is not asynchronous,
    and as ``async with FairSearch(…)`` on your own event loop.

    Example::

        search = FairSearch("notables", "local:smollm2-135m")
        result = search.search("physicist", attributes=["gender"])
        answer = search.answer("Which composer was born in Vienna?", samples=10)
        probe = search.probe("physicist", attribute="gender", protected="female")

    Args:
        source: An open engine, which stays open, or what :func:`open_engine` takes.
        model: What refines queries, also a chat model of LangChain's, or its name; defaults to the
            configured model. It also re-ranks where a ranker is named, and is what is probed.
        generator: What answers, or its name; defaults to the model.
        ranker: What re-ranks instead of the model: a language model or its name, or a ranker.
        attributor: What judges which documents an answer used, or its name; None leaves that out.
        prompts: Where prompts come from.
        concurrency: How many rankings are answered from, or judged, at the same time; and how many
            questions a chat model that judges is asked, if it is named here.

    Raises:
        InputError: The source is none of these.
    """

    def __init__(
        self,
        source: SearchEngine | Source | Mapping[str, Any] | Path | str,
        model: GivenModel | None = None,
        *,
        ranker: GivenRanker | None = None,
        generator: Generator | BaseChatModel | str | None = None,
        attributor: Attributor | str | None = DEFAULT_ATTRIBUTOR,
        prompts: PromptLibrary | None = None,
        concurrency: int = CONCURRENCY,
    ) -> None:
        if not isinstance(source, _NAMED) and not hasattr(source, "capabilities"):
            raise InputError(
                "FairSearch takes an open engine, or the name, file or content of a source, not "
                f"{type(source).__name__}; from_langchain makes an engine of a retriever."
            )
        self._source = source
        self._engine: SearchEngine | None = None
        self._model = model
        self._ranker = ranker
        self._generator = generator
        self._attributor = attributor
        self._concurrency = concurrency
        self._prompts = prompts or PromptLibrary()
        self._graphs: Graphs | None = None
        self._lock = threading.Lock()
        self._opening = False
        self._waiting: list[Future[None]] = []
        self._background: Background | None = None

    async def asearch(
        self,
        query: str,
        context: Context | None = None,
        *,
        attribute: str | Sequence[str] | None = None,
        **options: Any,
    ) -> SearchResult:
        """Search.

        Args:
            query: What to search for.
            context: What is asked, as one object.
            attribute: One attribute or several, instead of ``attributes`` in the context.
            options: The values of :class:`fairqr.graph.search.context.Context`, such as ``k=10``,
                instead of a context.

        Raises:
            FairqrError: Something that was given is wrong; the message says what to do.
        """
        result: dict[str, Any] = {}
        steps = self.stream(query, context, attribute=attribute, **options)
        async with aclosing(steps):
            async for step in steps:
                result = step.update.get("result", result)
        return SearchResult.model_validate(result)

    async def stream(
        self,
        query: str,
        context: Context | None = None,
        *,
        attribute: str | Sequence[str] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Step, None]:
        """Search, and yield each step as it happens. Arguments are those of :meth:`asearch`.

        The search goes on when the next step is asked for. It ends when the generator is closed:
        leave it early inside of ``contextlib.aclosing``, or call its ``aclose``.
        """
        asked = _only(context, {"attribute": attribute, **options}) or make_context(
            attribute=attribute, **options
        )
        async with aclosing(run_graph((await self._ready()).search, query, asked)) as events:
            async for event in events:
                if isinstance(event, Step):
                    yield event

    async def aprobe(
        self,
        query: str,
        context: ProbeContext | None = None,
        *,
        attribute: str | None = None,
        protected: str | None = None,
        **options: Any,
    ) -> ProbeResult:
        """Ask whether the model, asked to rank the result of a query, leans to a group.

        Args:
            query: What to search for.
            context: What is asked, as one object.
            attribute: What tells the groups apart; needed without a context, as is ``protected``.
            protected: Which of them count as protected: ``female``, ``not Europe``.
            options: The values of :class:`fairqr.graph.probe.context.ProbeSettings`, such as
                ``pairs=20``, and those of :class:`fairqr.graph.probe.context.ProbeContext`.
                ``depth`` is how many of the ``k`` documents take part, and ``seed`` that of the
                probe.

        Raises:
            FairqrError: Something that was given is wrong; the message says what to do.
        """
        result: dict[str, Any] | None = None
        steps = self.stream_probe(
            query, context, attribute=attribute, protected=protected, **options
        )
        async with aclosing(steps):
            async for step in steps:
                result = step.update.get("probe") or result
        return ProbeResult.model_validate(result)

    async def stream_probe(
        self,
        query: str,
        context: ProbeContext | None = None,
        *,
        attribute: str | None = None,
        protected: str | None = None,
        **options: Any,
    ) -> AsyncGenerator[Step, None]:
        """Probe, and yield each step as it happens.

        Arguments are those of :meth:`aprobe`; see :meth:`stream` for when it ends.
        """
        given = {"attribute": attribute, "protected": protected, **options}
        asked = _only(context, given) or probe_context(**given)
        async with aclosing(run_graph((await self._ready()).probe, query, asked)) as events:
            async for event in events:
                if isinstance(event, Step):
                    yield event

    async def aanswer(
        self,
        question: str,
        context: AnswerContext | None = None,
        *,
        attribute: str | Sequence[str] | None = None,
        **options: Any,
    ) -> AnswerResult:
        """Answer a question from sampled rankings of the documents.

        Args:
            question: What to answer.
            context: What is asked, as one object.
            attribute: One attribute or several, instead of ``attributes`` in the context.
            options: The values of :class:`fairqr.graph.answer.context.AnswerSettings`, such as
                ``alpha=2``, ``samples=10`` and ``documents=5``, and those of
                :class:`fairqr.graph.answer.context.AnswerContext`. ``k`` is how many documents take
                part in the sampling, and ``temperature`` that of the answer.

        Raises:
            FairqrError: Something that was given is wrong; the message says what to do.
        """
        result: dict[str, Any] | None = None
        if context is None:
            options["stream"] = False
        steps = self.stream_answer(question, context, attribute=attribute, **options)
        async with aclosing(steps):
            async for step in steps:
                if isinstance(step, Step):
                    result = step.update.get("answer") or result
        return AnswerResult.model_validate(result)

    async def stream_answer(
        self,
        question: str,
        context: AnswerContext | None = None,
        *,
        attribute: str | Sequence[str] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Step | Token, None]:
        """Answer, and yield each step, and the answer piece by piece where there is one ranking.

        Arguments are those of :meth:`aanswer`; see :meth:`stream` for when it ends.
        """
        asked = _only(context, {"attribute": attribute, **options}) or answer_context(
            attribute=attribute, **{"stream": True, **options}
        )
        async with aclosing(run_graph((await self._ready()).answer, question, asked)) as events:
            async for event in events:
                yield event

    def search(
        self,
        query: str,
        context: Context | None = None,
        *,
        attribute: str | Sequence[str] | None = None,
        **options: Any,
    ) -> SearchResult:
        """Search, from code that is not asynchronous. Arguments are those of :meth:`asearch`.

        It may be called from several threads, and inside a running event loop, as in a notebook.
        """
        return self._run(self.asearch(query, context, attribute=attribute, **options))

    def probe(self, query: str, context: ProbeContext | None = None, **options: Any) -> ProbeResult:
        """Probe, from code that is not asynchronous. Arguments are those of :meth:`aprobe`.

        It may be called where :meth:`search` may be.
        """
        return self._run(self.aprobe(query, context, **options))

    def answer(
        self, question: str, context: AnswerContext | None = None, **options: Any
    ) -> AnswerResult:
        """Answer, from code that is not asynchronous. Arguments are those of :meth:`aanswer`.

        It may be called where :meth:`search` may be.
        """
        return self._run(self.aanswer(question, context, **options))

    async def adocuments(self, ids: Sequence[str]) -> list[Document]:
        """Return the titles and texts of documents, in this order; unknown ones are left out."""
        return await (await self._ready()).engine.documents(ids)

    def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return documents, from code that is not asynchronous; see :meth:`adocuments`."""
        return self._run(self.adocuments(ids))

    def as_retriever(self, context: Context | None = None, **options: Any) -> FairRetriever:
        """Return a retriever of LangChain whose results are this search's, with their texts.

        Args:
            context: What each search is asked to do.
            options: The values of a context, instead of one.
        """
        from fairqr.parts import FairRetriever

        return FairRetriever(
            search=self, context=_only(context, options) or make_context(**options)
        )

    async def aclose(self) -> None:
        """Close what was opened here: the engine's clients on this event loop, and all else."""
        try:
            if self._engine is not None:
                await self._engine.aclose()
        finally:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close what was opened here, and end the thread of :meth:`search`.

        Clients that :meth:`asearch` used on your own event loop are closed by :meth:`aclose`, since
        a client cannot leave its loop.
        """
        with self._lock:
            engine, self._engine, self._graphs = self._engine, None, None
            background, self._background = self._background, None
        if background is None:
            return
        try:
            if engine is not None:
                background.run(engine.aclose())
        finally:
            background.end()

    async def __aenter__(self) -> FairSearch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> FairSearch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _ready(self) -> Graphs:
        """Return the graphs. The first who asks opens the engine; others wait, on whatever loop."""
        while True:
            with self._lock:
                if self._graphs is not None:
                    return self._graphs
                if not self._opening:
                    self._opening = True
                    break
                waiter: Future[None] = Future()
                self._waiting.append(waiter)
            await asyncio.wrap_future(waiter)
        try:
            graphs = await self._open()
            with self._lock:
                self._graphs = graphs
            return graphs
        finally:
            # Where it failed, the next one tries.
            with self._lock:
                self._opening = False
                waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(None)

    async def _open(self) -> Graphs:
        try:
            return await self._built()
        except BaseException:
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.aclose()
            raise

    async def _built(self) -> Graphs:
        source, model = self._source, self._model
        if isinstance(source, _NAMED):
            engine = self._engine = await open_engine(source)
        else:
            engine = source
        # Both are opened once for the three graphs.
        opened = open_language_model(engine=engine) if model is None else model_of(model, engine)
        rankers = Rankers.of(self._ranker, opened, self._prompts)
        given: dict[str, Any] = {"ranker": rankers, "prompts": self._prompts}
        return Graphs(
            engine=engine,
            search=build_search_graph(engine, opened, **given),
            answer=build_answer_graph(
                engine,
                opened,
                generator=self._generator,
                attributor=self._attributor,
                concurrency=self._concurrency,
                **given,
            ),
            probe=build_probe_graph(engine, opened, concurrency=self._concurrency, **given),
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in an event loop of our own, on a thread that lives as long as this object."""
        with self._lock:
            if self._background is None:
                self._background = Background()
            background = self._background
        return background.run(work)


def _only(context: C | None, options: Mapping[str, Any]) -> C | None:
    """Return the context, if one is given.

    Raises:
        InputError: Values are given beside it.
    """
    given = sorted(name for name, value in options.items() if value is not None)
    if context is not None and given:
        raise InputError(f"'{given[0]}' is given beside a context; put it into the context.")
    return context
