"""What tests of the service share: a server of each kind, and how its streams are read."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from fairqr.graph.service.configuration import ServiceSettings, Traffic
from fairqr.graph.service.execution.executor import Executor
from fairqr.graph.service.http.app import McpEndpoint, create_app
from fairqr.graph.service.http.parts import Metrics, ServiceParts
from fairqr.graph.service.records import Scope
from fairqr.graph.service.runs.manager import EphemeralRuns
from fairqr.graph.service.store import Store
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import find_corpus
from tests.servers.model_server import Asked, ModelServer, says, scores, write_people
from tests.servers.page_service import Process, ServiceClient, running, settings_for

T = TypeVar("T")

PHYSICIST = {
    "query": "physicist",
    "corpus": "people",
    "attributes": ["gender"],
    "k": 10,
    "ask": "always",
    "groups": "all",
}
"""A search that asks the model."""


INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
"""The first message of a client of MCP."""

ACCEPT = {"Accept": "application/json, text/event-stream"}
"""The header that a client of MCP has to send."""


def answers_all(asked: Asked) -> Any:
    """Play a model that can do whatever fairqr asks for."""
    if asked.body.get("logprobs"):
        return scores({"A": 0.7, "B": 0.3})
    if asked.wants_schema:
        return says({"topic": ["laboratory"], "keywords": ["woman"], "drop": [], "reason": "why"})
    return says("[1] > [2]")


@dataclass(frozen=True, slots=True)
class Served:
    """A running service.

    Attributes:
        process: It.
        model: What it asks.
        folder: Of its settings and data.
        variables: That it runs with.
        key: The header of a key that may read and run, if it wants keys.
    """

    process: Process
    model: ModelServer
    folder: Path
    variables: dict[str, str]
    key: dict[str, str]

    @property
    def client(self) -> ServiceClient:
        return self.process.client

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    def newest(self) -> dict[str, Any]:
        """Return the run that was made last."""
        found: dict[str, Any] = self.client.get("/v1/runs?limit=1").json()["runs"][0]
        return found


def now(work: Coroutine[Any, Any, T]) -> T:
    """Do something asynchronous, whether or not this thread has a loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def index_people(variables: dict[str, str], path: Path, name: str = "people") -> None:
    """Make an index of a corpus, as ``fairqr index create`` does."""

    async def work() -> None:
        catalog = Catalog(Path(variables["FAIRQR_DATA_DIR"]))
        await (await catalog.create(name, find_corpus(path))).aclose()

    now(work())


def a_key(variables: dict[str, str], name: str, *scopes: Scope) -> tuple[str, dict[str, str]]:
    """Make an access key; return its id and the header that carries it."""

    async def work() -> tuple[str, dict[str, str]]:
        file = f"sqlite:///{variables['FAIRQR_DATA_DIR']}/service/runs.sqlite"
        async with Store.opened(variables.get("FAIRQR_SERVICE_DATABASE", file)) as store:
            key, secret = await store.create_key(name, scopes or ("run",))
        return key.id, {"Authorization": f"Bearer {secret}"}

    return now(work())


@contextlib.contextmanager
def a_service(
    folder: Path,
    *arguments: str,
    corpus: str = "people",
    settings: str = "",
    environment: dict[str, str] | None = None,
    change: Any = None,
) -> Iterator[Served]:
    """Run ``fairqr serve`` with a model server of its own.

    Args:
        folder: For all files.
        arguments: Of the command.
        corpus: What it offers; ``people`` is there in any case.
        settings: Lines of the section ``[service]``, where ``MODEL`` is the model's host and path.
        environment: More variables.
        change: Of the documents; see ``write_people``.
    """
    with contextlib.closing(ModelServer()) as model:
        model.does(answers_all)
        lines = settings.replace("MODEL", model.base_url.removeprefix("http://"))
        variables = settings_for(model, folder, lines) | (environment or {})
        index_people(variables, write_people(folder / "people", change))
        keys = "--require-keys" in arguments
        key = a_key(variables, "first")[1] if keys else dict[str, str]()
        with running(variables, "--corpus", corpus, *arguments) as process:
            yield Served(process, model, folder, variables, key)
            process.send(signal.SIGTERM)
            process.ends()


def service_of_a_module(*arguments: str, **how: Any) -> Any:
    """Return a fixture: a service that all tests of a module share; see :func:`a_service`."""

    @pytest.fixture(scope="module")
    def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
        with a_service(tmp_path_factory.mktemp("service"), *arguments, **how) as running:
            yield running

    return service


@contextlib.asynccontextmanager
async def in_process(store: Any = None, **given: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client of the whole application in this process, which does no durable runs."""
    settings = ServiceSettings(traffic=Traffic(rate=""), **given)
    executor = Executor(settings, model="feedback")
    runs: Any = EphemeralRuns(settings, lambda _: None)
    nothing: Any = None
    parts = ServiceParts(settings, store, executor, runs, Metrics(), nothing)
    app = create_app(parts)
    async with contextlib.aclosing(McpEndpoint(parts)) as endpoint:
        app.router.routes.append(endpoint.route)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
    await executor.close()
