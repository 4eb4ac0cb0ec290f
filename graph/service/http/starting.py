"""Starting and stopping the service: all of its parts, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec

from fastapi import FastAPI

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.engine.audits import Auditor
from fairqr.graph.service.engine.engine import Engine
from fairqr.graph.service.http.access import require_a_key
from fairqr.graph.service.http.app import create_app
from fairqr.graph.service.http.metrics import Metrics
from fairqr.graph.service.http.parts import Parts, Readiness
from fairqr.graph.service.runs.doing import Observer
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.retrieval.sources.documents import ProgressFunction


@asynccontextmanager
async def running(
    settings: ServiceSettings,
    model: str | None = None,
    progress: Callable[[str], ProgressFunction] | None = None,
    auditor: Auditor | None = None,
) -> AsyncIterator[tuple[FastAPI, Callable[[], Awaitable[None]]]]:
    """Start a service, and stop it in the end.

    Args:
        settings: The settings of the service.
        model: The default model; defaults to the configured one.
        progress: Reports what is being indexed.
        auditor: Runs audits; without it, the service offers none.

    Yields:
        The application, and a function that drains it within the grace time: it accepts no more
        runs, and those under way end or are handed back.

    Raises:
        FairqrError: Something is missing or cannot be reached; the message says what to do.
    """
    metrics = Metrics()
    async with (
        working(settings, metrics, model, progress, auditor, listens=True) as (store, engine, runs),
        AsyncExitStack() as stack,
    ):
        readiness = Readiness(
            {"index": engine.check_index, "model": engine.check_model, "store": store.check}
        )

        async def drain() -> None:
            await runs.drain(settings.grace)

        app = create_app(Parts(settings, store, engine, runs, metrics, readiness))
        if find_spec("fastmcp") is not None:
            from fairqr.graph.service.http.agents import McpDoor

            door = await stack.enter_async_context(McpDoor.opened(engine, runs.ephemeral))
            app.router.routes.append(door.route)
        yield app, drain


@asynccontextmanager
async def working(
    settings: ServiceSettings,
    observer: Observer,
    model: str | None = None,
    progress: Callable[[str], ProgressFunction] | None = None,
    auditor: Auditor | None = None,
    *,
    listens: bool = False,
) -> AsyncIterator[tuple[Store, Engine, Runs]]:
    """Start what does runs, and stop it in the end; see :func:`running`.

    Args:
        settings: The settings of the service.
        observer: Hears what happens to runs.
        model: The default model; defaults to the configured one.
        progress: Reports what is being indexed.
        auditor: Runs audits; without it, the service offers none.
        listens: Whether clients will reach this process, and may need keys.
    """
    async with AsyncExitStack() as stack:
        store = await Store.open(settings.database)
        stack.push_async_callback(store.close)
        if listens:
            await require_a_key(settings, store)
        engine = Engine(settings, default_model=model, auditor=auditor)
        stack.push_async_callback(engine.close)
        await engine.start(progress)
        runs = Runs(store, engine.execute_stored if settings.work else None, settings, observer)
        stack.push_async_callback(runs.drain, 0)
        await runs.start()
        yield store, engine, runs
