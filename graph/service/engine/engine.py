"""Doing a run: the graph that the service stands in front of, and what it is made of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

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
from fairqr.graph.search.context import Context
from fairqr.graph.service.configuration import Caps, ServiceSettings
from fairqr.graph.service.engine.checking import Request, check_request
from fairqr.graph.service.engine.live_prompts import LivePrompts
from fairqr.graph.service.engine.offers import Offers
from fairqr.graph.service.engine.resources import Resources
from fairqr.graph.service.records import Kind, Run
from fairqr.graph.stream import RunEvent, run_graph
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.engines.engine import EngineInfo, SearchEngine

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

__all__ = ["Engine"]

log = logging.getLogger(__name__)

REACHED_WITHIN = 3.0
"""Seconds in which a model's server has to answer whether it is there."""


class Engine:
    """Checks requests, and runs the graph for them.

    Args:
        settings: Of the service.
        saver: Keeps the states of runs that are to be resumed; None where none is.
        catalog: What can be searched; defaults to the user's data folder.
        prompts: Where prompts come from; read again as they change where None.
        default_model: That of requests which name none; the configured one where None.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        saver: BaseCheckpointSaver[Any] | None = None,
        *,
        catalog: Catalog | None = None,
        prompts: PromptLibrary | None = None,
        default_model: str | None = None,
    ) -> None:
        self.settings = settings
        self.prompts = prompts or LivePrompts()
        catalog = catalog or Catalog()
        self.offers = Offers(settings, catalog, self.prompts, default_model)
        self._resources = Resources(catalog, self.prompts, self.offers, saver)
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

    def checked(self, kind: Kind, body: Mapping[str, Any]) -> Request:
        """Return what a request asks for; see :func:`check_request`."""
        return check_request(kind, body, self.settings.caps, self.offers)

    async def execute(self, run: Run, resume: bool) -> AsyncGenerator[RunEvent, None]:
        """Do a run, and yield what happens; ask for all of it, and close it, in one task.

        Args:
            run: One to be kept has its states kept under its id.
            resume: Go on where these states end.

        Raises:
            FairqrError: What was asked for cannot be done.
        """
        request = self.checked(run.kind, run.request)
        with _others_untold(request.corpus), _caps_named(self.settings.caps):
            graph, engine = await self._resources.graph(request)
            context = await _fitting(request, engine)
            thread = run.id if run.keep else None
            events = run_graph(graph, request.query, context, thread=thread, resume=resume)
            with self._recorded(run.id, resume):
                async with aclosing(events):
                    async for event in events:
                        yield event

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
    def _recorded(self, id_: str, resume: bool) -> Iterator[None]:
        """Record a run where that is configured; where it fails, the run goes on."""
        folder: Path | None = self.settings.traces
        if folder is None:
            yield
            return
        file, recorder = folder / f"{id_}.jsonl", None
        with contextlib.ExitStack() as stack:
            try:
                recorder = stack.enter_context(
                    record_to(file, content=is_on("trace_content"), more=resume)
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
