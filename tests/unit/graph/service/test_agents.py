"""The door for agents keeps no more sessions than it may."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.engine.engine import Engine
from fairqr.graph.service.http.access import Caller
from fairqr.graph.service.http.agents import SESSIONS, McpDoor
from fairqr.graph.service.runs.doing import Observer
from fairqr.graph.service.runs.ephemeral import EphemeralRuns
from tests.integration.service_client import ACCEPT, INITIALIZE


async def test_sessions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))
    settings = ServiceSettings()
    engine = Engine(settings, default_model="feedback")
    runs = EphemeralRuns(settings, Observer())
    async with McpDoor.opened(engine, runs) as door:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"] = {"caller": Caller()}
            await door(scope, receive, send)

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            statuses = [
                (await client.post("/mcp", json=INITIALIZE, headers=ACCEPT)).status_code
                for _ in range(SESSIONS + 1)
            ]
            last = await client.post("/mcp", json=INITIALIZE, headers=ACCEPT)
    await engine.close()
    assert statuses == [200] * SESSIONS + [503]
    assert "Too many open sessions" in last.text
