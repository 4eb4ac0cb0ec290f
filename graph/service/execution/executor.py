"""Runs requests: checks them, lends the search engine, and runs the graph or the audit."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

from fairqr.agents.attribution.attributor import Attributor
from fairqr.agents.generators import ModelGenerator
from fairqr.agents.models.cache import ReplyCache
from fairqr.base import errors
from fairqr.base.settings import is_on
from fairqr.base.telemetry import record_to
from fairqr.graph.journal import RunJournal
from fairqr.graph.opening import open_parts
from fairqr.graph.running import in_turns
from fairqr.graph.search.models import GivenModel
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.execution import checking
from fairqr.graph.service.execution.audits import Auditor, run_audit
from fairqr.graph.service.execution.capabilities import NOTHING, Capabilities
from fairqr.graph.service.execution.engines import Engines
from fairqr.graph.service.execution.models import Models
from fairqr.graph.service.execution.requests import AuditRequest, RunRequest, parsed
from fairqr.graph.service.records import Kind, Run
from fairqr.graph.service.slots import Slots
from fairqr.graph.service.store.database import current_key_id
from fairqr.graph.stream import RunOutput, final_step_of, run_graph
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.engines.engine import EngineInfo, SearchEngine
from fairqr.retrieval.engines.tantivy.store import Announce
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import ProgressFunction

GRAPHS = 64
"""How many graphs to keep open."""

COMPUTING = 4
"""How many runs over indexes in this process compute at a time. More would only slow each other
down."""

COMPUTING_SHARE = 1 / COMPUTING
"""The part of these slots that one key may have: one run, so that a key waits for no more than one
run of each other key."""

REACHED_WITHIN = 3.0
"""Seconds to wait for a model's server, or for a source, when we look whether it responds."""

log = logging.getLogger(__name__)


def require_usable(settings: ServiceSettings) -> None:
    """Check that what runs leave can be written; make the folders that are missing.

    Raises:
        ConfigError: A folder cannot be written, or the file of replies is of another kind.
    """
    folders = {"audits": settings.audits, "traces": settings.traces}
    if settings.replies is not None:
        folders["replies"] = settings.replies.parent
    for name, folder in folders.items():
        if folder is not None and not _is_writable(folder):
            raise errors.ConfigError(
                f"The folder {folder} (service.{name}) cannot be written; name another one, or "
                "change its permissions."
            )

    if not ReplyCache(settings.replies).is_usable():
        raise errors.ConfigError(
            f"No replies can be kept in {settings.replies} (service.replies); name a file that is "
            "new, or that fairqr has written."
        )


def _is_writable(folder: Path) -> bool:
    """Make a folder if it is missing, and return whether we can write into it."""
    try:
        # What is recorded may be private.
        folder.mkdir(0o700, parents=True, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


class Executor:
    """Checks requests, and runs the graph for them.

    Args:
        settings: The settings of the service.
        model: The model for requests that name none; defaults to the configured one.
        auditor: Runs audits; without it, the service offers none.

    Attributes:
        auditor: Runs audits.
        capabilities: What requests may name.
        models: The language models.
    """

    def __init__(
        self, settings: ServiceSettings, *, model: str | None = None, auditor: Auditor | None = None
    ) -> None:
        self.settings = settings
        self.auditor = auditor
        catalog = Catalog()
        self.capabilities = Capabilities(settings, catalog, model)
        self._engines = Engines(catalog, self.capabilities.sources)

        self.models = Models(self.capabilities, settings.replies, REACHED_WITHIN)
        self._graph: Callable[..., Any] = lru_cache(GRAPHS)(self._build_graph)
        self._computing = Slots(COMPUTING, COMPUTING_SHARE)

    async def start(self, progress: Announce | None = None) -> None:
        """Open the configured sources, or the default corpus, and start the model.

        The log names a source that cannot be reached; each request for it tries again. It names a
        source that does not answer yet, too, which opens when it does.

        Args:
            progress: Reports what is being indexed.

        Raises:
            FairqrError: Something is missing, or no source can be reached; the message says what to
                do.
        """
        await asyncio.to_thread(require_usable, self.settings)
        await self.models.start_default()

        names = self.configured_corpora()
        openings = [self._open_at_start(name, progress) for name in names]
        outcomes = await asyncio.gather(*openings, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        have_all_failed = len(failures) == len(names)
        for failure in failures:
            is_away = isinstance(failure, errors.IndexUnavailableError)
            if not is_away or have_all_failed:
                raise failure
        for failure in failures:
            log.warning("The service begins without a source: %s", failure)

    async def _open_at_start(self, name: str, progress: Announce | None) -> None:
        """Open a source or a corpus, but wait no longer than a few seconds for a server.

        Raises:
            FairqrError: As of :meth:`check_source`.
        """
        is_indexing = False

        def announce(name: str) -> ProgressFunction:
            nonlocal is_indexing
            is_indexing = True
            return progress(name) if progress is not None else lambda *_: None

        opening = asyncio.create_task(self.check_source(name, announce))
        try:
            await asyncio.wait({opening}, timeout=REACHED_WITHIN)
            is_silent = not opening.done() and not is_indexing
            if is_silent:
                log.warning(
                    "The service begins without a source: '%s' does not answer yet; it opens when "
                    "it does.",
                    name,
                )
                return
            await opening
        finally:
            opening.cancel()  # the engine itself opens on

    async def close(self) -> None:
        """Close everything."""
        await self.models.close()
        await self._engines.close()

    def configured_corpora(self) -> list[str]:
        """Return the names of the configured sources and corpora, or of the default corpus."""
        exact_names = [name for name in self.settings.corpora if "*" not in name]
        configured = list(dict.fromkeys([*exact_names, *self.capabilities.sources]))
        return configured or self.capabilities.corpora()[:1]

    async def check_source(self, name: str, progress: Announce | None = None) -> None:
        """Check that a source or a corpus can be reached.

        Args:
            name: Its name.
            progress: Reports what is being indexed.

        Raises:
            FairqrError: It cannot, or is not as the configuration says.
        """
        async with self._engines.lend(name, progress=progress) as engine:
            await engine.info()

    def check(self, kind: Kind, run_request: RunRequest) -> checking.CheckedRequest:
        """Check a request; see :func:`checking.check_request`."""
        return checking.check_request(kind, run_request, self.settings.limits, self.capabilities)

    async def check_audit(self, audit_request: AuditRequest) -> checking.CheckedRequest:
        """Check a request for an audit; see :func:`checking.check_audit`.

        Raises:
            FairqrError: The request is wrong, exceeds a limit, or asks for what is not offered.
        """
        if self.auditor is None:
            raise errors.NotAllowedError(
                "Audits are not offered here; whoever runs the service can install the extra "
                "'evaluation'."
            )
        checked = checking.check_audit(audit_request, self.settings.limits, self.capabilities)
        await self.auditor.check(checked.context.options)

        corpus = checked.body["corpus"]
        async with self.lend_engine(corpus, audit_request.retriever) as engine:
            for name in audit_request.attributes:
                engine.schema.attribute(name)
        return checked

    async def execute(
        self,
        checked: checking.CheckedRequest,
        id_: str,
        journal: RunJournal | None = None,
        *,
        steps: bool = True,
    ) -> AsyncGenerator[RunOutput, None]:
        """Run a checked request. Iterate over it and close it in the same task.

        Args:
            checked: The request.
            id_: The id of the run; its trace gets this name.
            journal: The journal of a durable run.
            steps: Whether to yield each step, or only the last one, with the whole state.

        Raises:
            FairqrError: The run fails.
        """
        corpus = checked.body["corpus"]
        retriever = checked.body["retriever"]
        async with self.lend_engine(corpus, retriever) as engine:
            with self._recording(id_):
                outputs = await self._outputs_of(checked, engine, id_, journal, steps)
                try:
                    async with self.computing_in_turns(engine), aclosing(outputs):
                        async for output in outputs:
                            yield output
                except errors.BudgetError as error:
                    # A budget that is as high as our limit is refused as the limit would be.
                    if error.limit >= getattr(self.settings.limits, error.unit):
                        self.settings.limits.check(error.unit, error.needed, "What this may take")
                    raise

    def computing_in_turns(self, engine: SearchEngine) -> AbstractAsyncContextManager[None]:
        """Let work with an engine compute only in the turns of its key.

        A run over an index computes nearly all the time, and holds its turn from node to node. A
        run over a server mostly waits for the server, and holds its turn only for what takes a
        thread.
        """
        turn = partial(self._computing.hold, current_key_id.get())
        return in_turns(turn, between_nodes=engine.in_process)

    async def execute_stored(
        self, run: Run, journal: RunJournal
    ) -> AsyncGenerator[RunOutput, None]:
        """Check the request of a stored run again, and run or resume it; see :meth:`execute`."""
        if run.kind == "audit":
            checked = await self.check_audit(AuditRequest.model_validate(run.request))
        else:
            checked = self.check(run.kind, parsed(run.kind, run.request))
        async with aclosing(self.execute(checked, run.id, journal)) as outputs:
            async for output in outputs:
                yield output

    async def _outputs_of(
        self,
        checked: checking.CheckedRequest,
        engine: SearchEngine,
        id_: str,
        journal: RunJournal | None,
        steps: bool,
    ) -> AsyncGenerator[RunOutput, None]:
        """Return the stream of outputs of a request."""
        context = checked.context
        if checked.kind == "audit":
            folder = self.settings.audits / id_ if journal else None
            return run_audit(cast(Auditor, self.auditor), engine, context, folder)

        body = checked.body
        attributor = body.get("attributor", NOTHING)
        graph = self._graph(checked.kind, engine, body["model"], attributor)
        if checked.kind == "answer" and body["k"] is None:
            # The default pool is no larger than the corpus.
            info = await engine.info()
            size = info.documents or context.k
            context = context.model_copy(update={"k": min(context.k, size)})

        if journal is None:
            if steps:
                return run_graph(graph, checked.query, context)
            return _final_step_alone(graph, checked.query, context)

        version = ""
        if engine.in_process:
            version = (await engine.info()).fingerprint
        await journal.start_over(version)
        return run_graph(
            graph.copy({"checkpointer": journal.saver}),
            checked.query,
            context,
            journal=journal,
            thread=id_,
            resume=journal.resumed,
        )

    @asynccontextmanager
    async def lend_engine(
        self, corpus: str | None, retriever: str = AUTO
    ) -> AsyncIterator[SearchEngine]:
        """Lend the search engine of an offered corpus; None means the default corpus.

        Raises:
            FairqrError: The corpus is not offered, or cannot be opened.
        """
        name = self.capabilities.corpus(corpus)
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
        reached = await self.reached()
        return [pair for pair in reached.values() if pair is not None]

    async def reached(self) -> dict[str, tuple[SearchEngine, EngineInfo] | None]:
        """Return all offered search engines by name; None for those that cannot be opened now."""

        async def reach(name: str) -> tuple[SearchEngine, EngineInfo] | None:
            with suppress(errors.FairqrError, TimeoutError):
                async with asyncio.timeout(REACHED_WITHIN), self._engines.lend(name) as engine:
                    return engine, await engine.info()
            return None

        names = await asyncio.to_thread(self.capabilities.corpora)
        # All at the same time, since an engine that is out of reach takes long to fail.
        pairs = await asyncio.gather(*map(reach, names))
        return dict(zip(names, pairs, strict=True))

    def _build_graph(self, kind: Kind, engine: SearchEngine, model_name: str, judge: str) -> Any:
        """Return the graph for a kind of run over an engine.

        Args:
            kind: The kind of the run.
            engine: The engine.
            model_name: The name of the model.
            judge: The name of the attributor, or :data:`NOTHING`; only answers have one.
        """
        model = self.models.open(model_name)
        refiner: GivenModel | None = None
        generator: ModelGenerator | None = None
        if not isinstance(model, ModelGenerator):
            refiner = cast("GivenModel", model)
        elif kind == "answer":
            generator = model

        attributor: Attributor | str | None = None
        if kind == "answer":
            attributor = self.models.attributor(judge, model_name)
        parts = open_parts(
            engine,
            refiner,
            generator=generator,
            attributor=attributor,
            prompts=self.capabilities.prompts,
        )
        return parts.graph(kind)

    @contextmanager
    def _recording(self, id_: str) -> Iterator[None]:
        """Record a run if that is configured. If recording fails, the run continues."""
        folder = self.settings.traces
        if folder is None:
            yield
            return

        file = folder / f"{id_}.jsonl"
        recorder = None
        with ExitStack() as stack:
            recording = record_to(file, content=is_on("trace_content"), more=True)
            try:
                recorder = stack.enter_context(recording)
            except errors.InputError as error:
                log.warning("%s", error)
            yield
        if recorder is not None and recorder.failure:
            log.warning("The trace of the run %s is incomplete: %s.", id_, recorder.failure)


async def _final_step_alone(
    graph: Any, query: str, context: Any
) -> AsyncGenerator[RunOutput, None]:
    """Run a graph whose steps nobody follows, and yield the last step, with the whole state."""
    yield await final_step_of(graph, query, context)
