"""``langgraph.json`` works on Aegra, a server of LangGraph's API that keeps threads in PostgreSQL.

Aegra needs Python 3.12, so it lives in an environment of its own::

    python3.12 -m venv aegra && aegra/bin/pip install aegra-api aegra-cli .
    FAIRQR_TEST_AEGRA=aegra/bin/aegra pytest tests/integration/graph/test_aegra.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.patience import PATIENCE
from tests.servers.page_service import started
from tests.servers.postgres_server import new_database

AEGRA = os.environ.get("FAIRQR_TEST_AEGRA", "")

pytestmark = pytest.mark.skipif(not AEGRA, reason="FAIRQR_TEST_AEGRA names no command of Aegra")


@pytest.fixture
def server(postgres_server: str, tmp_path: Path) -> Iterator[str]:
    """Serve notables from a new database."""
    with new_database(postgres_server) as url:
        variables = {"DATABASE_URL": url, "AUTH_TYPE": "noop"}
        with started(
            tmp_path, [Path(AEGRA).absolute(), "serve"], "/health", **variables
        ) as address:
            yield address


def test_a_thread_keeps_the_result_of_a_search(server: str) -> None:
    with httpx.Client(base_url=server, timeout=PATIENCE) as client:
        assistants = client.post("/assistants/search", json={}).json()
        assert {assistant["graph_id"] for assistant in assistants} == {"search", "answer", "probe"}

        thread = client.post("/threads", json={}).json()["thread_id"]
        request = {
            "assistant_id": "search",
            "input": {"query": "physicist"},
            "context": {"attributes": ["gender"], "k": 10},
        }
        result = client.post(f"/threads/{thread}/runs/wait", json=request).json()["result"]

        assert len(result["ranking"]) == 10
        assert result["divergence"] < result["baseline"]["divergence"]

        stored = client.get(f"/threads/{thread}/state").json()["values"]["result"]
        assert stored == result
