"""Running the graph for a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.base.errors import (
    BudgetError,
    CapError,
    FairqrError,
    IndexNotFoundError,
    InputError,
    ModelUnavailableError,
)
from fairqr.base.settings import is_on
from fairqr.base.telemetry import record_to
from fairqr.graph.search.context import Context
from fairqr.graph.service.configuration import Caps, ServiceSettings
from fairqr.graph.service.engine.audits import (
    Auditor,
    AuditRequest,
    audited,
    check_audit,
)
from fairqr.graph.service.engine.checking import Request, check_request, parsed
from fairqr.graph.service.engine.offers import Offers, ServedPrompts
from fairqr.graph.service.engine.requests import RunRequest
from fairqr.graph.service.engine.resources import Resources
from fairqr.graph.service.records import Kind, Run
from fairqr.graph.steps import RunJournal
from fairqr.graph.stream import RunEvent, Step, result_of, run_graph
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.engines.engine import EngineInfo, SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import ProgressFunction

log = logging.getLogger(__name__)

REACHED_WITHIN = 3.0
"""Seconds to wait for a model's server when we check that it responds."""


class Engine:
    """Checks requests, and runs the graph for them.

    Args:
        settings: The settings of the service.
        catalog: What can be searched; defaults to the user's data folder.
        prompts: The prompts; defaults to the shipped ones and those of the user's folder.
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
        prompts: PromptLibrary | None = None,
        default_model: str | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        self.settings = settings
        self.auditor = auditor
        self.prompts = prompts or ServedPrompts()
        catalog = catalog or Catalog()
        self.offers = Offers(settings, catalog, self.prompts, default_model)
        replies = ReplyCache(settings.replies)
        self._resources = Resources(catalog, self.prompts, self.offers, replies)
        # One client for all checks, since it takes long to make. Each check opens a new connection.
        self._http = httpx.AsyncClient(
            timeout=REACHED_WITHIN, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def start(self, progress: Callable[[str], ProgressFunction] | None = None) -> None:
        """Open the configured sources, or the default corpus, and start the model.

        Args:
            progress: Reports what is being indexed.

        Raises:
            FairqrError: Something is missing; the message says what to do.
        """
        await self._start_model()
        for name in self._named():
            async with self._resources.engine(name, progress=progress):
                pass
        if self.settings.traces is not None:
            # What is recorded may be private.
            await asyncio.to_thread(self.settings.traces.mkdir, 0o700, parents=True, exist_ok=True)

    async def close(self) -> None:
        """Close everything."""
        await self._http.aclose()
        await self._resources.close()

    async def check_index(self) -> None:
        """Check that the configured sources can be reached.

        Raises:
            FairqrError: One cannot.
        """
        for name in self._named():
            async with self._resources.engine(name) as engine:
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
            raise ModelUnavailableError(
                f"The server of the model {model.name} cannot be reached; check that it runs."
            ) from None

    def checked(self, kind: Kind, asked: RunRequest) -> Request:
        """Check a request; see :func:`check_request`."""
        return check_request(kind, asked, self.settings.caps, self.offers)

    async def execute(
        self, request: Request, id_: str, durable: RunJournal | None = None, steps: bool = True
    ) -> AsyncGenerator[RunEvent, None]:
        """Run a request, and yield what happens. Iterate over it and close it in the same task.

        Args:
            request: A request that :meth:`checked` returned.
            id_: The id of the run; its trace gets this name.
            durable: The attempt at a durable run.
            steps: Whether to yield steps, or only the result.

        Raises:
            FairqrError: The run fails.
        """
        lent = self.searched(request.corpus, request.retriever)
        with _caps_named(self.settings.caps):
            async with lent as engine:
                graph = self._resources.graph(request, engine)
                context = await _fitting(request, engine)
                options: dict[str, Any] = {}
                if durable is not None:
                    version = (await engine.info()).fingerprint if engine.in_process else ""
                    await durable.begin_over(version)
                    graph = graph.copy({"checkpointer": durable.saver})
                    options = {"thread": id_, "resume": durable.resumed, "durability": "async"}
                with self._recorded(id_, more=durable is not None and durable.resumed):
                    if not steps:
                        yield await result_of(graph, request.query, context)
                        return
                    events = run_graph(graph, request.query, context, journal=durable, **options)
                    async with aclosing(events):
                        async for event in events:
                            yield event

    async def execute_stored(self, run: Run, durable: RunJournal) -> AsyncGenerator[RunEvent, None]:
        """Run or resume a durable run, as :meth:`execute` does."""
        events: AsyncGenerator[RunEvent, None]
        if run.kind == "audit":
            events = self._audited(run)
        else:
            request = self.checked(run.kind, parsed(run.kind, run.request))
            events = self.execute(request, run.id, durable)
        async with aclosing(events):
            async for event in events:
                yield event

    async def checked_audit(self, asked: AuditRequest) -> AuditRequest:
        """Check a request for an audit; see :func:`check_audit`.

        Raises:
            FairqrError: The request is wrong, exceeds a cap, or asks for what is not offered.
        """
        work = check_audit(asked, self.offers.corpus(asked.corpus), self.settings.caps)
        if self.auditor is not None:
            await self.auditor.check(work.options)
        async with self.searched(work.corpus, work.retriever) as engine:
            for name in asked.attributes:
                engine.schema.attribute(name)
        return work

    async def _audited(self, run: Run) -> AsyncGenerator[Step, None]:
        """Run a durable audit, or resume it from its folder."""
        work = await self.checked_audit(AuditRequest.model_validate(run.request))
        folder = self.settings.audits_folder / run.id
        async with self.searched(work.corpus, work.retriever) as engine:
            with self._recorded(run.id, more=run.attempts > 1):
                events = audited(
                    self.auditor,
                    engine,
                    work.queries,
                    work.options,
                    folder=folder,
                    resumed=run.attempts > 1,
                )
                async with aclosing(events):
                    async for event in events:
                        yield event

    @contextlib.asynccontextmanager
    async def searched(
        self, corpus: str | None, retriever: str = AUTO
    ) -> AsyncIterator[SearchEngine]:
        """Lend the search engine of an offered corpus; None means the default corpus.

        Raises:
            FairqrError: The corpus is not offered, or cannot be opened.
        """
        name = self.offers.corpus(corpus)
        with _others_untold(name):
            async with self._resources.engine(name, retriever) as engine:
                yield engine

    async def infos(self) -> list[tuple[SearchEngine, EngineInfo]]:
        """Return the offered search engines that can be opened."""
        names = await asyncio.to_thread(self.offers.corpora)
        # All at the same time, since an engine that is out of reach takes long to fail.
        found = await asyncio.gather(*map(self._info, names))
        return [one for one in found if one is not None]

    async def _info(self, name: str) -> tuple[SearchEngine, EngineInfo] | None:
        try:
            async with self._resources.engine(name) as engine:
                return engine, await engine.info()
        except FairqrError:
            return None

    def _named(self) -> list[str]:
        """Return the names of what must be there."""
        exact = [name for name in self.settings.corpora if "*" not in name]
        return [*exact, *self.offers.sources] or self.offers.corpora()[:1]

    async def _start_model(self) -> ChatModel | None:
        """Start the default model and return it; None if it needs no start."""
        name, _ = self.offers.model(None)
        if name == FeedbackRefiner.name:
            return None
        model = self._resources.model(name, None)
        if not isinstance(model, ChatModel):
            return None
        await model.start()
        return model

    @contextlib.contextmanager
    def _recorded(self, id_: str, *, more: bool) -> Iterator[None]:
        """Record a run if that is configured. If recording fails, the run continues."""
        folder: Path | None = self.settings.traces
        if folder is None:
            yield
            return
        file, recorder = folder / f"{id_}.jsonl", None
        with contextlib.ExitStack() as stack:
            try:
                recorder = stack.enter_context(
                    record_to(file, content=is_on("trace_content"), more=more)
                )
            except InputError as error:
                log.warning("%s", error)
            yield
        if recorder is not None and recorder.failure:
            log.warning("The trace %s is incomplete: %s.", file, recorder.failure)


@contextlib.contextmanager
def _others_untold(corpus: str) -> Iterator[None]:
    """Hide from clients on which server an index is missing, and what else is there; log it.

    Raises:
        IndexNotFoundError: The code inside raised one.
    """
    try:
        yield
    except IndexNotFoundError as error:
        log.warning("%s", error)
        raise IndexNotFoundError(
            f"There is no index '{corpus}'; GET /v1/indexes lists all."
        ) from None


async def _fitting(request: Request, engine: SearchEngine) -> Context:
    """Return the context, with a default pool no larger than the corpus."""
    if not request.fits_pool:
        return request.context
    size = (await engine.info()).documents
    if size is None:
        return request.context
    return request.context.model_copy(update={"k": min(request.context.k, max(size, 1))})


@contextlib.contextmanager
def _caps_named(caps: Caps) -> Iterator[None]:
    """Turn a :class:`BudgetError` into a :class:`CapError` if the cap is what limits the budget.

    Raises:
        CapError: The code inside raised such a :class:`BudgetError`.
    """
    try:
        yield
    except BudgetError as error:
        limit = getattr(caps, error.unit)
        if error.limit < limit:
            raise
        raise CapError(
            error.unit,
            limit,
            f"It may take {error.needed:,} {error.unit.replace('_', ' ')}, and this service allows "
            f"at most {limit:,} ({error.unit}); ask for fewer documents.",
        ) from None
