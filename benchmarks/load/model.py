"""A chat server on loopback that is steered over HTTP: how long it takes, and how it fails.

``python -m benchmarks.load.model PORT LOG`` speaks as much of OpenAI's API as refinement, answers
and probes need. Each request is one line of the log: the run that asked, the hash of the question,
and what became of it. The run is told by the word ``run0000017`` in its query. ``POST /control``
takes an object with ``delay`` (seconds) and ``failures`` (what share of the questions fails, by
kind: ``500``, ``429``, ``cut``, ``never``, or ``garbage``).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

from benchmarks.generated import group_words
from tests.servers.model_server import Answer, failure, says, scores, stream

MARK = re.compile(r"\brun\d{7}\b")
"""The word in a query that names its run."""
ANSWERED = "answered"
"""The outcome of a question; other outcomes are kinds of failures."""

CLIENT_LEFT = "left"
"""The outcome of a question if its client left before the reply."""

KEYWORDS = 4
NEVER_SECONDS = 3600


def reply(request: dict[str, Any], question: str) -> Answer:
    """Return a well-formed reply that depends on the question alone."""
    if request.get("logprobs"):
        return scores({"A": 0.6, "B": 0.4})
    text = "The documents name a few words."
    if "response_format" in request:
        text = json.dumps(_keywords(question))
    elif "<passages>" in question:
        count = len(re.findall(r"(?m)^ *\[\d+\]", question))
        text = " > ".join(f"[{number}]" for number in range(count, 0, -1))

    if request.get("stream"):
        half = len(text) // 2
        return stream([text[:half], text[half:]])
    return says(text)


def _keywords(question: str) -> dict[str, list[str]]:
    """Return keywords for the group of a question; without a group, it is about the topic."""
    group = re.search(r"<group>(?:[^<]*= *)?([^<=]*)</group>", question)
    words = group_words(group[1].strip() if group else "nobody")
    first = int(hashlib.sha256(question.encode()).hexdigest(), 16)
    keywords = [words[(first + number) % len(words)] for number in range(KEYWORDS)]
    if group:
        return {"topic": [], "keywords": keywords}
    return {"topic": keywords}


def app_of(path: Path) -> FastAPI:
    """Return the server.

    Args:
        path: The log of questions; it is appended to.
    """
    app = FastAPI()
    log = path.open("a", encoding="ascii", buffering=1)
    draw = random.Random(1)
    state: dict[str, Any] = {"delay": 0.0, "failures": {}, "last": {}}

    @app.post("/control")
    async def control(changes: dict[str, Any]) -> None:
        state.update(changes)

    @app.get("/{path:path}")
    async def show() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "load"}], **state}

    @app.post("/{path:path}")
    async def answer(http_request: Request) -> Response:
        body = await http_request.body()
        request = json.loads(body)
        state["last"] = request
        question = str(request["messages"][-1]["content"])

        outcome = _outcome(state["failures"], draw)
        seconds = NEVER_SECONDS if outcome == "never" else state["delay"]
        await asyncio.sleep(seconds)
        if await http_request.is_disconnected():
            outcome = CLIENT_LEFT
        mark = MARK.search(question)
        digest = hashlib.sha256(body).hexdigest()[:16]
        line = f"{mark[0] if mark else '-'} {digest} {outcome}\n"

        response = _response(request, question, outcome)
        headers = {**response.headers, "content-length": str(len(response.body))}
        kind = response.content_type
        if outcome != "cut":
            # Noted once it is sent: what was not sent was not answered.
            note = BackgroundTask(log.write, line)
            return Response(response.body, response.status, headers, kind, background=note)
        log.write(line)

        async def half() -> AsyncIterator[bytes]:
            yield response.body[: len(response.body) // 2]

        return StreamingResponse(half(), headers=headers, media_type=kind)

    return app


def _outcome(failures: dict[str, float], draw: random.Random) -> str:
    """Draw the outcome of a question.

    Args:
        failures: What share of the questions fails, by kind.
        draw: The source of chance.
    """
    outcomes = [ANSWERED, *failures]
    shares = [1 - sum(failures.values()), *failures.values()]
    return draw.choices(outcomes, shares)[0]


def _response(request: dict[str, Any], question: str, outcome: str) -> Answer:
    """Return what the server sends: a reply, an error, or garbage."""
    if outcome == "429":
        return failure(429, retry_after="1")
    if outcome.isdigit():
        return failure(int(outcome))
    if outcome == "garbage":
        return says("}{ \ufffd" * 50)
    return reply(request, question)


if __name__ == "__main__":
    port, log = sys.argv[1:]
    uvicorn.run(app_of(Path(log)), port=int(port), log_level="critical")
