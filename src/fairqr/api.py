"""The façade: fair search in two lines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
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


async def open_index(corpus: str, *, backend: str | None = None, url: str | None = None) -> Index:
    """Open an index by name, or index a built-in corpus or a path first; see :class:`Catalog`."""
    choice = Choice(backend or "tantivy", url) if backend or url else None  # type: ignore[arg-type]
    return await Catalog().resolve(corpus, choice)


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
        self._opening = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

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
        async for step in self.stream(query, attribute=attribute, **context):
            result = step.update.get("result", result)
        return SearchResult.model_validate(result)

    async def stream(
        self, query: str, *, attribute: str | Sequence[str] | None = None, **context: Any
    ) -> AsyncIterator[Step]:
        """Search, and yield each step as it happens. Arguments are those of :meth:`asearch`."""
        if attribute is not None:
            context["attributes"] = [attribute] if isinstance(attribute, str) else list(attribute)
        asked = make_context(**context)
        graph = await self._ready()
        with span("invoke_workflow fairqr", **_asked(asked)):
            async for update in graph.astream(
                {"query": query}, context=asked, stream_mode="updates"
            ):
                for name, change in update.items():
                    yield Step(name, change or {})

    def search(
        self, query: str, *, attribute: str | Sequence[str] | None = None, **context: Any
    ) -> SearchResult:
        """Search, from code that is not asynchronous. Arguments are those of :meth:`asearch`.

        It may be called from several threads, and inside a running event loop, as in a notebook.
        """
        return self._run(self.asearch(query, attribute=attribute, **context))

    def close(self) -> None:
        """Close the index if it was opened here, and end the thread of :meth:`search`."""
        if isinstance(self._corpus, str) and self._graph is not None:
            self._run(self._index.close())
            self._graph = None
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def __enter__(self) -> FairSearch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _ready(self) -> Any:
        if self._graph is None:
            corpus, model = self._corpus, self._model
            self._index = await open_index(corpus) if isinstance(corpus, str) else corpus
            if model is None or isinstance(model, str):
                model = open_model(model, index=self._index)
            self._graph = build_graph(index=self._index, model=model, prompts=self._prompts)
        return self._graph

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in an event loop of our own, on a thread that lives as long as this object."""
        with self._opening:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="fairqr", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _asked(context: Context) -> dict[str, Any]:
    return {
        "fairqr.method": context.method,
        "fairqr.attributes": list(context.attributes),
        "fairqr.target": str(context.target),
        "fairqr.k": context.k,
    }
