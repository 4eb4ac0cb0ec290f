"""Search engines, models, judges and graphs, opened once and shared by all runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

from pydantic import SecretStr

from fairqr.agents.attribution.attributor import Attributor, AttributorName
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import Generator
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import SEQ2SEQ, open_generator, open_model
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.base.errors import one_line
from fairqr.graph.answer.builder import build_answer_graph
from fairqr.graph.probe.builder import build_probe_graph
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.rankers import Model
from fairqr.graph.service.engine.checking import Request
from fairqr.graph.service.engine.offers import Offers
from fairqr.graph.service.records import Kind
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.documents import ProgressFunction

MODELS, GRAPHS = 32, 64
"""How many of each to keep open."""

NO_KEY = SecretStr("none")

log = logging.getLogger(__name__)


class _Opened:
    """A search engine that is opened once; it closes when it is replaced and nobody uses it."""

    def __init__(self, stamp: str, opening: asyncio.Task[SearchEngine]) -> None:
        self.stamp = stamp
        self.users = 0
        self._opening = opening
        # Nobody may be left to take the error.
        opening.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def failed(self) -> bool:
        done = self._opening
        return done.done() and (done.cancelled() or done.exception() is not None)

    async def engine(self) -> SearchEngine:
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        self._opening.cancel()
        await asyncio.wait([self._opening])
        if not self.failed:
            await self._opening.result().aclose()


class Resources:
    """Search engines, models and graphs.

    Args:
        catalog: The indexes.
        prompts: The prompts.
        offers: What the service offers.
        replies: Cached replies, so that no model is asked the same twice.
    """

    def __init__(
        self, catalog: Catalog, prompts: PromptLibrary, offers: Offers, replies: ReplyCache
    ) -> None:
        self._catalog = catalog
        self._prompts = prompts
        self._offers = offers
        self._replies = replies
        self._engines: dict[tuple[str, str], _Opened] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._models = lru_cache(MODELS)(self._open_model)
        self._generators = lru_cache(MODELS)(self._open_generator)
        self._attributors = lru_cache(MODELS)(self._open_attributor)
        self._graphs = lru_cache(GRAPHS)(self._build_graph)

    @asynccontextmanager
    async def engine(
        self,
        corpus: str,
        retriever: str = AUTO,
        progress: Callable[[str], ProgressFunction] | None = None,
    ) -> AsyncIterator[SearchEngine]:
        """Lend a search engine; open or build it if necessary.

        Args:
            corpus: The name of a source, an index or a built-in corpus; never a path.
            retriever: See :data:`fairqr.retrieval.encoders.opening.RETRIEVERS`.
            progress: See :meth:`Catalog.resolve`.

        Raises:
            IndexNotFoundError: The index does not exist.
            IndexUnavailableError: It cannot be reached.
        """
        key, stamp = (corpus, retriever), self._stamp(corpus)
        opened = self._engines.get(key)
        if opened is None or opened.failed or opened.stamp != stamp:
            opening = asyncio.create_task(self._open_engine(corpus, retriever, progress))
            if replaced := self._engines.pop(key, None):
                self._close_unused(replaced)
            opened = self._engines[key] = _Opened(stamp, opening)
        opened.users += 1
        try:
            yield await opened.engine()
        finally:
            opened.users -= 1
            if self._engines.get(key) is not opened:
                self._close_unused(opened)

    async def _open_engine(
        self, corpus: str, retriever: str, progress: Callable[[str], ProgressFunction] | None
    ) -> SearchEngine:
        named = self._offers.sources.get(corpus, corpus)
        if named == corpus and corpus not in BUILT_IN:
            # `open` takes only names, so this cannot be the path of a file.
            return await self._catalog.open(corpus, retriever=retriever, progress=progress)
        return await self._catalog.resolve(named, retriever=retriever, progress=progress)

    def _stamp(self, corpus: str) -> str:
        """Return a text that changes when the index or attached source is replaced."""
        fixed = corpus in BUILT_IN or corpus in self._offers.sources
        return "" if fixed else self._catalog.stamp(corpus)

    def _close_unused(self, opened: _Opened) -> None:
        """Close an engine that was replaced in the background, unless somebody still uses it."""

        async def close() -> None:
            try:
                await opened.close()
            except Exception as error:
                log.warning("An engine could not be closed: %s", one_line(error))

        if not opened.users:
            closing = asyncio.create_task(close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def model(self, name: str, base_url: str | None, engine: SearchEngine | None = None) -> Model:
        """Return a language model, or a refiner by relevance feedback.

        Args:
            name: The name of the model.
            base_url: Replaces the configured address. The configured key goes only to the
                configured address.
            engine: The engine in which ``feedback`` searches.
        """
        if name == FeedbackRefiner.name:
            return open_model(name, engine=engine)
        return self._models(name, base_url)

    def _open_model(self, name: str, base_url: str | None) -> Model:
        _, entry = self._offers.model(name)
        options: dict[str, Any] = {"timeout": entry.timeout, "cache": self._replies}
        if url := base_url or entry.base_url:
            options["base_url"] = url
        if base_url is not None and base_url != entry.base_url:
            # Otherwise the client would send the key of the environment.
            options["api_key"] = NO_KEY
        elif entry.api_key is not None:
            options["api_key"] = entry.api_key
        return open_model(name, **options)

    def _open_generator(self, name: str) -> Generator:
        return open_generator(name, cache=self._replies)

    def _open_attributor(self, name: str, chat: ChatModel | None) -> Attributor:
        return open_attributor(name, chat=chat, prompts=self._prompts)

    def graph(self, request: Request, engine: SearchEngine) -> Any:
        """Return the graph for a request over an engine."""
        asked: Any = (engine, request.model, request.base_url, request.attributor)
        return self._graphs(request.kind, *asked)

    def _build_graph(
        self, kind: Kind, engine: SearchEngine, name: str, base_url: str | None, judge: str | None
    ) -> Any:
        generator = model = attributor = None
        if name.partition(":")[0] == SEQ2SEQ:
            generator = self._generators(name)
        else:
            model = self.model(name, base_url, engine)
        if kind == "search":
            return build_search_graph(engine, model, prompts=self._prompts)
        if kind == "probe":
            return build_probe_graph(engine, model, prompts=self._prompts)
        if judge is not None:
            parsed, asked = AttributorName.parse(judge), model
            if parsed.kind != "llm":
                asked = None
            elif parsed.model not in ("", name):
                asked = self.model(parsed.model, None, engine)
            chat = asked if isinstance(asked, ChatModel) else None
            attributor = self._attributors(judge, chat)
        return build_answer_graph(
            engine, model, generator=generator, attributor=attributor, prompts=self._prompts
        )

    async def close(self) -> None:
        """Close all search engines, and stop what is being opened.

        Raises:
            Exception: The first error of closing, after all others have been closed.
        """
        closing = [opened.close() for opened in self._engines.values()]
        self._engines.clear()
        results = await asyncio.gather(*closing, *self._closing, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
