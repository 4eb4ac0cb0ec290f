"""Serves GGUF files of language models at one address, for the experiment ``refiners``.

``python -m benchmarks.two_models PORT NAME=FILE …`` passes each question on to the model that it
names, one at a time: the models share the processors. ``OPENAI_BASE_URL=http://127.0.0.1:PORT``
names it. docs/results/quality.md says which file of Qwen2.5-Coder was asked.
"""

from __future__ import annotations

import asyncio
import sys

import httpx
import uvicorn
import xllamacpp
from fastapi import FastAPI, Request, Response


def served(path: str) -> xllamacpp.Server:
    """Load a model, and return its server, which ends with this process."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.port, params.n_parallel, params.n_ctx, params.verbosity = 0, 1, 2048, -1
    params.ui = False
    return xllamacpp.Server(params)


def main(port: str, *named: str) -> None:
    """Serve until the process is ended."""
    servers = {name: served(path) for name, _, path in (one.partition("=") for one in named)}
    app, turn = FastAPI(), asyncio.Lock()

    @app.post("/chat/completions")
    async def completions(request: Request) -> Response:
        body = await request.json()
        address = f"{servers[body['model']].listening_address}/v1/chat/completions"
        async with turn, httpx.AsyncClient(timeout=300) as client:
            reply = await client.post(address, json=body)
        return Response(reply.content, reply.status_code, media_type="application/json")

    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
