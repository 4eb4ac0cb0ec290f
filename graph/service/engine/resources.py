"""Search engines, models, judges and graphs, opened once and shared by all runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic import SecretStr

from fairqr.agents.attribution.attributor import Attributor, AttributorName
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import Generator
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import SEQ2SEQ, open_generator, open_model
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.graph.answer.builder import build_answer_graph
from fairqr.graph.probe.builder import build_probe_graph
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.rankers import Model
from fairqr.graph.service.configuration import ModelEntry
from fairqr.graph.service.engine.checking import Request
from fairqr.graph.service.engine.offers import Offers
from fairqr.graph.service.engine.open_once import KeptOpen
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.documents import ProgressFunction

ENGINES, MODELS, GRAPHS = 1000, 32, 64
"""How many of each to keep open."""

NO_KEY = SecretStr("none")


class Resources:
    """Search engines, models and graphs.

    Args:
        catalog: The indexes.
        prompts: The prompts.
        offers: What the service offers.
        replies: Cached replies, so that no model is asked the same twice.
        seconds: The time limit of a run.
    """

    def __init__(
        self,
        catalog: Catalog,
        prompts: PromptLibrary,
        offers: Offers,
        replies: ReplyCache,
        seconds: float,
    ) -> None:
        self._catalog = catalog
        self._prompts = prompts
        self._offers = offers
        self._replies = replies
        self._seconds = seconds
        self._engines: KeptOpen[tuple[str, str, str], SearchEngine] = KeptOpen(
            ENGINES, lambda engine: engine.aclose()
        )
        self._current: dict[tuple[str, str], str] = {}
        self._models: KeptOpen[tuple[str, str | None], Model] = KeptOpen(MODELS)
        self._generators: KeptOpen[str, Generator] = KeptOpen(MODELS)
        self._attributors: KeptOpen[tuple[Any, ...], Attributor] = KeptOpen(MODELS)
        self._graphs: KeptOpen[tuple[Any, ...], Any] = KeptOpen(GRAPHS)

    async def engine(
        self,
        corpus: str,
        retriever: str = AUTO,
        progress: Callable[[str], ProgressFunction] | None = None,
    ) -> SearchEngine:
        """Return a search engine; open or build it if necessary.

        Args:
            corpus: The name of a source, an index or a built-in corpus; never a path.
            retriever: See :data:`fairqr.retrieval.encoders.opening.RETRIEVERS`.
            progress: See :meth:`Catalog.resolve`.

        Raises:
            IndexNotFoundError: The index does not exist.
            IndexUnavailableError: It cannot be reached.
        """

        async def opening() -> SearchEngine:
            named = self._offers.sources.get(corpus, corpus)
            if named == corpus and corpus not in BUILT_IN:
                # `open` takes only names, so this cannot be the path of a file.
                return await self._catalog.open(corpus, retriever=retriever, progress=progress)
            return await self._catalog.resolve(named, retriever=retriever, progress=progress)

        stamp = self._stamp(corpus)
        before = self._current.get((corpus, retriever), stamp)
        self._current[corpus, retriever] = stamp
        if before != stamp:
            # Runs that still use the old engine end first.
            asyncio.get_running_loop().call_later(
                self._seconds, self._engines.forget, (corpus, retriever, before)
            )
        return await self._engines.get((corpus, retriever, stamp), opening)

    def _stamp(self, corpus: str) -> str:
        """Return a text that changes when the index or attached source is replaced."""
        fixed = corpus in BUILT_IN or corpus in self._offers.sources
        return "" if fixed else self._catalog.stamp(corpus)

    async def model(
        self,
        name: str,
        entry: ModelEntry,
        base_url: str | None,
        engine: SearchEngine | None = None,
    ) -> Model:
        """Return a language model, or a refiner by relevance feedback.

        Args:
            name: The name of the model.
            entry: The configuration of the model.
            base_url: Replaces the configured address. The configured key goes only to the
                configured address.
            engine: The engine in which ``feedback`` searches.
        """

        async def opening() -> Model:
            options: dict[str, Any] = {"timeout": entry.timeout, "cache": self._replies}
            if url := base_url or entry.base_url:
                options["base_url"] = url
            if base_url is not None and base_url != entry.base_url:
                # Otherwise the client would send the key of the environment.
                options["api_key"] = NO_KEY
            elif entry.api_key is not None:
                options["api_key"] = entry.api_key
            return open_model(name, engine=engine, **options)

        if name == FeedbackRefiner.name:
            return open_model(name, engine=engine)
        return await self._models.get((name, base_url), opening)

    async def graph(self, request: Request) -> tuple[Any, SearchEngine]:
        """Return the graph for a request, and the engine that it searches."""
        engine = await self.engine(request.corpus, request.retriever)
        key = (
            request.kind,
            id(engine),  # unique, since the kept graph also keeps its engine
            request.model,
            request.base_url,
            request.attributor,
        )

        async def opening() -> Any:
            generator = model = None
            if request.model.partition(":")[0] == SEQ2SEQ:

                async def open_it() -> Generator:
                    return open_generator(request.model, cache=self._replies)

                generator = await self._generators.get(request.model, open_it)
            else:
                model = await self.model(request.model, request.entry, request.base_url, engine)
            given: dict[str, Any] = {"prompts": self._prompts}
            if request.kind == "search":
                return build_search_graph(engine, model, **given)
            if request.kind == "probe":
                return build_probe_graph(engine, model, **given)
            judge = await self._attributor(request, model, engine)
            return build_answer_graph(engine, model, generator=generator, attributor=judge, **given)

        return await self._graphs.get(key, opening), engine

    async def close(self) -> None:
        """Close all search engines, and forget the rest.

        Raises:
            Exception: The first error of closing, after all others have been closed.
        """
        for kept in (self._graphs, self._models, self._generators, self._attributors):
            await kept.aclose()
        await self._engines.aclose()

    async def _attributor(
        self, request: Request, model: Model | None, engine: SearchEngine
    ) -> Attributor | None:
        name = request.attributor
        if name is None:
            return None
        parsed = AttributorName.parse(name)
        chat = model if isinstance(model, ChatModel) else None
        if parsed.kind == "llm" and parsed.model not in ("", request.model):
            named, entry = self._offers.model(parsed.model)
            judge = await self.model(named, entry, None, engine)
            chat = judge if isinstance(judge, ChatModel) else None

        async def opening() -> Attributor:
            return open_attributor(name, chat=chat, prompts=self._prompts)

        asked = (request.model, request.base_url) if parsed.kind == "llm" else None
        return await self._attributors.get((name, asked), opening)
