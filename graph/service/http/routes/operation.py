"""The routes for those who run the service."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fairqr.base.errors import StoreUnavailableError
from fairqr.graph.service.http.metrics import CONTENT_TYPE
from fairqr.graph.service.http.openapi import problems
from fairqr.graph.service.http.parts import parts_of

__all__ = ["router"]

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    """That the process is alive."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Whether runs can be done."""

    status: Literal["ready", "not ready", "draining"]
    reached: dict[str, bool] = Field(description="By name: index, model, store.")


@router.get("/healthz")
async def health() -> Health:
    """Tell that the process is alive."""
    return Health(status="ok")


@router.get("/readyz", response_model=Ready, responses={503: {"model": Ready}})
async def ready(request: Request) -> Response:
    """Tell whether index, model and database are reached; 503 where one is not."""
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
    responses={200: {"content": {"text/plain": {}}}, **problems(429, 503)},
)
async def metrics(request: Request) -> Response:
    """Return figures for Prometheus; the key needs the scope `admin`, where keys are needed."""
    parts = parts_of(request)
    try:
        counts = await parts.store.counts()
    except StoreUnavailableError:
        counts = None
    live = parts.runs.ephemeral
    text = parts.metrics.text(counts, live.waiting, live.under_way)
    return Response(text, media_type=CONTENT_TYPE)
