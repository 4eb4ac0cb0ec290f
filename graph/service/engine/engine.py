"""Doing a run: the graph that the service stands in front of, and what it is made of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import httpx

from fairqr.agents.cache import ReplyFile, ReplyMemory
from fairqr.agents.chat import ChatModel
from fairqr.agents.feedback import FeedbackRefiner
from fairqr.base.errors import (
    BudgetError,
    CapError,
    FairqrError,
    IndexNotFoundError,
    InputError,
    ModelUnavailableError,
    PromptError,
)
from fairqr.base.recording import record_to
from fairqr.base.settings import is_on
from fairqr.graph.journal import RunJournal
from fairqr.graph.search.context import Context
from fairqr.graph.service.configuration import Caps, ServiceSettings
from fairqr.graph.service.engine.audits import (
    Auditor,
    AuditRequest,
    AuditWork,
    audited,
    check_audit,
)
from fairqr.graph.service.engine.checking import Request, check_request, parsed
from fairqr.graph.service.engine.live_prompts import LivePrompts
from fairqr.graph.service.engine.offers import Offers
from fairqr.graph.service.engine.requests import RunRequest
from fairqr.graph.service.engine.resources import Resources
from fairqr.graph.service.records import Kind, Run
from fairqr.graph.stream import RunEvent, Step, run_graph
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.engines.engine import EngineInfo, SearchEngine

__all__ = ["Engine"]

log = logging.getLogger(__name__)

REACHED_WITHIN = 3.0
"""Seconds in which a model's server has to answer whether it is there."""


class Engine:
    """Checks requests, and runs the graph for them.

    Args:
        settings: Of the service.
        catalog: What can be searched; defaults to the user's data folder.
        prompts: Where prompts come from; read again as they change where None.
        default_model: That of requests which name none; the configured one where None.
        auditor: Does audits; without it, none are offered.

    Attributes:
        auditor: Does audits.
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
        self.prompts = prompts or LivePrompts()
        catalog = catalog or Catalog()
        self.offers = Offers(settings, catalog, self.prompts, default_model)
        replies = ReplyFile(settings.replies) if settings.replies else ReplyMemory()
        self._resources = Resources(
            catalog, self.prompts, self.offers, replies, settings.caps.seconds
        )
        # One for all checks, since it takes long to make; each check is of a new connection.
        self._http = httpx.AsyncClient(
            timeout=REACHED_WITHIN, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def start(self, progress: Callable[[str], Progress] | None = None) -> None:
        """Open what the configuration names, or the default corpus, and the model.

        Args:
            progress: Told of what is being indexed.

        Raises:
            FairqrError: Something is missing; the message says what to do.
        """
        await self._start_model()
        for name in self._named():
            await self._resources.engine(name, progress=progress)
        if self.settings.traces is not None:
            # What is recorded may be private.
            await asyncio.to_thread(self.settings.traces.mkdir, 0o700, parents=True, exist_ok=True)

    async def close(self) -> None:
        """Close all that is open."""
        await self._http.aclose()
        await self._resources.close()

    async def check_index(self) -> None:
        """Check that what the configuration names can be reached.

        Raises:
            FairqrError: One cannot.
        """
        for name in self._named():
            await (await self._resources.engine(name)).info()

    async def check_model(self) -> None:
        """Check that the default model can be reached; it is asked nothing.

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
        """Return what a request asks for; see :func:`check_request`."""
        return check_request(kind, asked, self.settings.caps, self.offers)

    async def execute(
        self, request: Request, id_: str, journal: RunJournal | None = None
    ) -> AsyncGenerator[RunEvent, None]:
        """Do what is asked, and yield what happens; ask for all of it, and close it, in one task.

        Args:
            request: See :meth:`checked`.
            id_: Of the run, which names its trace.
            journal: What an earlier attempt has done; None if nothing is kept.

        Raises:
            FairqrError: What was asked for cannot be done.
        """
        with _others_untold(request.corpus), _caps_named(self.settings.caps):
            graph, engine = await self._resources.graph(request)
            context = await _fitting(request, engine)
            if journal is not None and engine.in_process:
                journal.version = (await engine.info()).fingerprint
            events = run_graph(graph, request.query, context, journal=journal)
            with self._recorded(id_, more=journal is not None and journal.resumed):
                async with aclosing(events):
                    async for event in events:
                        yield event

    async def execute_stored(self, run: Run, journal: RunJournal) -> AsyncGenerator[RunEvent, None]:
        """Do a durable run, or resume it, as :meth:`execute` does."""
        events: AsyncGenerator[RunEvent, None]
        if run.kind == "audit":
            events = self._audited(run)
        else:
            request = self.checked(run.kind, parsed(run.kind, run.request))
            events = self.execute(request, run.id, journal)
        async with aclosing(events):
            async for event in events:
                yield event

    async def checked_audit(self, asked: AuditRequest) -> AuditWork:
        """Return what an audit asks for.

        Raises:
            FairqrError: It is wrong, more than is allowed, or not offered.
        """
        work = check_audit(asked, self.offers.corpus(asked.corpus), self.settings.caps)
        if self.auditor is not None:
            await self.auditor.check(work.options)
        engine = await self.searched(work.corpus, work.retriever)
        for name in asked.attributes:
            engine.schema.attribute(name)
        return work

    async def _audited(self, run: Run) -> AsyncGenerator[Step, None]:
        """Do a durable audit, or resume it from its folder."""
        work = await self.checked_audit(AuditRequest.model_validate(run.request))
        engine = await self.searched(work.corpus, work.retriever)
        folder = self.settings.audits_folder / run.id
        events = audited(
            self.auditor, engine, work.queries, work.options, folder=folder, attempt=run.attempts
        )
        with self._recorded(run.id, more=run.attempts > 1):
            async with aclosing(events):
                async for event in events:
                    yield event

    async def searched(self, corpus: str | None, retriever: str = AUTO) -> SearchEngine:
        """Return the search engine of a corpus that is offered, the default one if none is named.

        Raises:
            FairqrError: It is not offered, or cannot be opened.
        """
        name = self.offers.corpus(corpus)
        with _others_untold(name):
            return await self._resources.engine(name, retriever)

    async def infos(self) -> list[tuple[SearchEngine, EngineInfo]]:
        """Return the search engines that are offered and can be opened."""
        names = await asyncio.to_thread(self.offers.corpora)
        # At once, since each that is out of reach takes its time to be found so.
        found = await asyncio.gather(*map(self._info, names))
        return [one for one in found if one is not None]

    async def _info(self, name: str) -> tuple[SearchEngine, EngineInfo] | None:
        try:
            engine = await self._resources.engine(name)
            return engine, await engine.info()
        except FairqrError:
            return None

    def usable_prompt(self, id_: str, version: str) -> PromptTemplate | None:
        """Return a prompt; None where its file is wrong, or has just been taken away."""
        try:
            return self.prompts.get(id_, version)
        except PromptError:
            return None

    def _named(self) -> list[str]:
        """Return the names of what has to be there."""
        exact = [name for name in self.settings.corpora if "*" not in name]
        return [*exact, *self.offers.sources] or self.offers.corpora()[:1]

    async def _start_model(self) -> ChatModel | None:
        """Start the default model; None where it is none that has to be started."""
        name, entry = self.offers.model(None)
        if name == FeedbackRefiner.name:
            return None
        model = await self._resources.model(name, entry, None)
        if not isinstance(model, ChatModel):
            return None
        await model.start()
        return model

    @contextlib.contextmanager
    def _recorded(self, id_: str, *, more: bool) -> Iterator[None]:
        """Record a run where that is configured; where it fails, the run goes on."""
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
            log.warning("The trace %s is not whole: %s.", file, recorder.failure)


@contextlib.contextmanager
def _others_untold(corpus: str) -> Iterator[None]:
    """Leave it to the log on which server an index is missing, and which others there are.

    Raises:
        IndexNotFoundError: One was raised inside.
    """
    try:
        yield
    except IndexNotFoundError as error:
        log.warning("%s", error)
        raise IndexNotFoundError(
            f"There is no index '{corpus}'; GET /v1/indexes lists those that there are."
        ) from None


async def _fitting(request: Request, engine: SearchEngine) -> Context:
    """Return the context; where nobody said otherwise, a small corpus takes part as a whole."""
    if not request.fits_pool:
        return request.context
    size = (await engine.info()).documents
    if size is None:
        return request.context
    return request.context.model_copy(update={"k": min(request.context.k, max(size, 1))})


@contextlib.contextmanager
def _caps_named(caps: Caps) -> Iterator[None]:
    """Name the cap where the largest budget that may be asked for has no room.

    Raises:
        CapError: Such a :class:`BudgetError` was raised inside.
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
            f"{limit:,} at the most ({error.unit}); lower the number of documents.",
        ) from None
