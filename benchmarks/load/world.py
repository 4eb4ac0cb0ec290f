"""Where a load test runs: a temporary folder, its indexes, and the servers around the service."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.generated import queries, write_corpus
from benchmarks.load.servers import Model, Worker
from tests.servers.page_service import environment
from tests.servers.postgres_server import PostgresServer, running_postgres

EMBEDDED = "embedded"
"""The name of the index."""
MODEL = "openai:load"
MODEL_SECONDS = 60.0
"""The time limit of a request to the model, unless a fault needs less."""
LEASE, GRACE = 4.0, 10.0
SETTINGS = {
    "grace": GRACE,
    "lease": LEASE,
    "concurrency": 16,
    "traffic": {"rate": "", "live": 1000, "queue": 1000},
}


class World:
    """The folder and the servers; all end with the world.

    Args:
        folder: Empty; whoever made it removes it.
        documents: In the index.
        delay: Seconds until the model answers, where no fault changes that.
        stack: Ends what is started.
    """

    def __init__(self, folder: Path, documents: int, delay: float, stack: ExitStack) -> None:
        self.folder, self.delay, self._stack = folder, delay, stack
        self.queries = queries(200, 4)
        # Nothing of the user's is read or written, and no proxy stands between.
        own = {name: str(folder / name) for name in ("data", "cache")}
        config = {"FAIRQR_CONFIG": os.devnull, "OPENAI_API_KEY": "none"}
        folders = {"FAIRQR_DATA_DIR": own["data"], "FAIRQR_CACHE_DIR": own["cache"]}
        self.environment = environment(config | folders)
        self.model = Model(folder)
        stack.callback(self.model.kill)
        corpus = write_corpus(folder / "corpus", documents)
        self.command("index", "create", EMBEDDED, str(corpus))

    @cached_property
    def postgres(self) -> PostgresServer:
        """The server, started when first asked for."""
        return self._stack.enter_context(running_postgres())

    def new_database(self) -> str:
        """Return the URL of a new and empty database on the PostgreSQL server."""
        name = f"load_{secrets.token_hex(4)}"
        with psycopg.connect(f"{self.postgres.url}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"{self.postgres.url}/{name}"

    def new_file(self) -> Path:
        """Return the path of a new SQLite database."""
        return self.folder / f"runs_{secrets.token_hex(4)}.sqlite"

    def command(self, *arguments: str) -> None:
        """Run ``fairqr`` to its end."""
        command = [str(Path(sys.executable).with_name("fairqr")), *arguments]
        subprocess.run(command, env=self.environment, check=True, capture_output=True, timeout=300)

    @contextmanager
    def workers(
        self,
        database: str,
        number: int = 1,
        corpus: str = EMBEDDED,
        *,
        model_seconds: float = MODEL_SECONDS,
        arguments: tuple[str, ...] = (),
        **settings: Any,
    ) -> Iterator[list[Worker]]:
        """Start the service on a database, yield its processes once they are ready, and end them.

        Args:
            database: Its URL.
            number: How many processes share it.
            corpus: The index that they offer.
            model_seconds: The time limit of a request to the model.
            arguments: More of each command.
            settings: Of the service, besides those of this module.
        """
        place = self.folder / secrets.token_hex(4)
        place.mkdir()
        model = {"base_url": f"{self.model.url}/v1", "timeout": model_seconds}
        service = {"database": database, "corpora": [corpus], "models": {MODEL: model}}
        config = place / "fairqr.toml"
        config.write_text(toml({**SETTINGS, **service, **settings}, "service"))
        environment = self.environment | {"FAIRQR_CONFIG": str(config)}
        started: list[Worker] = []
        try:
            for index in range(number):
                worker = Worker(f"worker{index + 1}", place, environment, *arguments)
                started.append(worker)
                worker.start()
            yield started
        finally:
            for worker in started:
                worker.kill()

    def request(self, corpus: str, method: str = "fairqr") -> dict[str, Any]:
        """Return the fields of a search, besides its query, with words alone as in process."""
        how = {"method": method, "ask": "always", "retriever": "bm25", "k": 10}
        return {"corpus": corpus, "model": MODEL, "attributes": ["gender"], **how}


def toml(values: Mapping[str, Any], name: str) -> str:
    """Return a table of settings, and those inside it, as TOML."""
    inner = {key: value for key, value in values.items() if isinstance(value, dict)}
    # JSON's texts, numbers and lists are TOML's as well.
    lines = [f"{key} = {json.dumps(it)}\n" for key, it in values.items() if key not in inner]
    tables = [toml(value, f'{name}."{key}"') for key, value in inner.items()]
    return "".join([f"[{name}]\n", *lines, *tables])
