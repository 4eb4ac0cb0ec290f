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
        given = {"DATABASE_URL": url, "AUTH_TYPE": "noop"}
        with started(tmp_path, [Path(AEGRA).absolute(), "serve"], "/health", **given) as address:
            yield address


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
