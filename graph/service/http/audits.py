"""The routes of audits: starting them, and the files of finished ones."""

from __future__ import annotations

import asyncio
import os
import threading
import zipfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from fairqr.base.errors import InputError, LimitError, RunNotFoundError
from fairqr.graph.service.execution.requests import AuditRequest
from fairqr.graph.service.http.answers import Json
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.runs import (
    ACCEPTED,
    IdempotencyKey,
    RunId,
    accept_run,
    in_its_turn,
    location_of,
    run_of,
)
from fairqr.graph.service.records import Run

PIECE = 2**16
"""How many bytes of a file are read at a time."""

REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)
"""A report may only bring its own styles."""

router = APIRouter(tags=["audits"])


@router.post("/v1/audits", response_model=Run, **ACCEPTED)
async def begin_audit(
    audit_request: AuditRequest, request: Request, idempotency: IdempotencyKey = None
) -> Response:
    """Start an audit of a source in the background.

    It is a durable run of kind `audit`: `GET /v1/runs/{id}` has its findings and figures in the
    end, `GET /v1/runs/{id}/events` reports its progress, and `DELETE /v1/runs/{id}` cancels it, or
    removes it with its files.
    """
    checked = await parts_of(request).executor.check_audit(audit_request)
    run = await accept_run(request, checked, idempotency)
    return Json(run, 202, location_of(request, run))


def _file(media_type: str) -> dict[str, Any]:
    """Return the options of a route that sends a file of an audit."""
    answer = {"description": "The file.", "content": {media_type: {}}}
    return {"response_class": Response, "responses": {200: answer}}


@router.get("/v1/audits/{id}/report.html", **_file("text/html"))
async def get_report(request: Request, id: RunId) -> Response:
    """Return the report of a finished audit, as one HTML file."""
    folder = await _folder(request, id)
    headers = {"Content-Security-Policy": REPORT_POLICY, "X-Frame-Options": "SAMEORIGIN"}
    return FileResponse(folder / "report.html", headers=headers, media_type="text/html")


@router.get("/v1/audits/{id}/bundle.zip", **_file("application/zip"))
async def get_bundle(request: Request, id: RunId) -> Response:
    """Return all files of a finished audit; unpacked, `fairqr audit verify` checks them."""
    folder = await _folder(request, id)
    parts = parts_of(request)
    zipping = partial(zipped, folder, parts.settings.limits.bundle_bytes)
    file = await in_its_turn(request, parts.bundling, zipping)
    headers = {
        "Content-Disposition": f'attachment; filename="audit-{id}.zip"',
        "Content-Length": str(file.seek(0, os.SEEK_END)),
    }
    return StreamingResponse(_pieces_of(file), media_type="application/zip", headers=headers)


async def zipped(folder: Path, limit: int) -> IO[bytes]:
    """Write all files of a folder into a file without a name, which is gone when it is closed.

    If this is cancelled, it ends when its thread has, which is soon: the client keeps its turn
    until then, and cannot have a second thread at work.

    Raises:
        LimitError: They have more than ``limit`` bytes.
    """
    given_up = threading.Event()
    zipping = asyncio.ensure_future(asyncio.to_thread(_zip, folder, limit, given_up))
    try:
        return await asyncio.shield(zipping)
    except asyncio.CancelledError:
        given_up.set()
        await asyncio.wait({zipping})
        zipping.exception()  # nobody waits any more to take it
        raise


def _zip(folder: Path, limit: int, given_up: threading.Event) -> IO[bytes]:
    """Do the work of :func:`zipped` in a thread, until it is given up."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    paths = [path for path in files if path.name != ".lock"]
    size = sum(path.stat().st_size for path in paths)
    if size > limit:
        raise LimitError(
            "bundle_bytes",
            limit,
            f"The files of this audit have {size:,} bytes, and this service packs at most "
            f"{limit:,} (bundle_bytes); ask whoever runs it for them.",
        )

    file = TemporaryFile()  # noqa: SIM115 (closed by who sends it)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            name = f"audit-{folder.name}/{path.relative_to(folder)}"
            info = zipfile.ZipInfo.from_file(path, name)
            info.compress_type = zipfile.ZIP_DEFLATED
            with path.open("rb") as source, archive.open(info, "w") as sink:
                while not given_up.is_set() and (piece := source.read(PIECE)):
                    sink.write(piece)
    return file


async def _pieces_of(file: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield a file from its beginning, and close it, also if nobody reads on.

    It was just written, so that reading waits for no disk, and needs no thread.
    """
    with file:
        file.seek(0)
        while piece := file.read(PIECE):
            yield piece


async def _folder(request: Request, id: str) -> Path:
    """Return the folder of a finished audit of this key.

    Raises:
        RunNotFoundError: The key has no such audit, or its files are not on this machine.
        InputError: It is not finished.
    """
    run = await run_of(request, id)
    if run.kind != "audit":
        raise RunNotFoundError(f"The run {id} is not an audit; ask for it at /v1/runs/{id}.")
    if run.status != "done":
        raise InputError(
            f"The audit {id} is {run.status}, and only a finished audit has files; follow it at "
            f"/v1/runs/{id}/events."
        )

    folder = parts_of(request).settings.audits / run.id
    is_here = await asyncio.to_thread((folder / "report.html").is_file)
    if not is_here:
        raise RunNotFoundError(
            "The files of this audit are not on this machine; ask the worker that made it, or give "
            "all workers the same folder 'audits'."
        )
    return folder
