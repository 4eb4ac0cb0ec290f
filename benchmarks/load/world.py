"""Where a load test runs: a temporary folder, its indexes, and the servers around the service."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.generated import queries, write_corpus
from benchmarks.load.servers import Elasticsearch, Model, Worker
from fairqr.retrieval.sources.corpus import find_corpus
from tests.integration.filled_elasticsearch import fill, write_source
from tests.integration.postgres_server import NOBODY, PostgresServer, running_postgres

EMBEDDED, REMOTE = "embedded", "remote"
"""The names of the indexes: in the process of the service, and on Elasticsearch."""

MODEL = "openai:load"
MODEL_SECONDS = 60.0
"""The time limit of a request to the model, unless a fault needs less."""
SMALL_DISK = "64m"

SETTINGS: dict[str, Any] = {
    "grace": 10.0,
    "lease": 4.0,
    "concurrency": 16,
}
LIMITS = {"rate": "", "live": 1000, "queue": 1000}


class World:
    """The folder and the servers; all end with the world.

    Args:
        folder: Empty; whoever made it removes it.
        documents: In each index.
        stack: Ends what is started.
    """

    def __init__(self, folder: Path, documents: int, stack: ExitStack) -> None:
        self.folder = folder
        self.documents = documents
        self.queries = queries(200, 4)
        self._stack = stack
        self._elasticsearch: Elasticsearch | None = None
        self._postgres: PostgresServer | None = None
        # Nothing of the user's is read or written, and no proxy stands between.
        dropped = ("FAIRQR_", "OPENAI_", "LANGCHAIN_", "LANGSMITH_", "OTEL_")
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(dropped) and not name.upper().endswith("_PROXY")
        }
        self.environment |= {
            "FAIRQR_DATA_DIR": str(folder / "data"),
            "FAIRQR_CACHE_DIR": str(folder / "cache"),
            "FAIRQR_CONFIG": str(folder / "none.toml"),
        }
        (folder / "none.toml").touch()
        self.model = Model(folder)
        stack.callback(self.model.kill)
        self.corpus = write_corpus(folder / "corpus", documents)
        self.command("index", "create", EMBEDDED, str(self.corpus))

    @property
    def elasticsearch(self) -> Elasticsearch:
        """The server, with its index, started when first asked for."""
        if self._elasticsearch is None:
            server = Elasticsearch()
            self._stack.callback(server.close)
            server.start()
            source = fill(self._stack, server.url, REMOTE, find_corpus(self.corpus))
            self.command("attach", str(write_source(source, self.folder)))
            self._elasticsearch = server
        return self._elasticsearch

    @property
    def postgres(self) -> PostgresServer:
        """The server, started when first asked for."""
        if self._postgres is None:
            self._postgres = self._stack.enter_context(running_postgres())
        return self._postgres

    def new_database(self, *, on_small_disk: bool = False) -> str:
        """Return the URL of a new and empty database on the PostgreSQL server."""
        name = f"load_{secrets.token_hex(4)}"
        place = self.small_disk if on_small_disk else None
        with psycopg.connect(f"{self.postgres.url}/postgres", autocommit=True) as connection:
            if place:
                connection.execute(f"CREATE TABLESPACE {place.name} LOCATION '{place}'")
            where = f" TABLESPACE {place.name}" if place else ""
            connection.execute(f"CREATE DATABASE {name}{where}")
        return f"{self.postgres.url}/{name}"

    def transactions(self, database: str) -> int:
        """Return how many transactions a database on the PostgreSQL server has had."""
        counted = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
        with psycopg.connect(f"{self.postgres.url}/postgres") as connection:
            found = connection.execute(counted, [database.rpartition("/")[2]]).fetchone()
        assert found is not None
        return int(found[0])

    @cached_property
    def small_disk(self) -> Path:
        """A disk of its own, which takes root to make; unmounted with the world."""
        folder = Path(tempfile.mkdtemp(prefix="fairqr_disk_"))
        mounting = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)]
        subprocess.run(mounting, check=True, capture_output=True)
        self._stack.callback(folder.rmdir)
        self._stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
        os.chown(folder, NOBODY, NOBODY)  # as PostgreSQL
        return folder

    def new_file(self, *, on_small_disk: bool = False) -> Path:
        """Return the path of a new SQLite database."""
        folder = self.small_disk if on_small_disk else self.folder
        return folder / f"runs_{secrets.token_hex(4)}.sqlite"

    def command(self, *arguments: str) -> None:
        """Run ``fairqr`` to its end."""
        fairqr = str(Path(sys.executable).with_name("fairqr"))
        subprocess.run(
            [fairqr, *arguments],
            env=self.environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=300,
        )

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
        config = place / "fairqr.toml"
        base_url = f"{self.model.url}/v1"
        service = {
            **SETTINGS,
            "database": database,
            "corpora": [corpus],
            "limits": LIMITS,
            "models": {MODEL: {"base_url": base_url, "timeout": model_seconds}},
            **settings,
        }
        config.write_text(toml(service, ("service",)))
        environment = {**self.environment, "FAIRQR_CONFIG": str(config), "OPENAI_API_KEY": "none"}
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
        """Return the fields of a search, besides its query."""
        return {
            "corpus": corpus,
            "model": MODEL,
            "method": method,
            "ask": "always",
            "retriever": "bm25",  # as in process
            "attributes": ["gender"],
            "k": 10,
        }


def toml(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """Return a table of settings, and those inside it, as TOML."""
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    inner = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    # JSON's texts, numbers and lists are TOML's as well.
    lines = [f"[{'.'.join(json.dumps(part) for part in path)}]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    tables = [toml(value, (*path, name)) for name, value in inner.items()]
    return "\n".join(lines) + "\n\n" + "".join(tables)
