"""The files of the page. The list is fixed when the service starts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The page may load its own files, and nothing else."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def pages() -> APIRouter:
    """Return the routes of the page; we read its files once."""
    files = _files(resources.files("fairqr.graph.service.page"))
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page(request: Request) -> Response:
        return _sent(request, files.get("index.html"))

    @router.get("/page/{name:path}")
    async def file(request: Request, name: str) -> Response:
        return _sent(request, files.get(name))

    return router


def _files(folder: Traversable, before: str = "") -> dict[str, _File]:
    found: dict[str, _File] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            if not entry.name.startswith("_"):
                found |= _files(entry, f"{before}{entry.name}/")
            continue
        media_type = _TYPES.get("." + entry.name.rpartition(".")[2])
        if media_type:
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[before + entry.name] = _File(content, media_type, etag)
    return found


def _sent(request: Request, file: _File | None) -> Response:
    if file is None:
        raise HTTPException(404)
    # Browsers check each time, so that a new version of the service brings its page at once.
    headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
    if file.media_type.startswith("text/html"):
        headers["Content-Security-Policy"] = POLICY
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
