"""``langgraph.json`` works on Aegra, a server of LangGraph's API that keeps threads in PostgreSQL.

Aegra needs Python 3.12, so it lives in an environment of its own::

    python3.12 -m venv aegra && aegra/bin/pip install aegra-api aegra-cli .
    FAIRQR_TEST_AEGRA=aegra/bin/aegra pytest tests/integration/graph/test_aegra.py
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.integration.postgres_server import new_database
from tests.integration.service_client import until
from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
AEGRA = os.environ.get("FAIRQR_TEST_AEGRA", "")

pytestmark = pytest.mark.skipif(not AEGRA, reason="FAIRQR_TEST_AEGRA names no command of Aegra")


@pytest.fixture(scope="module")
def server(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve notables from a new database."""
    folder, port = tmp_path_factory.mktemp("aegra"), free_port()
    with new_database(postgres_server) as url, (folder / "log").open("wb") as log:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {
            "DATABASE_URL": url,
            "AUTH_TYPE": "noop",
            "FAIRQR_DATA_DIR": str(folder / "data"),
            "FAIRQR_CACHE_DIR": str(folder / "cache"),
            "FAIRQR_MODEL": "feedback",
        }
        child = subprocess.Popen(
            [Path(AEGRA).absolute(), "serve", "--host", "127.0.0.1", "--port", str(port)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,  # the command leaves its own child behind
        )
        address = f"http://127.0.0.1:{port}"
        try:

            def ready() -> bool:
                assert child.poll() is None, (folder / "log").read_text()[-2000:]
                try:
                    return httpx.get(f"{address}/health", timeout=5).is_success
                except httpx.TransportError:
                    return False

            until(ready)
            yield address
        finally:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait(PATIENCE)
            with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                    [url.rpartition("/")[2]],
                )


def test_a_thread_keeps_the_result_of_a_search(server: str) -> None:
    with httpx.Client(base_url=server, timeout=PATIENCE) as client:
        found = client.post("/assistants/search", json={}).json()
        assert {it["graph_id"] for it in found} == {"search", "answer", "probe"}
        thread = client.post("/threads", json={}).json()["thread_id"]
        asked = {
            "assistant_id": "search",
            "input": {"query": "physicist"},
            "context": {"attributes": ["gender"], "k": 10},
        }
        result = client.post(f"/threads/{thread}/runs/wait", json=asked).json()["result"]
        assert len(result["ranking"]) == 10
        assert result["divergence"] < result["baseline"]["divergence"]
        kept = client.get(f"/threads/{thread}/state").json()["values"]["result"]
        assert kept == result


def test_steps_are_streamed(server: str) -> None:
    asked = {
        "assistant_id": "search",
        "input": {"query": "physicist"},
        "context": {"k": 5, "max_iterations": 0},
        "stream_mode": ["updates"],
    }
    with httpx.stream("POST", f"{server}/runs/stream", json=asked, timeout=PATIENCE) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
    steps = ["begin", "measure", "rerank"]
    told = [step for line in lines for step in steps if line.startswith(f'data: {{"{step}"')]
    assert told == steps
