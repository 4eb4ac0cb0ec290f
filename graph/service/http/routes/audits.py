"""The routes that list audits and send their files."""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from fairqr.base.errors import InputError, RunNotFoundError
from fairqr.graph.service.engine.audits import AuditRequest, AuditRun, not_offered
from fairqr.graph.service.http.access import caller_of
from fairqr.graph.service.http.answers import Json
from fairqr.graph.service.http.openapi import located
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.routes.asking import carrier_of
from fairqr.graph.service.http.routes.reading import Before, Id, RunList, run_of
from fairqr.graph.service.records import Run, path_of

router = APIRouter(prefix="/v1/audits", tags=["audits"])

REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)
"""A report may only bring its own styles."""


@router.post("", status_code=202, response_model=AuditRun, responses=located(202))
async def begin_audit(asked: AuditRequest, request: Request) -> Response:
    """Start an audit of a source in the background.

    It is a durable run of kind `audit`: `GET /v1/runs/{id}/events` reports its progress, and
    `DELETE /v1/runs/{id}` cancels it, or removes it with its files.
    """
    parts = parts_of(request)
    if parts.engine.auditor is None:
        raise not_offered()
    work = await parts.engine.checked_audit(asked)
    run = await parts.runs.submit(
        "audit",
        work.model_dump(mode="json"),
        key=caller_of(request.scope).id,
        query=work.name,
        carrier=carrier_of(request),
    )
    return Json(run.model_dump(mode="json"), 202, {"Location": path_of(run.id)})


@router.get("")
async def list_audits(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200, description="The most to list.")] = 50,
    before: Before = None,
) -> RunList:
    """List the audits of this key, the newest first."""
    found = await parts_of(request).store.runs(
        caller_of(request.scope).id, limit=limit, before=before, kind="audit"
    )
    return RunList(runs=found)


@router.get("/{id}", response_model=AuditRun)
async def get_audit(request: Request, id: Id) -> Response:
    """Return an audit: its request and status, and in the end its findings and figures."""
    return Json((await _audit(request, id)).model_dump())


@router.get(
    "/{id}/report.html",
    response_class=Response,
    responses={200: {"description": "The report.", "content": {"text/html": {}}}},
)
async def get_report(request: Request, id: Id) -> Response:
    """Return the report of a finished audit, as one HTML file."""
    folder = await _folder(request, id)
    headers = {"Content-Security-Policy": REPORT_POLICY, "X-Frame-Options": "SAMEORIGIN"}
    return FileResponse(folder / "report.html", headers=headers, media_type="text/html")


@router.get(
    "/{id}/bundle.zip",
    response_class=Response,
    responses={200: {"description": "All files.", "content": {"application/zip": {}}}},
)
async def get_bundle(request: Request, id: Id) -> Response:
    """Return all files of a finished audit; unpacked, `fairqr audit verify` checks them."""
    folder = await _folder(request, id)
    path = await asyncio.to_thread(_zipped, folder)
    return FileResponse(
        path,
        media_type="application/zip",
        filename=f"audit-{id}.zip",
        background=BackgroundTask(path.unlink, missing_ok=True),
    )


async def _audit(request: Request, id: str) -> Run:
    """Return an audit of this key.

    Raises:
        RunNotFoundError: The key has no such audit.
    """
    run = await run_of(request, id)
    if run.kind != "audit":
        raise RunNotFoundError(f"The run {id} is not an audit; ask for it at /v1/runs/{id}.")
    return run


async def _folder(request: Request, id: str) -> Path:
    """Return the folder of a finished audit of this key.

    Raises:
        RunNotFoundError: The key has no such audit, or its files are not on this machine.
        InputError: It is not finished.
    """
    run = await _audit(request, id)
    if run.status != "done":
        raise InputError(
            f"The audit {id} is {run.status}, and only a finished audit has files; follow it at "
            f"/v1/runs/{id}/events."
        )
    folder = parts_of(request).settings.audits_folder / run.id
    if not await asyncio.to_thread((folder / "report.html").is_file):
        raise RunNotFoundError(
            "The files of this audit are not on this machine; ask the worker that made it, or give "
            "all workers the same folder 'audits'."
        )
    return folder


def _zipped(folder: Path) -> Path:
    """Write all files of a folder into a temporary file."""
    with (
        NamedTemporaryFile(prefix="fairqr-audit-", suffix=".zip", delete=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != ".lock":
                archive.write(path, f"audit-{folder.name}/{path.relative_to(folder)}")
    return Path(file.name)
