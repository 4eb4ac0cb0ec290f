"""The commands ``fairqr serve``, ``work``, ``mcp`` and ``keys``: the service and its keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer

from fairqr.base.errors import ConfigError, InputError, OtherRunError
from fairqr.base.exporting import require_endpoint
from fairqr.base.extras import library
from fairqr.cli.common import run
from fairqr.cli.options import Fields, command
from fairqr.cli.output import Printed, table, warn
from fairqr.cli.progress import Progress
from fairqr.cli.settings import unknown_settings
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.graph.service.configuration import ServiceSettings, service_settings
from fairqr.graph.service.http.shared_metrics import share_metrics

if TYPE_CHECKING:
    from fairqr.graph.service.execution.audits import AuditResult, ReportProgress
    from fairqr.graph.service.execution.requests import AuditRequest
    from fairqr.graph.service.store import Store
    from fairqr.retrieval.engines.engine import SearchEngine

T = TypeVar("T")

SERVICE = ("fastapi", "limits", "procrastinate", "prometheus_client", "sqlalchemy", "uvicorn")
"""The libraries of the extra ``service``."""

LOG = "%(asctime)s %(levelname)s %(name)s: %(message)s"

keys = typer.Typer()


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
            help=("How many processes serve. Several need a PostgreSQL database, or keep no runs."),
        ),
    ] = 1,
) -> None:
    """Serve searches, answers, probes and audits over HTTP, with a page to run and watch them.

    Set everything else in the section [service] of the settings file, or in variables
    FAIRQR_SERVICE_…; 'fairqr config show' lists them.
    """
    if workers > 1:
        share_metrics()
    settings = _settings("service", SERVICE, model, base_url, **changes)
    from fairqr.graph.service.http.serving import bound, fork, new_loop

    for warning in unknown_settings():
        warn(warning)
    if workers > 1 and settings.work and not settings.database.startswith("postgres"):
        raise ConfigError(
            "Several workers cannot share the runs in a SQLite file; name a PostgreSQL database, "
            "or set FAIRQR_SERVICE_WORK=false to keep no runs."
        )
    with bound(settings.host, settings.port) as listener:
        import_module("fairqr.graph.service.http.app")  # before the fork, so that workers share it
        announces, socket_ = (True, listener) if workers == 1 else fork(workers, listener)
        serving = _serve(settings, socket_, announces, corpus or [], model[0] if model else None)
        run(serving, loop=new_loop)


async def _serve(
    settings: ServiceSettings,
    listener: socket.socket,
    announces: bool,
    corpora: list[str],
    model: str | None,
) -> None:
    import gc

    from fairqr.graph.service.http.access import needs_keys
    from fairqr.graph.service.http.app import running
    from fairqr.graph.service.http.serving import Server, url_of

    async with contextlib.AsyncExitStack() as stack:
        url = url_of(listener)
        with Progress() as progress:
            settings = await _offering(settings, corpora, progress)
            app, drain = await stack.enter_async_context(
                running(settings, model, progress.prepare, ServiceAuditor.if_installed())
            )

        def started() -> None:
            if not announces:
                return
            told = "keys are needed" if needs_keys(settings) else "no keys are needed here"
            typer.echo(f"fairqr listens on {url}")
            typer.echo(f"  the page: {url}/   the API: {url}/openapi.json   ({told})")

        # What is loaded by now stays, so no collection of garbage has to look at it and hold all
        # requests up.
        gc.collect()
        gc.freeze()
        await Server(app, drain).run_on(listener, started)


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
        url = url_of(listener).replace("http:", "https:" if settings.certificate else "http:")
        told = f"fairqr stands at {url} in front of {settings.cluster}"
        run(serve_proxy(settings, file, listener, lambda: typer.echo(told)), loop=new_loop)


def work(
    *,
    changes: Annotated[
        Mapping[str, Any], Fields("--database", "--concurrency", "--traces", model=ServiceSettings)
    ],
) -> None:
    """Do the durable runs that 'fairqr serve' accepts, as one of any number of processes.

    They share a PostgreSQL database. All else is set as for 'fairqr serve'.
    """
    settings = _settings("service", SERVICE, **changes)
    if not settings.database.startswith("postgres"):
        raise ConfigError(
            "Runs in a SQLite file are done by 'fairqr serve' itself; name a PostgreSQL database "
            "with --database."
        )
    from fairqr.graph.service.http.serving import new_loop

    run(_work(settings.model_copy(update={"work": True})), loop=new_loop)


async def _work(settings: ServiceSettings) -> None:
    import signal

    from fairqr.graph.service.http.parts import ServiceParts

    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    auditor = ServiceAuditor.if_installed()
    async with ServiceParts.started(settings, auditor=auditor) as parts:
        typer.echo("fairqr does runs")
        await told.wait()
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
    settings = _settings("mcp", ("fastmcp",), [model] if model else None, base_url)
    run(_converse(settings, corpus or [], model))


async def _converse(settings: ServiceSettings, corpora: list[str], model: str | None) -> None:
    """Serve the tools until stdin ends."""
    import os

    from fairqr.graph.service.execution.executor import Executor
    from fairqr.graph.service.mcp.tools import make_server
    from fairqr.graph.service.runs.manager import EphemeralRuns

    async with contextlib.AsyncExitStack() as stack:
        with Progress() as progress:
            settings = await _offering(settings, corpora, progress)
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


def _settings(
    extra: str,
    libraries: tuple[str, ...],
    models: list[str] | None = None,
    base_url: str | None = None,
    **changes: Any,
) -> ServiceSettings:
    """Return how a service is set up, and start its log.

    Args:
        extra: The extra that the command needs.
        libraries: The libraries of that extra.
        models: The models to add to those of the settings file.
        base_url: The server that has them.
        changes: Other settings.

    Raises:
        ConfigError: A library is missing, or a setting is wrong.
        InputError: There is a server, and no model.
    """
    for name in libraries:
        library(name, "This command", extra, ConfigError)
    if base_url is not None and not models:
        raise InputError("--base-url belongs to a model; name the model with --model.")
    require_endpoint()
    offered = {name: {"base_url": base_url} for name in models or ()}
    given = {**offered, "feedback": {}} if models else None
    settings = service_settings(models=given, **changes)
    lines = logging.StreamHandler()
    lines.setFormatter(JsonLines() if settings.log == "json" else logging.Formatter(LOG))
    lines.addFilter(without_traceback)
    logging.basicConfig(handlers=[lines])
    return settings


def without_traceback(record: logging.LogRecord) -> bool:
    """Name an error of Elasticsearch's client, which logs a traceback at each attempt."""
    if record.name.startswith("elastic_transport") and record.exc_info:
        error = record.exc_info[0]
        record.msg = f"{record.getMessage()}: {error.__name__ if error else 'failed'}"
        record.args = ()
        record.exc_info = record.exc_text = None
    return True


class JsonLines(logging.Formatter):
    """Writes each line of the log as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(told, ensure_ascii=False)


async def _offering(
    settings: ServiceSettings, corpora: list[str], progress: Progress
) -> ServiceSettings:
    """Return settings that offer these corpora; a corpus at a path is indexed first."""
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.source import is_source_file, load_source

    names, files = [], []
    for corpus in corpora:
        if is_source_file(corpus):
            names.append(load_source(Path(corpus)).name)
            files.append(Path(corpus))
        elif "/" in corpus or await asyncio.to_thread(Path(corpus).exists):
            engine = await Catalog().resolve(corpus, progress=progress.prepare)
            await engine.aclose()
            names.append(engine.name)
        else:
            names.append(corpus)
    offered = {"corpora": tuple(names) or settings.corpora, "sources": (*settings.sources, *files)}
    return settings.model_copy(update=offered)


@command(keys)
def create(
    name: Annotated[str, typer.Argument(help="Who or what will use the key.")],
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help=(
                "What the key may do: read, run (includes read) or admin (includes both). "
                "Repeatable. [default: run]"
            ),
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", help="The service's database. [default: the configured one]"),
    ] = None,
) -> Printed:
    """Make an access key and print it, alone on stdout. It cannot be shown again."""
    scopes: Any = scope or ["run"]
    key, secret = _with_store(database, lambda store: store.create_key(name, scopes))
    typer.echo(
        f"The key {key.id} of {key.name} may {', '.join(key.scopes)}. Save it now: it is not "
        "shown again. Send it as 'Authorization: Bearer KEY'.",
        err=True,
    )
    return Printed({**key.model_dump(exclude={"sha256"}), "key": secret}, [secret])


@command(keys)
def list_(
    *,
    database: Annotated[
        str | None,
        typer.Option("--database", help="The service's database. [default: the configured one]"),
    ] = None,
) -> Printed:
    """List the access keys, without their secrets."""
    found = _with_store(database, lambda store: store.keys())
    rows = [
        (key.id, _day(key.created), ",".join(key.scopes), _day(key.revoked), key.name)
        for key in found
    ]
    data = {"keys": [key.model_dump(exclude={"sha256"}) for key in found]}
    return Printed(data, [table(["id", "made", "scopes", "revoked", "name"], rows)])


@command(keys)
def revoke(
    id_: Annotated[str, typer.Argument(help="The key's id, as 'fairqr keys list' shows it.")],
    *,
    database: Annotated[
        str | None,
        typer.Option("--database", help="The service's database. [default: the configured one]"),
    ] = None,
) -> None:
    """Revoke an access key for good."""
    key = _with_store(database, lambda store: store.revoke_key(id_))
    typer.echo(f"The key {key.id} of {key.name} is revoked.")


def _with_store(database: str | None, ask: Callable[[Store], Awaitable[T]]) -> T:
    """Open the service's database, ask it something, and close it."""
    settings = _settings("service", SERVICE, database=database)
    from fairqr.graph.service.store import Store

    async def work() -> T:
        async with Store.opened(settings.database) as store:
            return await ask(store)

    return run(work())


def _day(seconds: float | None) -> str:
    from datetime import UTC, datetime

    return "" if seconds is None else str(datetime.fromtimestamp(seconds, UTC).date())


EVALUATION = ("jinja2", "markdown_it", "matplotlib", "pandas")
"""The libraries of the extra ``evaluation`` that audits need."""

PAUSE = 0.5
"""Seconds between two checks whether another worker has released a folder."""


class ServiceAuditor:
    """See :class:`fairqr.graph.service.execution.audits.Auditor`."""

    @classmethod
    def if_installed(cls) -> Self | None:
        """Return an auditor, or None without the extra ``evaluation``."""
        return None if any(find_spec(name) is None for name in EVALUATION) else cls()

    async def check(self, options: Mapping[str, Any]) -> None:
        """Check the options of an audit."""
        (await _auditing()).audit_spec(options)

    async def __call__(
        self,
        engine: SearchEngine,
        audit_request: AuditRequest,
        folder: Path | None,
        report: ReportProgress,
    ) -> AuditResult:
        """Audit an engine."""
        from filelock import AsyncFileLock

        from fairqr.evaluation.experiments.folder import LOCK
        from fairqr.graph.service.execution.audits import AuditResult

        auditing = await _auditing()

        async def attempt() -> AuditResult:
            found = await auditing.audit(
                engine,
                [it.model_dump() for it in audit_request.queries],
                weight="weight" if any(it.weight != 1 for it in audit_request.queries) else None,
                clicks=audit_request.clicks,
                folder=folder,
                withhold_place=True,
                watcher=_Watcher(report),
                **audit_request.options,
            )
            text = await asyncio.to_thread((found.folder / "audit.json").read_text, "utf-8")
            return AuditResult(
                findings=found.findings, digest=found.digest, figures=json.loads(text)
            )

        if folder is None:
            return await attempt()
        await asyncio.to_thread(folder.mkdir, 0o700, parents=True, exist_ok=True)
        # A worker that lost this audit, such as a frozen one, has to release its folder first.
        async with AsyncFileLock(folder / LOCK, poll_interval=PAUSE):
            pass
        try:
            return await attempt()
        except OtherRunError:
            # The index was rebuilt since an earlier attempt.
            await asyncio.to_thread(shutil.rmtree, folder)
            return await attempt()


async def _auditing() -> Any:
    # Its libraries take long to import, and few services are asked for an audit.
    return await asyncio.to_thread(import_module, "fairqr.auditing")


class _Watcher(StageWatcher):
    """Reports how many steps of a stage are done."""

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self._stage, self._done, self._of = "", 0, 0

    def stage(self, what: str, total: int, done: int) -> None:
        """Start a stage."""
        self._stage, self._done, self._of = what, done, total
        if done:
            self._report(what, done, total)

    def advance(self, steps: int = 1) -> None:
        """Count steps as done."""
        self._done += steps
        self._report(self._stage, self._done, self._of)
