"""The page and its files, and the description of the API for people."""

from __future__ import annotations

import json
import mimetypes
from html import escape

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The page may load its own files, and nothing else."""


class _Files(StaticFiles):
    def lookup_path(self, path: str) -> tuple[str, object]:  # type: ignore[override]
        """Find a file of the page; what makes the folder a package is none."""
        return ("", None) if "__" in path else super().lookup_path(path)


def add_pages(app: FastAPI) -> None:
    """Add the page, its files, and the description of the API, all of which need no key."""
    for ending in ("js", "css"):  # some systems call them plain text
        mimetypes.add_type(f"text/{'javascript' if ending == 'js' else ending}", f".{ending}")
    # In a checkout, the glossary is a link to that of the documentation.
    files = _Files(packages=[("fairqr.graph.service", "page")], follow_symlink=True)
    app.mount("/page", files)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(_described(app))


def _described(app: FastAPI) -> str:
    """Return the description of the API as one page that needs nothing from elsewhere."""
    document = app.openapi()
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>API</title>'
    parts = [f'{head}<link rel="stylesheet" href="/page/base.css"><main>', "<h1>API</h1>"]
    parts.append(f"<p>{escape(document['info']['description'])}</p>")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            taken = [operation.get(name) for name in ("parameters", "requestBody")]
            about = operation.get("description", "")
            parts += _folded(f"{method.upper()} {path}", about, [*filter(None, taken)])
    parts.append("<h2>Schemas</h2>")
    for name, schema in document["components"]["schemas"].items():
        parts += _folded(name, schema.get("description", ""), schema)
    return "\n".join([*parts, "</main></html>"])


def _folded(title: str, about: str, content: object) -> list[str]:
    shown = json.dumps(content, indent=2, ensure_ascii=False)
    head = f"<details><summary>{escape(title)}</summary><p>{escape(about)}</p>"
    return [head, f"<pre>{escape(shown)}</pre></details>"]
