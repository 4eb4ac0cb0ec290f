"""The commands ``fairqr serve``, ``proxy``, ``work`` and ``mcp``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from fairqr.base.errors import ConfigError, InputError
from fairqr.base.exporting import require_endpoint
from fairqr.base.extras import library
from fairqr.cli.common import run
from fairqr.cli.options import Fields
from fairqr.cli.output import warn
from fairqr.cli.progress import Progress
from fairqr.cli.service_audits import ServiceAuditor
from fairqr.cli.settings import unknown_settings
from fairqr.graph.service.configuration import ServiceSettings, service_settings
from fairqr.graph.service.http.shared_metrics import share_metrics

SERVICE = ("fastapi", "limits", "procrastinate", "prometheus_client", "sqlalchemy", "uvicorn")
"""The libraries of the extra ``service``."""

LOG = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def serve(
    *,
    changes: Annotated[
        Mapping[str, Any],
        Fields(
            "--host",
            "--port",
            "--database",
            "--require-keys",
            "--concurrency",
            "--traces",
            model=ServiceSettings,
        ),
    ],
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus",
            help=(
                "What clients may search: a source, an index, a built-in corpus, or the path "
                "of a source file or a corpus. Repeatable; the first is the default. "
                "[default: everything that has a name]"
            ),
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help=(
                "A model that clients may ask, besides those of the settings file. "
                "Repeatable; the first is the default."
            ),
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="The URL of an OpenAI-compatible server.")
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            min=1,
            help="How many processes serve. Several need a PostgreSQL database, or keep no runs.",
        ),
    ] = 1,
) -> None:
    """Serve searches, answers, probes and audits over HTTP, with a page to run and watch them.

    Set everything else in the section [service] of the settings file, or in variables
    FAIRQR_SERVICE_…; 'fairqr config show' lists them.
    """
    if workers > 1:
        share_metrics()
    settings = prepare_service("service", SERVICE, model, base_url, **changes)
    from fairqr.graph.service.http.serving import bound, fork, new_loop

    for warning in unknown_settings():
        warn(warning)
    if workers > 1 and settings.work and not settings.database.startswith("postgres"):
        raise ConfigError(
            "Several workers cannot share the runs in a SQLite file; name a PostgreSQL database, "
            "or set FAIRQR_SERVICE_WORK=false to keep no runs."
        )
    with bound(settings.host, settings.port) as listener:
        # Loaded before the fork, so that workers share it.
        import_module("fairqr.graph.service.http.app")
        is_announcer = True
        if workers > 1:
            is_announcer, listener = fork(workers, listener)
        default_model = model[0] if model else None
        run(_serve(settings, listener, is_announcer, corpus or [], default_model), loop=new_loop)


async def _serve(
    settings: ServiceSettings,
    listener: socket.socket,
    is_announcer: bool,
    corpora: list[str],
    model: str | None,
) -> None:
    """Open what clients may search, and serve until a signal ends it.

    Args:
        settings: How the service is set up.
        listener: The socket to accept connections from.
        is_announcer: Whether this process tells the user the address.
        corpora: What clients may search.
        model: The default model.
    """
    import gc

    from fairqr.graph.service.http.access import needs_keys
    from fairqr.graph.service.http.app import running
    from fairqr.graph.service.http.serving import Server, url_of

    async with contextlib.AsyncExitStack() as stack:
        url = url_of(listener)
        with Progress() as progress:
            settings = await _offer(settings, corpora, progress)
            app, drain = await stack.enter_async_context(
                running(settings, model, progress.prepare, ServiceAuditor.if_installed())
            )

        def announce() -> None:
            if not is_announcer:
                return
            keys = "keys are needed" if needs_keys(settings) else "no keys are needed here"
            typer.echo(f"fairqr listens on {url}")
            typer.echo(f"  the page: {url}/   the API: {url}/openapi.json   ({keys})")

        # What is loaded by now stays, so no collection of garbage has to look at it and hold all
        # requests up.
        gc.collect()
        gc.freeze()
        await Server(app, drain).run_on(listener, announce)


def proxy(
    file: Annotated[
        Path,
        typer.Argument(help="The YAML file that names the cluster, and the source of each index."),
    ],
) -> None:
    """Stand in front of Elasticsearch or OpenSearch, and re-rank the searches of some indexes."""
    for name in SERVICE:
        library(name, "This command", "service", ConfigError)
    from fairqr.graph.service.http.serving import bound, new_loop, url_of
    from fairqr.graph.service.proxy.app import serve as serve_proxy
    from fairqr.graph.service.proxy.settings import proxy_settings

    logging.basicConfig(format=LOG)
    settings = proxy_settings(file)
    with bound(settings.host, settings.port) as listener:
        url = url_of(listener)
        if settings.certificate:
            url = url.replace("http:", "https:")
        sentence = f"fairqr stands at {url} in front of {settings.cluster}"
        run(serve_proxy(settings, file, listener, lambda: typer.echo(sentence)), loop=new_loop)


def work(
    *,
    changes: Annotated[
        Mapping[str, Any], Fields("--database", "--concurrency", "--traces", model=ServiceSettings)
    ],
) -> None:
    """Do the durable runs that 'fairqr serve' accepts, as one of any number of processes.

    They share a PostgreSQL database. All else is set as for 'fairqr serve'.
    """
    settings = prepare_service("service", SERVICE, **changes)
    if not settings.database.startswith("postgres"):
        raise ConfigError(
            "Runs in a SQLite file are done by 'fairqr serve' itself; name a PostgreSQL database "
            "with --database."
        )
    from fairqr.graph.service.http.serving import new_loop

    run(_work(settings.model_copy(update={"work": True})), loop=new_loop)


async def _work(settings: ServiceSettings) -> None:
    """Do runs until a signal ends it, and hand those back that do not end in time."""
    import signal

    from fairqr.graph.service.http.parts import ServiceParts

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    auditor = ServiceAuditor.if_installed()
    async with ServiceParts.started(settings, auditor=auditor) as parts:
        typer.echo("fairqr does runs")
        await stopped.wait()
        await parts.runs.drain(settings.grace)


def mcp(
    *,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus",
            help=(
                "What the agent may search: a source, an index, a built-in corpus, or the "
                "path of a source file or a corpus. Repeatable; the first is the default. "
                "[default: everything that has a name]"
            ),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="The language model that refines queries and writes answers."),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="The URL of an OpenAI-compatible server.")
    ] = None,
) -> None:
    """Offer fair search as tools to an agent, over MCP on stdin and stdout.

    The sections [service], [service.limits] and [service.models] of the settings file also apply.
    """
    settings = prepare_service("mcp", ("fastmcp",), [model] if model else None, base_url)
    run(_converse(settings, corpus or [], model))


async def _converse(settings: ServiceSettings, corpora: list[str], model: str | None) -> None:
    """Serve the tools until stdin ends."""
    import os

    from fairqr.graph.service.execution.executor import Executor
    from fairqr.graph.service.mcp.server import make_server
    from fairqr.graph.service.runs.manager import EphemeralRuns

    async with contextlib.AsyncExitStack() as stack:
        with Progress() as progress:
            settings = await _offer(settings, corpora, progress)
            auditor = ServiceAuditor.if_installed()
            executor = Executor(settings, model=model, auditor=auditor)
            stack.push_async_callback(executor.close)
            await executor.start(progress.prepare)
        runs = EphemeralRuns(settings, lambda _: None)
        stack.push_async_callback(runs.drain, 0)
        server = make_server(executor, runs)
        # The MCP library closes the stdout that it is given.
        stack.enter_context(contextlib.redirect_stdout(os.fdopen(os.dup(1), "w")))
        await server.run_stdio_async(show_banner=False)


def prepare_service(
    extra: str,
    libraries: tuple[str, ...],
    models: list[str] | None = None,
    base_url: str | None = None,
    **changes: Any,
) -> ServiceSettings:
    """Check that a service can run, start its log, and return its settings.

    Args:
        extra: The extra that the command needs.
        libraries: The libraries of that extra.
        models: The models to add to those of the settings file.
        base_url: The server that has them.
        changes: Other settings.

    Raises:
        ConfigError: A library is missing, or a setting is wrong.
        InputError: A server is named without a model.
    """
    for name in libraries:
        library(name, "This command", extra, ConfigError)
    if base_url is not None and not models:
        raise InputError("--base-url belongs to a model; name the model with --model.")
    require_endpoint()
    offered: dict[str, dict[str, Any]] | None = None
    if models:
        offered = {name: {"base_url": base_url} for name in models}
        offered["feedback"] = {}
    settings = service_settings(models=offered, **changes)

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.log == "json" else logging.Formatter(LOG))
    handler.addFilter(without_traceback)
    logging.basicConfig(handlers=[handler])
    return settings


def without_traceback(record: logging.LogRecord) -> bool:
    """Name an error of Elasticsearch's client, which logs a traceback at each attempt."""
    if record.name.startswith("elastic_transport") and record.exc_info:
        error = record.exc_info[0]
        name = error.__name__ if error else "failed"
        record.msg = f"{record.getMessage()}: {name}"
        record.args = ()
        record.exc_info = record.exc_text = None
    return True


class JsonLines(logging.Formatter):
    """Writes each line of the log as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        created = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": created.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(fields, ensure_ascii=False)


async def _offer(
    settings: ServiceSettings, corpora: list[str], progress: Progress
) -> ServiceSettings:
    """Return settings that offer these corpora; a corpus at a path is indexed first."""
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.source import is_source_file, load_source

    names = []
    files = []
    for corpus in corpora:
        path = Path(corpus)
        if is_source_file(corpus):
            names.append(load_source(path).name)
            files.append(path)
        elif "/" in corpus or await asyncio.to_thread(path.exists):
            # An index that does not exist yet is made now.
            engine = await Catalog().resolve(corpus, progress=progress.prepare)
            await engine.aclose()
            names.append(engine.name)
        else:
            names.append(corpus)
    changes = {
        "corpora": tuple(names) or settings.corpora,
        "sources": (*settings.sources, *files),
    }
    return settings.model_copy(update=changes)
