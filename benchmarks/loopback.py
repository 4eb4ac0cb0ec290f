"""Serves an application of a benchmark on loopback."""

from __future__ import annotations

import asyncio

import uvicorn
from fastapi import FastAPI


async def serve(app: FastAPI) -> None:
    """Serve on a port that the system gives, print the address, and go on until the end."""
    # As uvicorn alone serves. What is faster in this environment belongs to other packages.
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="warning", http="h11"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    await serving
