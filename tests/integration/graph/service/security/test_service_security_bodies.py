"""No body, however wrong, keeps the service from answering others."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import httpx
import pytest

from tests.servers.service_client import ACCEPT, INITIALIZE, in_process

MOST = 0.05
"""Seconds of this thread's processor time that others may wait."""

SIZE = 990_000

BODIES = {
    "list": b'{"query":"x","attributes":[' + b"1," * 490_000 + b"1]}",
    "values": json.dumps({"query": "x", "prompts": {str(n): 1 for n in range(4_900)}}).encode(),
    "escapes": b'{"query":"' + b'\\"' * 490_000 + b'"}',
    "brackets": b"[" * SIZE,
    "name": b'{"query":"x","model":"' + b"x " * 490_000 + b'"}',
    "long member": b'{"' + b"x" * SIZE + b'":1}',
    "target": b'{"query":"x","target":"' + b"x:1," * 240_000 + b'"}',
    "discount": b'{"query":"x","discount":"rbp(' + b"1" * SIZE + b')"}',
    "number": b'{"query":"x","k":' + b"9" * SIZE + b"}",
    "queries": json.dumps({"queries": [{"weight": "x"}] * 3_000}).encode(),
    "messages": json.dumps({"model": "x", "messages": [{"role": 1}] * 3_000}).encode(),
    "parts": json.dumps(
        {"model": "x", "messages": [{"role": "user", "content": [{"type": 1}] * 3_000}]}
    ).encode(),
    "parameters": json.dumps({"model": "x", "messages": [], "fairqr": {"k": [1] * 4_900}}).encode(),
    "call": json.dumps({**INITIALIZE, "params": {str(n): 1 for n in range(4_900)}}).encode(),
}


PATHS = (
    *("/v1/search", "/v1/search/stream", "/v1/answer", "/v1/probe", "/v1/runs", "/v1/audits"),
    *("/openai/v1/chat/completions", "/mcp"),
)


@pytest.mark.parametrize("path", PATHS)
async def test_a_wrong_body_lets_others_be_answered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))
    headers = {**ACCEPT, "Content-Type": "application/json"}
    async with in_process() as client:
        await client.post(path, content=b"{}", headers=headers)  # what is made once, is made
        for name, body in BODIES.items():
            if path == "/v1/runs":
                body = b'{"kind":"search","request":' + body + b"}"
            for _ in range(20):  # garbage may be collected between, or the machine be slow
                if await _longest_wait(client, path, body, headers) < MOST:
                    break
            else:
                pytest.fail(f"others waited for {name}")
    assert "validate" not in caplog.text, "what was asked is in no log"


async def _longest_wait(
    client: httpx.AsyncClient, path: str, body: bytes, headers: dict[str, str]
) -> float:
    """Send a body, and return how long another client waited for an answer at most."""
    waits: list[float] = []

    async def watch() -> None:
        while True:
            started = time.thread_time()
            assert (await client.get("/healthz")).status_code == 200
            await asyncio.sleep(0)
            waits.append(time.thread_time() - started)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    answer = await client.post(path, content=body, headers=headers)
    await asyncio.sleep(0)
    watching.cancel()
    await asyncio.wait([watching])
    assert path == "/mcp" or 400 <= answer.status_code < 500
    assert len(answer.text) < 3_000
    return max(waits)
