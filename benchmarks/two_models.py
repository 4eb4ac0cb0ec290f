"""Serves GGUF files of language models at one address, for the experiment ``refiners``.

``python -m benchmarks.two_models NAME=FILE …`` prints its address, which ``OPENAI_BASE_URL`` names,
and passes each question on to the model that it names, one at a time: the models share the
processors. docs/results/quality.md says where files of Qwen2.5-Coder come from, and their hashes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import xllamacpp
from fastapi import FastAPI, Request, Response

from benchmarks.loopback import serve

CONTEXT_TOKENS = 2048
LONGEST_SECONDS = 300


def started(path: str) -> tuple[Any, str]:
    """Load a model, and return its server, which ends with this process, and its address."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.port = 0
    params.n_parallel = 1
    params.n_ctx = CONTEXT_TOKENS
    params.ui = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    return server, f"{server.listening_address}/v1/chat/completions"


def app_of(addresses: dict[str, str]) -> FastAPI:
    """Return the application that passes questions on."""
    app, turn = FastAPI(), asyncio.Lock()

    @app.post("/chat/completions")
    async def completions(request: Request) -> Response:
        body = await request.json()
        async with turn, httpx.AsyncClient(timeout=LONGEST_SECONDS) as client:
            reply = await client.post(addresses[body["model"]], json=body)
        return Response(reply.content, reply.status_code, media_type="application/json")

    return app


async def main(named: list[str]) -> None:
    """Serve until the process is ended."""
    servers = {name: started(path) for name, _, path in (one.partition("=") for one in named)}
    app = app_of({name: address for name, (_, address) in servers.items()})
    await serve(app)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
