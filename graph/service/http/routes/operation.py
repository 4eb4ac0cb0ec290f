"""The routes for whoever runs the service."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fairqr.base.errors import StoreUnavailableError
from fairqr.graph.service.http.metrics import CONTENT_TYPE
from fairqr.graph.service.http.parts import parts_of

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    """The process is alive."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Whether the service can do runs."""

    status: Literal["ready", "not ready", "draining"]
    reached: dict[str, bool] = Field(description="Whether index, model and store can be reached.")


@router.get("/healthz")
@router.head("/healthz", include_in_schema=False)
async def health() -> Health:
    """Say that the process is alive."""
    return Health(status="ok")


@router.get("/readyz", response_model=Ready, responses={503: {"model": Ready}})
async def ready(request: Request) -> Response:
    """Say whether index, model and database can be reached; 503 if one cannot."""
    parts = parts_of(request)
    reached = await parts.readiness.look()
    status: Literal["ready", "not ready", "draining"] = "not ready"
    if all(reached.values()):
        status = "ready" if parts.runs.accepting else "draining"
    found = Ready(status=status, reached=reached)
    return JSONResponse(found.model_dump(), 200 if status == "ready" else 503)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
)
async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus; a key needs the scope `admin`."""
    parts = parts_of(request)
    try:
        counts = await parts.store.counts()
    except StoreUnavailableError:
        counts = None
    live = parts.runs.ephemeral
    text = parts.metrics.text(counts, live.waiting, live.under_way)
    return Response(text, media_type=CONTENT_TYPE)
