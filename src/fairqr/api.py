"""The façade: fair search in two lines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from fairqr.agents.chat import ChatModel
from fairqr.agents.models import open_model
from fairqr.agents.refiner import Refiner
from fairqr.graph.builder import build_graph
from fairqr.graph.context import Context, make_context
from fairqr.graph.result import SearchResult
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.catalog import Catalog, Choice
from fairqr.retrieval.index import Index
from fairqr.retrieval.vectors.encoder import Encoder
from fairqr.retrieval.vectors.open import open_retriever
from fairqr.telemetry import span

__all__ = ["FairSearch", "Step", "open_index"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the loop that has just happened.

    Attributes:
        name: ``begin``, ``retrieve``, ``measure``, ``choose_group``, ``refine`` or ``rerank``.
        update: What it changed in the state of the graph; see :class:`fairqr.graph.state.State`.
            The last step is ``rerank``, whose ``result`` is the search result's object.
    """

    name: str
    update: dict[str, Any]


async def open_index(
    corpus: str,
    *,
    backend: str | None = None,
    url: str | None = None,
    retriever: str | Encoder = "bm25",
) -> Index:
    """Open an index by name, or index a built-in corpus or a path first; see :class:`Catalog`.

    Args:
        corpus: The name of an index or of a built-in corpus, or a path.
        backend: ``tantivy`` or ``elasticsearch``.
        url: Of the Elasticsearch server.
        retriever: ``bm25``; ``dense`` or ``dense:ENCODER`` for vector search; or an encoder.
    """
    choice = Choice(backend or "tantivy", url) if backend or url else None  # type: ignore[arg-type]
    return await open_retriever(await Catalog().resolve(corpus, choice), retriever)


class FairSearch:
    """Searches an index fairly.

    Example::

        search = FairSearch("notables", "local:smollm2-135m")
        result = search.search("physicist", attributes=["gender"])

    Args:
        index: An open index, or what :func:`open_index` takes.
        model: What refines queries, or its name; the configured model where None.
        prompts: Where prompts come from.
    """

    def __init__(
        self,
        index: Index | str,
        model: ChatModel | Refiner | str | None = None,
        *,
        prompts: PromptLibrary | None = None,
    ) -> None:
        self._corpus = index
        self._model = model
        self._prompts = prompts or PromptLibrary()
        self._graph: Any = None
        self._lock = threading.Lock()
        self._opening = False
        self._waiting: list[Future[None]] = []
        self._background: _Background | None = None

    async def asearch(
        self, query: str, *, attribute: str | Sequence[str] | None = None, **context: Any
    ) -> SearchResult:
        """Search.

        Args:
            query: What to search for.
            attribute: One attribute or several, instead of ``attributes`` in the context.
            context: The values of :class:`fairqr.graph.context.Context`, such as ``k=10``.

        Raises:
            FairqrError: Something that was given is wrong; the message says what to do.
        """
        result: dict[str, Any] | None = None
        async with aclosing(self.stream(query, attribute=attribute, **context)) as steps:
            async for step in steps:
                result = step.update.get("result", result)
        return SearchResult.model_validate(result)

    async def stream(
        self, query: str, *, attribute: str | Sequence[str] | None = None, **context: Any
    ) -> AsyncGenerator[Step, None]:
        """Search, and yield each step as it happens. Arguments are those of :meth:`asearch`.

        The search goes on when the next step is asked for. It ends when the generator is closed:
        leave it early inside of ``contextlib.aclosing``, or call its ``aclose``.
        """
        if attribute is not None:
            context["attributes"] = [attribute] if isinstance(attribute, str) else list(attribute)
        asked = make_context(**context)
        graph = await self._ready()
        steps: asyncio.Queue[Step | None] = asyncio.Queue()

        async def run() -> None:
            updates = graph.astream({"query": query}, context=asked, stream_mode="updates")
            try:
                with span("invoke_workflow fairqr", **_asked(asked)):
                    async with aclosing(updates):
                        async for update in updates:
                            for name, change in update.items():
                                steps.put_nowait(Step(name, change or {}))
                                await steps.join()
            finally:
                steps.put_nowait(None)

        # A generator runs in the context of whoever asks it for the next step or closes it, so that
        # a span cannot be open across its yields. A task has a context of its own.
        task = asyncio.create_task(run())
        try:
            while (step := await steps.get()) is not None:
                yield step
                steps.task_done()
            await task
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # it has been raised above, or nobody is there to take it

    def search(
        self, query: str, *, attribute: str | Sequence[str] | None = None, **context: Any
    ) -> SearchResult:
        """Search, from code that is not asynchronous. Arguments are those of :meth:`asearch`.

        It may be called from several threads, and inside a running event loop, as in a notebook.
        """
        return self._run(self.asearch(query, attribute=attribute, **context))

    def close(self) -> None:
        """Close the index if it was opened here, and end the thread of :meth:`search`."""
        try:
            if isinstance(self._corpus, str) and self._graph is not None:
                self._graph = None
                self._run(self._index.close())
        finally:
            with self._lock:
                background, self._background = self._background, None
            if background is not None:
                background.end()

    def __enter__(self) -> FairSearch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _ready(self) -> Any:
        """Return the graph. The first who asks opens the index; others wait, on whatever loop."""
        while True:
            with self._lock:
                if self._graph is not None:
                    return self._graph
                if not self._opening:
                    self._opening = True
                    break
                waiter: Future[None] = Future()
                self._waiting.append(waiter)
            await asyncio.wrap_future(waiter)
        try:
            graph = await self._open()
            with self._lock:
                self._graph = graph
            return graph
        finally:
            # Where it failed, the next one tries.
            with self._lock:
                self._opening = False
                waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(None)

    async def _open(self) -> Any:
        corpus, model = self._corpus, self._model
        self._index = await open_index(corpus) if isinstance(corpus, str) else corpus
        if model is None or isinstance(model, str):
            model = open_model(model, index=self._index)
        return build_graph(index=self._index, model=model, prompts=self._prompts)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in an event loop of our own, on a thread that lives as long as this object."""
        with self._lock:
            if self._background is None:
                self._background = _Background()
            loop = self._background.loop
        return asyncio.run_coroutine_threadsafe(work, loop).result()


class _Background:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()

        async def serve() -> None:
            self._ended = asyncio.Event()
            started.set_result(asyncio.get_running_loop())
            await self._ended.wait()

        # It cancels what is under way when it ends, and closes its loop.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(serve()), name="fairqr", daemon=True
        )
        self._thread.start()
        self.loop = started.result()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()


def _asked(context: Context) -> dict[str, Any]:
    return {
        "fairqr.method": context.method,
        "fairqr.attributes": list(context.attributes),
        "fairqr.target": str(context.target),
        "fairqr.k": context.k,
    }
