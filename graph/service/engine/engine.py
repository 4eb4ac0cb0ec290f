"""Running the graph for a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from functools import lru_cache, partial
from typing import Any

import httpx
from pydantic import SecretStr

from fairqr.agents.attribution.attributor import Attributor, AttributorName
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import SEQ2SEQ, open_generator, open_model
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.base import errors
from fairqr.base.settings import is_on
from fairqr.base.telemetry import record_to
from fairqr.graph.answer.builder import build_answer_graph
from fairqr.graph.probe.builder import build_probe_graph
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.rankers import GivenModel
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.engine.audits import Auditor, audited
from fairqr.graph.service.engine.checking import Request, check_audit, check_request
from fairqr.graph.service.engine.engines import Engines
from fairqr.graph.service.engine.offers import NOTHING, Offers
from fairqr.graph.service.engine.requests import AuditRequest, RunRequest, parsed
from fairqr.graph.service.records import Kind, Run
from fairqr.graph.steps import RunJournal
from fairqr.graph.stream import RunEvent, result_of, run_graph
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.engines.engine import EngineInfo, SearchEngine
from fairqr.retrieval.engines.tantivy.store import Announce
from fairqr.retrieval.sources.catalog import Catalog

MODELS, GRAPHS = 32, 64
"""How many of each to keep open."""

NO_KEY = SecretStr("none")

REACHED_WITHIN = 3.0
"""Seconds to wait for a model's server when we check that it responds."""

log = logging.getLogger(__name__)


class Engine:
    """Checks requests, and runs the graph for them.

    Args:
        settings: The settings of the service.
        catalog: What can be searched; defaults to the user's data folder.
        default_model: The model for requests that name none; defaults to the configured one.
        auditor: Runs audits; without it, the service offers none.

    Attributes:
        auditor: Runs audits.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        *,
        catalog: Catalog | None = None,
        default_model: str | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        self.settings = settings
        self.auditor = auditor
        self.prompts = PromptLibrary()
        catalog = catalog or Catalog()
        self.offers = Offers(settings, catalog, self.prompts, default_model)
        self._engines = Engines(catalog, self.offers.sources)
        # No model is asked the same twice, and what is large is loaded once.
        self._replies = ReplyCache(settings.replies)
        self._model = lru_cache(MODELS)(self._open_model)
        self._generator = lru_cache(MODELS)(partial(open_generator, cache=self._replies))
        self._attributor = lru_cache(MODELS)(partial(open_attributor, prompts=self.prompts))
        self._graph: Callable[..., Any] = lru_cache(GRAPHS)(self._build_graph)
        # One client for all checks, since it takes long to make. Each check opens a new connection.
        self._http = httpx.AsyncClient(
            timeout=REACHED_WITHIN, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def start(self, progress: Announce | None = None) -> None:
        """Open the configured sources, or the default corpus, and start the model.

        Args:
            progress: Reports what is being indexed.

        Raises:
            FairqrError: Something is missing; the message says what to do.
        """
        await self._start_model()
        await self.check_index(progress)
        if self.settings.traces is not None:
            # What is recorded may be private.
            await asyncio.to_thread(self.settings.traces.mkdir, 0o700, parents=True, exist_ok=True)

    async def close(self) -> None:
        """Close everything."""
        await self._http.aclose()
        await self._engines.close()

    async def check_index(self, progress: Announce | None = None) -> None:
        """Check that the configured sources, or the default corpus, can be reached.

        Raises:
            FairqrError: One cannot.
        """
        exact = [name for name in self.settings.corpora if "*" not in name]
        for name in [*exact, *self.offers.sources] or self.offers.corpora()[:1]:
            async with self._engines.lend(name, progress=progress) as engine:
                await engine.info()

    async def check_model(self) -> None:
        """Check that the server of the default model responds; we send no prompt.

        Raises:
            ModelUnavailableError: It cannot.
        """
        model = await self._start_model()
        if model is None or model.base_url is None:
            return
        try:
            await self._http.get(f"{model.base_url.rstrip('/')}/models")
        except httpx.HTTPError:
            raise errors.ModelUnavailableError(
                f"The server of the model {model.name} cannot be reached; check that it runs."
            ) from None

    def checked(self, kind: Kind, asked: RunRequest) -> Request:
        """Check a request; see :func:`check_request`."""
        return check_request(kind, asked, self.settings.caps, self.offers)

    async def checked_audit(self, asked: AuditRequest) -> Request:
        """Check a request for an audit; see :func:`check_audit`.

        Raises:
            FairqrError: The request is wrong, exceeds a cap, or asks for what is not offered.
        """
        auditor = self._require_auditor()
        request = check_audit(asked, self.settings.caps, self.offers)
        await auditor.check(request.context.options)
        async with self.searched(request.body["corpus"], asked.retriever) as engine:
            for name in asked.attributes:
                engine.schema.attribute(name)
        return request

    async def execute(
        self,
        asked: Request | Run,
        id_: str,
        durable: RunJournal | None = None,
        *,
        steps: bool = True,
        seconds: float | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Run a request, and yield what happens. Iterate over it and close it in the same task.

        Args:
            asked: A checked request, or a stored run, whose request is checked again.
            id_: The id of the run; its trace gets this name.
            durable: The attempt at a durable run.
            steps: Whether to yield steps, or only the result.
            seconds: The time limit of an audit.

        Raises:
            FairqrError: The run fails.
        """
        request = asked if isinstance(asked, Request) else await self._restored(asked)
        events: AsyncGenerator[RunEvent, None]
        async with self.searched(request.body["corpus"], request.body["retriever"]) as engine:
            if request.kind == "audit":
                folder = self.settings.audits_folder / id_ if durable else None
                events = audited(self._require_auditor(), engine, request.context, folder, seconds)
            else:
                events = self._run_graph(request, engine, id_, durable, steps)
            with self._recorded(id_):
                async with aclosing(events):
                    async for event in events:
                        yield event

    def execute_stored(self, run: Run, durable: RunJournal) -> AsyncGenerator[RunEvent, None]:
        """Run or resume a durable run, as :meth:`execute` does."""
        return self.execute(run, run.id, durable)

    async def _restored(self, run: Run) -> Request:
        if run.kind == "audit":
            return await self.checked_audit(AuditRequest.model_validate(run.request))
        return self.checked(run.kind, parsed(run.kind, run.request))

    async def _run_graph(
        self,
        request: Request,
        engine: SearchEngine,
        id_: str,
        durable: RunJournal | None,
        steps: bool,
    ) -> AsyncGenerator[RunEvent, None]:
        """Run the graph of a request."""
        asked, context, options = request.body, request.context, dict[str, Any]()
        judge = asked.get("attributor", NOTHING)
        graph = self._graph(request.kind, engine, asked["model"], asked["base_url"], judge)
        if request.kind == "answer" and asked["k"] is None:
            # The default pool is no larger than the corpus.
            size = (await engine.info()).documents
            k = context.k if size is None else min(context.k, max(size, 1))
            context = context.model_copy(update={"k": k})
        if durable is not None:
            version = (await engine.info()).fingerprint if engine.in_process else ""
            await durable.begin_over(version)
            graph = graph.copy({"checkpointer": durable.saver})
            options = {"thread": id_, "resume": durable.resumed, "durability": "async"}
        try:
            if not steps:
                yield await result_of(graph, request.query, context)
                return
            events = run_graph(graph, request.query, context, journal=durable, **options)
            async with aclosing(events):
                async for event in events:
                    yield event
        except errors.BudgetError as error:
            if error.limit >= getattr(self.settings.caps, error.unit):
                self.settings.caps.check(error.unit, error.needed, "What this may take")
            raise

    @asynccontextmanager
    async def searched(
        self, corpus: str | None, retriever: str = AUTO
    ) -> AsyncIterator[SearchEngine]:
        """Lend the search engine of an offered corpus; None means the default corpus.

        Raises:
            FairqrError: The corpus is not offered, or cannot be opened.
        """
        name = self.offers.corpus(corpus)
        try:
            async with self._engines.lend(name, retriever) as engine:
                yield engine
        except errors.IndexNotFoundError as error:
            # Only the log says on which server it is missing, and what else is there.
            log.warning("%s", error)
            raise errors.IndexNotFoundError(
                f"There is no index '{name}'; GET /v1/indexes lists all."
            ) from None

    async def infos(self) -> list[tuple[SearchEngine, EngineInfo]]:
        """Return the offered search engines that can be opened."""

        async def info(name: str) -> tuple[SearchEngine, EngineInfo] | None:
            with suppress(errors.FairqrError):
                async with self._engines.lend(name) as engine:
                    return engine, await engine.info()
            return None

        names = await asyncio.to_thread(self.offers.corpora)
        # All at the same time, since an engine that is out of reach takes long to fail.
        return [found for found in await asyncio.gather(*map(info, names)) if found is not None]

    def _require_auditor(self) -> Auditor:
        if self.auditor is None:
            raise errors.NotAllowedError(
                "Audits are not offered here; whoever runs the service can install the extra "
                "'evaluation'."
            )
        return self.auditor

    async def _start_model(self) -> ChatModel | None:
        """Start the default model and return it; None if it needs no start."""
        model = self._model(self.offers.default_model, None)
        if not isinstance(model, ChatModel):
            return None
        await model.start()
        return model

    def _open_model(self, name: str, base_url: str | None) -> GivenModel:
        """Return a language model; the configured key goes only to the configured address."""
        if name == FeedbackRefiner.name:
            return name  # each graph makes one of its engine
        _, entry = self.offers.model(name)
        is_other = base_url not in (None, entry.base_url)
        # Without any key, the client would send that of the environment.
        key = NO_KEY if is_other else entry.key
        options: dict[str, Any] = {} if key is None else {"api_key": key}
        options |= {"base_url": base_url or entry.base_url, "timeout": entry.timeout}
        return open_model(name, cache=self._replies, **options)

    def _build_graph(
        self, kind: Kind, engine: SearchEngine, name: str, base_url: str | None, judge: str
    ) -> Any:
        """Return the graph for a kind of run over an engine."""
        writes_only = name.partition(":")[0] == SEQ2SEQ
        model = None if writes_only else self._model(name, base_url)
        if kind == "search":
            return build_search_graph(engine, model, prompts=self.prompts)
        if kind == "probe":
            return build_probe_graph(engine, model, prompts=self.prompts)
        return build_answer_graph(
            engine,
            model,
            generator=self._generator(name) if writes_only else None,
            attributor=self._judge(judge, name, base_url),
            prompts=self.prompts,
        )

    def _judge(self, judge: str, name: str, base_url: str | None) -> Attributor | None:
        """Return what judges answers; a chat model that is not named is the one that writes.

        Raises:
            InputError: The model cannot judge.
        """
        parts = AttributorName.parse(judge)
        if parts.kind != "llm":
            return None if judge == NOTHING else self._attributor(judge)
        judging = parts.model or name
        chat = self._model(judging, base_url if judging == name else None)
        if not isinstance(chat, ChatModel):
            raise errors.InputError(f"The model '{judging}' cannot judge; choose another one.")
        return self._attributor(judge, chat=chat)

    @contextmanager
    def _recorded(self, id_: str) -> Iterator[None]:
        """Record a run if that is configured. If recording fails, the run continues."""
        recorder = None
        with ExitStack() as stack:
            if (folder := self.settings.traces) is not None:
                recording = record_to(
                    folder / f"{id_}.jsonl", content=is_on("trace_content"), more=True
                )
                try:
                    recorder = stack.enter_context(recording)
                except errors.InputError as error:
                    log.warning("%s", error)
            yield
        if recorder is not None and recorder.failure:
            log.warning("The trace of the run %s is incomplete: %s.", id_, recorder.failure)
