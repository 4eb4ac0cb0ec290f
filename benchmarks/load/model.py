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
ANSWERED, LEFT = "answered", "left"
"""What became of a question, unless it is a kind of failure; the client of the second had gone."""
KEYWORDS = 4
NEVER_SECONDS = 3600


def reply(asked: dict[str, Any], question: str) -> Answer:
    """Return a well-formed reply that depends on the question alone."""
    if asked.get("logprobs"):
        return scores({"A": 0.6, "B": 0.4})
    text = "The documents name a few words."
    if "response_format" in asked:
        group = re.search(r"<group>(?:[^<]*= *)?([^<=]*)</group>", question)
        words = group_words(group[1].strip() if group else "nobody")
        first = int(hashlib.sha256(question.encode()).hexdigest(), 16)
        chosen = [words[(first + n) % len(words)] for n in range(KEYWORDS)]
        # Without a group, the question is about the topic.
        text = json.dumps({"topic": [], "keywords": chosen} if group else {"topic": chosen})
    elif "<passages>" in question:
        count = len(re.findall(r"(?m)^ *\[\d+\]", question))
        text = " > ".join(f"[{number}]" for number in range(count, 0, -1))
    half = len(text) // 2
    return stream([text[:half], text[half:]]) if asked.get("stream") else says(text)


def app_of(path: Path) -> FastAPI:
    """Return the server.

    Args:
        path: Where each question is written down; it is appended to.
    """
    app, log, chance = FastAPI(), path.open("a", encoding="ascii", buffering=1), random.Random(1)
    steered: dict[str, Any] = {"delay": 0.0, "failures": {}, "last": {}}

    @app.post("/control")
    async def control(how: dict[str, Any]) -> None:
        steered.update(how)

    @app.get("/{path:path}")
    async def state() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "load"}], **steered}

    @app.post("/{path:path}")
    async def answer(request: Request) -> Response:
        body = await request.body()
        asked = steered["last"] = json.loads(body)
        question = str(asked["messages"][-1]["content"])
        kinds, shares = [ANSWERED, *steered["failures"]], [*steered["failures"].values()]
        outcome = chance.choices(kinds, [1 - sum(shares), *shares])[0]
        await asyncio.sleep(NEVER_SECONDS if outcome == "never" else steered["delay"])
        if await request.is_disconnected():
            outcome = LEFT
        mark, digest = MARK.search(question), hashlib.sha256(body).hexdigest()[:16]
        line = f"{mark[0] if mark else '-'} {digest} {outcome}\n"
        told = reply(asked, question)
        if outcome.isdigit():
            told = failure(int(outcome), **({"retry_after": "1"} if outcome == "429" else {}))
        elif outcome == "garbage":
            told = says("}{ \ufffd" * 50)
        headers = {**told.headers, "content-length": str(len(told.body))}
        # Noted once it is sent: what was not sent was not answered.
        noted = BackgroundTask(log.write, line)
        if outcome != "cut":
            kind = told.content_type
            return Response(told.body, told.status, headers, kind, background=noted)
        log.write(line)

        async def half() -> AsyncIterator[bytes]:
            yield told.body[: len(told.body) // 2]

        return StreamingResponse(half(), headers=headers, media_type=told.content_type)

    return app


if __name__ == "__main__":
    port, log = sys.argv[1:]
    uvicorn.run(app_of(Path(log)), port=int(port), log_level="critical")
