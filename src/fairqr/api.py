"""The façade: fair search, fair answers, and probes of models, in two lines."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from collections.abc import Generator as Iterating
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, Unpack

from langchain_core.messages import AIMessageChunk

from fairqr.agents.attribution.attributor import Attributor
from fairqr.agents.attribution.opening import DEFAULT_ATTRIBUTOR
from fairqr.agents.generators import Generator
from fairqr.base.errors import InputError
from fairqr.base.loops import BackgroundLoop
from fairqr.base.settings import default_model
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.opening import RunParts, open_parts
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.probe.result import ProbeResult
from fairqr.graph.running import CONCURRENCY
from fairqr.graph.search.context import Context, require_context
from fairqr.graph.search.models import GivenModel
from fairqr.graph.search.rankers import GivenRanker
from fairqr.graph.search.result import SearchResult
from fairqr.graph.step import Step
from fairqr.graph.stream import StepData, final_step_of, run_graph, step_data
from fairqr.keywords import AnswerKeywords, ProbeKeywords, SearchKeywords
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.encoders.opening import AUTO, as_encoder
from fairqr.retrieval.engines.engine import EngineOverWords, SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.source import Source, source_of

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models import BaseChatModel

    from fairqr.parts import FairRetriever

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Context)
R = TypeVar("R", SearchResult, AnswerResult, ProbeResult)
Result = SearchResult | AnswerResult | ProbeResult
_RESULTS: Mapping[str, type[Result]] = {
    "search": SearchResult,
    "answer": AnswerResult,
    "probe": ProbeResult,
}
"""What a run ends with, by the kind of its context."""


StreamEvent = StepData | AIMessageChunk | Result
"""A step that has ended, a piece of an answer, or, last, the result."""

Named = str | Path | Source | Mapping[str, Any]
"""Names or describes a source. Any other value must be an open engine."""

_SOURCE_TYPES = (str, Path, Source, Mapping)

OPENING = 0.01
"""Seconds until we look again whether another caller has opened the engine."""


async def open_engine(
    source: Named, *, retriever: str | Encoder | Embeddings = AUTO, schema: Path | None = None
) -> SearchEngine:
    """Open a search engine. Close it with ``await engine.aclose()`` when you are done.

    Args:
        source: The name of an attached source, an index or a built-in corpus; the path of a source
            file or of a corpus, which is indexed first; a :class:`Source`; or a mapping with the
            content of a source file.
        retriever: ``bm25`` searches by words; ``dense`` by vectors; ``hybrid`` by both, as do an
            encoder and a LangChain ``Embeddings`` object. ``dense`` and ``hybrid`` may name an
            encoder, as in ``dense:ENCODER``. ``auto`` is ``hybrid`` for an index once MiniLM is
            pulled, and otherwise the engine's own ranking.
        schema: The schema file, if ``source`` is the path of a corpus.

    Raises:
        FairqrError: The source does not exist or cannot be opened; the message says what to do.
    """
    if isinstance(source, Mapping):
        source = source_of(source)
    elif isinstance(source, Path):
        source = str(source)
    if not isinstance(retriever, str):
        retriever = as_encoder(retriever)
    return await Catalog().resolve(source, retriever=retriever, schema=schema)


def check_source(source: object, retriever: object, user: str) -> None:
    """Check what a user gave as a source.

    Args:
        source: An open engine, or what :func:`open_engine` takes.
        retriever: The retriever for it.
        user: The name of the function or class that takes it.

    Raises:
        InputError: It is neither, or an open engine is given with a retriever.
    """
    if isinstance(source, _SOURCE_TYPES):
        return
    if not hasattr(source, "capabilities"):
        raise InputError(
            f"{user} takes an open engine, or the name, file or content of a source, not "
            f"{type(source).__name__}; from_langchain wraps a retriever as an engine."
        )
    if retriever != AUTO:
        raise InputError(
            "An open engine has its own retriever; leave retriever out, or name the source."
        )


class FairSearch:
    """Searches fairly through a search engine, answers questions from it, and probes models on it.

    ``async with`` and ``with`` open everything at once and close it at the end, on the event loop
    that opened it. So a wrong name, a missing key or a search engine that is down is reported
    before the first search; the model's server gets its first request from a search. ``with`` gives
    a :class:`SyncFairSearch`.

    Without them, the object opens what it needs at the first call, which suits parts that live as
    long as the program; close it with :meth:`aclose`. An engine that you give stays yours to close.

    Example::

        async with FairSearch.open("notables", "local:smollm2-135m") as search:
            result = await search.search("physicist", Context(attributes=("gender",)))
            result = await search.search("physicist", attributes=["gender"])  # the same, shorter

        with FairSearch.open("notables", "local:smollm2-135m") as search:  # without async
            result = search.search("physicist", attributes=["gender"])

    Args:
        source: An open engine, or what :func:`open_engine` takes.
        model: The model that refines queries: its name, or a LangChain chat model; defaults to the
            configured model. Methods that re-rank with a model use it too, and :meth:`probe`
            probes it.
        retriever: How to find documents, unless ``source`` is an open engine; see
            :func:`open_engine`. With ``auto``, the method ``fair-qr`` searches by words, as FAIR-QR
            did.
        ranker: Re-ranks instead of ``model``: the name of a model, a model, or a ranker.
        generator: Writes the answers: a generator, a LangChain chat model, or a name; defaults to
            ``model``.
        attributor: Decides which documents an answer used: an attributor, its name, or a LangChain
            chat model. None skips this step.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        concurrency: How many answers to write or judge at a time. A chat model named as the
            attributor gets at most this many requests at once.

    Raises:
        InputError: The type of the source is not listed above, or a retriever is given for an open
            engine, which has its own.
    """

    def __init__(
        self,
        source: SearchEngine | Named,
        model: GivenModel | None = None,
        *,
        retriever: str | Encoder | Embeddings = AUTO,
        ranker: GivenRanker | None = None,
        generator: Generator | BaseChatModel | str | None = None,
        attributor: Attributor | BaseChatModel | str | None = DEFAULT_ATTRIBUTOR,
        prompts: PromptLibrary | None = None,
        concurrency: int = CONCURRENCY,
    ) -> None:
        check_source(source, retriever, "FairSearch")
        self._source = source
        self._retriever = retriever
        self._model = model
        self._ranker = ranker
        self._generator = generator
        self._attributor = attributor
        self._prompts = prompts or PromptLibrary()
        self._concurrency = concurrency

        # The engine is ours to close; None until we open one, or if the user gave an open one.
        self._engine: SearchEngine | None = None
        self._parts: RunParts | None = None
        self._opening = threading.Lock()
        self._background: BackgroundLoop | None = None
        self._background_lock = threading.Lock()

    @classmethod
    def open(cls: Callable[P, FairSearch], *args: P.args, **options: P.kwargs) -> Opening:
        """Return an object for ``with`` or ``async with``; takes what the class takes."""
        return Opening(cls(*args, **options))

    async def __aenter__(self) -> FairSearch:
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> SyncFairSearch:
        try:
            self._run(self._start())
        except BaseException:
            self._close_background()
            raise
        return self.sync

    def __exit__(self, *_: object) -> None:
        self._close_background()

    @property
    def sync(self) -> SyncFairSearch:
        """The synchronous twin of this object, with the same methods."""
        return SyncFairSearch(self)

    async def stream(
        self, query: str, context: Context | None = None, **options: Unpack[SearchKeywords]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Search, answer or probe as a context asks, and yield what happens; the result comes last.

        Each step that ends is a :class:`StepData`. An answer from a single ranking arrives in
        pieces, as LangChain's ``AIMessageChunk``, if ``context.answer.stream`` is on.

        The context is a :class:`Context`, an :class:`AnswerContext` or a :class:`ProbeContext`; a
        search also takes options, as :meth:`search` does. The run waits until you ask for the
        next event, and ends when you close the generator; to leave early, use
        ``contextlib.aclosing``.
        """
        context = _context_from(Context, context, options, is_any_kind=True)
        graph = await self._graph(context)
        state: dict[str, Any] = {}
        async with aclosing(run_graph(graph, query, context)) as events:
            async for event in events:
                if isinstance(event, Step):
                    state |= event.update
                    yield StepData.model_validate(step_data(context.kind, event))
                else:
                    yield event
        result_type = _RESULTS[context.kind]
        yield result_type.model_validate(_result_in(state, context))

    async def search(
        self, /, query: str, context: Context | None = None, **options: Unpack[SearchKeywords]
    ) -> SearchResult:
        """Search fairly for a query.

        Args:
            query: What to search for.
            context: All options as one object.
            options: The values of :class:`fairqr.graph.search.context.Context`, such as ``k=10``,
                instead of a context. ``attribute`` takes one attribute or several.

        Raises:
            FairqrError: The request cannot be carried out; the message says what to do.
        """
        context = _context_from(Context, context, options)
        return await self._run_to_end(query, context, SearchResult)

    async def answer(
        self,
        /,
        question: str,
        context: AnswerContext | None = None,
        **options: Unpack[AnswerKeywords],
    ) -> AnswerResult:
        """Answer a question from sampled rankings of the documents.

        Args:
            question: What to answer.
            context: All options as one object.
            options: The values of :class:`fairqr.graph.answer.context.AnswerSettings`, such as
                ``alpha=2``, ``samples=10`` and ``documents=5``, and those of
                :class:`fairqr.graph.answer.context.AnswerContext`, instead of a context. ``k`` is
                the number of documents to sample from; ``temperature`` applies to the answer.

        Raises:
            FairqrError: The request cannot be carried out; the message says what to do.
        """
        context = _context_from(AnswerContext, context, options)
        return await self._run_to_end(question, context, AnswerResult)

    async def probe(
        self, /, query: str, context: ProbeContext | None = None, **options: Unpack[ProbeKeywords]
    ) -> ProbeResult:
        """Ask whether the model, when it ranks the results of a query, favours a group.

        Args:
            query: What to search for.
            context: All options as one object.
            options: The values of :class:`fairqr.graph.probe.context.ProbeSettings`, such as
                ``pairs=20``, and those of :class:`fairqr.graph.probe.context.ProbeContext`, instead
                of a context. ``attribute`` is required. ``protected`` names its protected group,
                such as ``not Europe``; the default is ``female``. ``depth`` is how many of the
                ``k`` documents take part; ``seed`` applies to the probe.

        Raises:
            FairqrError: The request cannot be carried out; the message says what to do.
        """
        context = _context_from(ProbeContext, context, options)
        return await self._run_to_end(query, context, ProbeResult)

    async def _run_to_end(self, query: str, context: Context, result_type: type[R]) -> R:
        """Run the graph of a context without its events, and return the result."""
        graph = await self._graph(context)
        final_step = await final_step_of(graph, query, context)
        return result_type.model_validate(_result_in(final_step.update, context))

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return the titles and texts of documents, in this order; unknown ids are left out."""
        parts = await self._ready()
        return await parts.engine.documents(ids)

    def as_retriever(
        self, context: Context | None = None, **options: Unpack[SearchKeywords]
    ) -> FairRetriever:
        """Return a LangChain retriever that searches fairly and returns documents with texts.

        Args:
            context: The options of every search, as one object.
            options: The values of a context, instead of a context.
        """
        from fairqr.parts import FairRetriever

        return FairRetriever(search=self, context=_context_from(Context, context, options))

    async def aclose(self) -> None:
        """Close everything this object opened, on this event loop and for :attr:`sync`."""
        try:
            if self._engine is not None:
                await self._engine.aclose()
        finally:
            await asyncio.to_thread(self._close_background)

    def _close_background(self) -> None:
        """Close the engine on our own event loop, and end that loop."""
        with self._background_lock:
            engine = self._engine
            background = self._background
            self._engine = None
            self._parts = None
            self._background = None
        if background is None:
            return
        try:
            if engine is not None:
                background.run(engine.aclose())
        finally:
            background.end()

    async def _start(self) -> None:
        """Open everything, and start the model if one was named."""
        parts = await self._ready()
        for kind in _RESULTS:
            parts.graph(kind)
        model: Any = parts.model
        if self._model is not None and hasattr(model, "start"):
            await model.start()

    async def _ready(self) -> RunParts:
        """Return what is open. The first caller opens it; the others wait, on any loop."""
        while self._parts is None:
            if not self._opening.acquire(blocking=False):
                await asyncio.sleep(OPENING)
                continue
            try:
                self._parts = self._parts or await self._open()
            finally:
                self._opening.release()
        return self._parts

    async def _open(self) -> RunParts:
        """Open the engine and the models."""
        engine = self._source
        if isinstance(engine, _SOURCE_TYPES):
            # The engine is open already if the model could not be opened the last time.
            if self._engine is None:
                self._engine = await open_engine(engine, retriever=self._retriever)
            engine = self._engine
        return open_parts(
            engine,
            default_model() if self._model is None else self._model,
            ranker=self._ranker,
            generator=self._generator,
            attributor=self._attributor,
            prompts=self._prompts,
            concurrency=self._concurrency,
        )

    async def _graph(self, context: Context) -> Any:
        """Return the graph of a context, with the retriever that its method uses for ``auto``."""
        parts = await self._ready()
        engine = parts.engine
        is_auto = self._retriever == AUTO and isinstance(self._source, _SOURCE_TYPES)
        method_chooses = context.strategy.retriever != AUTO
        if is_auto and method_chooses and isinstance(engine, EngineOverWords):
            engine = engine.lexical
        return parts.graph(context.kind, engine)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on our own event loop, on a thread that lives until this object is closed."""
        with self._background_lock:
            if self._background is None:
                self._background = BackgroundLoop()
            background = self._background
        return background.run(work)


def _blocking(
    method: Callable[Concatenate[FairSearch, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncFairSearch, P], T]:
    """Return the synchronous twin of a method, which waits for the result."""

    @functools.wraps(method)
    def wait(self: SyncFairSearch, /, *args: P.args, **options: P.kwargs) -> T:
        return self._run(method(self.asynchronous, *args, **options))

    return wait


class Opening:
    """A :class:`FairSearch` that ``with`` or ``async with`` opens, and that is closed at its end.

    Everything else is refused: a search without ``with`` would leave open what it opened, and one
    without ``await`` would do nothing.
    """

    def __init__(self, search: FairSearch) -> None:
        self._search = search

    async def __aenter__(self) -> FairSearch:
        return await self._search.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._search.__aexit__(*error)

    def __enter__(self) -> SyncFairSearch:
        return self._search.__enter__()

    def __exit__(self, *error: object) -> None:
        self._search.__exit__(*error)

    def __getattr__(self, name: str) -> NoReturn:
        if not hasattr(FairSearch, name):
            raise AttributeError(f"'Opening' has no attribute '{name}'.")
        raise InputError(
            f"Write 'with FairSearch.open(…) as search:' and call search.{name} there, or take "
            f"FairSearch(…).sync.{name} and close it yourself."
        )


class SyncFairSearch:
    """A :class:`FairSearch` for synchronous code; its methods wait for the result.

    Several threads may share it, and it works while an event loop runs, as in a notebook. Get one
    from ``with FairSearch.open(…) as search`` or from :attr:`FairSearch.sync`.
    """

    def __init__(self, search: FairSearch) -> None:
        self.asynchronous = search
        self._run = search._run

    def stream(
        self, query: str, context: Context | None = None, **options: Unpack[SearchKeywords]
    ) -> Iterating[StreamEvent, None, None]:
        """Yield what happens, and last the result; see :meth:`FairSearch.stream`."""
        events = self.asynchronous.stream(query, context, **options)

        async def next_event() -> StreamEvent | None:
            return await anext(events, None)

        try:
            while (event := self._run(next_event())) is not None:
                yield event
        finally:
            self._run(events.aclose())

    search = _blocking(FairSearch.search)
    answer = _blocking(FairSearch.answer)
    probe = _blocking(FairSearch.probe)
    documents = _blocking(FairSearch.documents)

    def as_retriever(
        self, context: Context | None = None, **options: Unpack[SearchKeywords]
    ) -> FairRetriever:
        """Return a LangChain retriever; see :meth:`FairSearch.as_retriever`."""
        return self.asynchronous.as_retriever(context, **options)

    def close(self) -> None:
        """Close everything that these methods opened."""
        self.asynchronous._close_background()


def _result_in(state: Mapping[str, Any], context: Context) -> Any:
    """Return the result in the last state of a run, as plain data.

    Raises:
        InputError: A node called LangGraph's ``interrupt``, so there is no result.
    """
    result = state.get("result" if context.kind == "search" else context.kind)
    if result is None:
        raise InputError(
            "The run was interrupted, and FairSearch cannot resume one; use build_search_graph "
            "with a checkpointer."
        )
    return result


def _context_from(
    context_type: type[C],
    context: C | None,
    options: Mapping[str, Any],
    *,
    is_any_kind: bool = False,
) -> C:
    """Return the context that a user gave, or make one from options; see :meth:`Context.of`.

    Args:
        context_type: The type of the context.
        context: The user's context, if there is one.
        options: The values to make one from.
        is_any_kind: Take contexts of other kinds of runs, too.

    Raises:
        InputError: The context is of another kind, comes with options, or an option is wrong.
    """
    if context is None:
        return context_type.of(**options)
    require_context(context_type, context)
    extra_options = sorted(name for name, value in options.items() if value is not None)
    if extra_options:
        name = extra_options[0]
        raise InputError(f"'{name}' is given beside a context; put it into the context.")
    if context.kind != context_type.kind and not is_any_kind:
        raise InputError(
            f"{context_type.kind} takes a Context; {context.kind} takes the "
            f"{type(context).__name__}."
        )
    return context
