"""Another program keeps the database of runs locked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from fairqr.graph.service.http.listings import COUNTING
from tests.servers.model_server import ModelServer
from tests.servers.page_service import running, settings_for

SCRAPE = 10.0
"""After so many seconds Prometheus gives up, unless it is told otherwise."""


def test_metrics_come_without_what_a_locked_database_counts(
    tmp_path: Path, model_server: ModelServer
) -> None:
    database = tmp_path / "runs.sqlite"
    variables = settings_for(model_server, tmp_path, f'database = "sqlite:///{database}"')
    with running(variables) as service:
        whole = service.client.get("/metrics").text
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            reply = service.client.get("/metrics", timeout=SCRAPE)
            other.execute("COMMIT")
        assert reply.status_code == 200
        assert COUNTING <= reply.elapsed.total_seconds() < SCRAPE
        assert "fairqr_durable_runs_finished" in whole
        assert "fairqr_durable_runs_finished" not in reply.text
