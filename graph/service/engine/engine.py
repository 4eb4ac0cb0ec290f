"""Doing a run: the graph that the service stands in front of, and what it is made of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from fairqr.agents.chat import ChatModel
from fairqr.agents.feedback import FeedbackRefiner
from fairqr.errors import FairqrError, ModelUnavailableError, PromptError
from fairqr.graph.context import Context
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.engine.checking import Request, check_request
from fairqr.graph.service.engine.live_prompts import LivePrompts
from fairqr.graph.service.engine.offers import Offers
from fairqr.graph.service.engine.opening import Opened
from fairqr.graph.service.records import Kind, Run
from fairqr.graph.stream import Step, Token, run_graph
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.recording import record_to
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.index import Index, IndexInfo, Progress
from fairqr.settings import is_on

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

__all__ = ["Engine"]

REACHED_WITHIN = 3.0
"""Seconds in which a model's server has to answer whether it is there."""


class Engine:
    """Checks requests, and runs the graph for them.

    Args:
        settings: Of the service.
        saver: Keeps the states of runs that are to be resumed; None where none is.
        catalog: Of the indexes; those in the user's data folder where None.
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
        self._opened = Opened(catalog, self.prompts, self.offers, saver)

    async def start(self, progress: Callable[[str], Progress] | None = None) -> None:
        """Open the indexes that are named in the configuration, or the default one, and the model.

        Args:
            progress: Told of what is being indexed.

        Raises:
            FairqrError: Something is missing; the message says what to do.
        """
        await self._start_model()
        for name in self._named():
            await self._opened.index(name, progress=progress)
        if self.settings.traces is not None:
            await asyncio.to_thread(self.settings.traces.mkdir, parents=True, exist_ok=True)

    async def close(self) -> None:
        """Close all that is open."""
        await self._opened.close()

    async def check_index(self) -> None:
        """Check that the indexes can be reached that are named in the configuration.

        Raises:
            FairqrError: One cannot.
        """
        for name in self._named():
            await (await self._opened.index(name)).info()

    async def check_model(self) -> None:
        """Check that the default model can be reached; it is asked nothing.

        Raises:
            ModelUnavailableError: It cannot.
        """
        model = await self._start_model()
        if model is None or model.base_url is None:
            return
        try:
            async with httpx.AsyncClient(timeout=REACHED_WITHIN) as client:
                await client.get(f"{model.base_url.rstrip('/')}/models")
        except httpx.HTTPError:
            raise ModelUnavailableError(
                f"The server of the model {model.name} cannot be reached; check that it runs."
            ) from None

    async def check(self) -> None:
        """Check that index and model can be reached.

        Raises:
            FairqrError: One of them cannot.
        """
        await self.check_index()
        await self.check_model()

    def checked(self, kind: Kind, body: Mapping[str, Any]) -> Request:
        """Return what a request asks for; see :func:`check_request`."""
        return check_request(kind, body, self.settings.caps, self.offers)

    async def execute(self, run: Run, resume: bool) -> AsyncGenerator[Step | Token, None]:
        """Do a run, and yield what happens; ask for all of it, and close it, in one task.

        Args:
            run: One to be kept has its states kept under its id.
            resume: Go on where these states end.

        Raises:
            FairqrError: What was asked for cannot be done.
        """
        request = self.checked(run.kind, run.request)
        graph, index = await self._opened.graph(request)
        context = await _fitting(request, index)
        thread = run.id if run.keep else None
        events = run_graph(graph, request.query, context, thread=thread, resume=resume)
        with self._recorded(run.id):
            async with aclosing(events):
                async for event in events:
                    yield event

    async def infos(self) -> list[tuple[Index, IndexInfo]]:
        """Return the indexes that are offered and can be opened."""
        found: list[tuple[Index, IndexInfo]] = []
        for name in await asyncio.to_thread(self.offers.corpora):
            with contextlib.suppress(FairqrError):
                index = await self._opened.index(name)
                found.append((index, await index.info()))
        return found

    def usable_prompt(self, id_: str, version: str) -> PromptTemplate | None:
        """Return a prompt; None where its file is wrong, or has just been taken away."""
        try:
            return self.prompts.get(id_, version)
        except PromptError:
            return None

    def _named(self) -> list[str]:
        """Return the names of the indexes that have to be there."""
        exact = [name for name in self.settings.corpora if "*" not in name]
        return exact or self.offers.corpora()[:1]

    async def _start_model(self) -> ChatModel | None:
        """Start the default model; None where it is none that has to be started."""
        name, entry = self.offers.model(None)
        if name == FeedbackRefiner.name:
            return None
        model = await self._opened.model(name, entry, None)
        if not isinstance(model, ChatModel):
            return None
        await model.start()
        return model

    def _recorded(self, id_: str) -> contextlib.AbstractContextManager[Any]:
        folder: Path | None = self.settings.traces
        if folder is None:
            return contextlib.nullcontext()
        return record_to(folder / f"{id_}.jsonl", content=is_on("trace_content"))


async def _fitting(request: Request, index: Index) -> Context:
    """Return the context; where nobody said otherwise, a small corpus takes part as a whole."""
    if not request.fits_pool:
        return request.context
    size = max((await index.info()).documents, 1)
    return request.context.model_copy(update={"k": min(request.context.k, size)})
