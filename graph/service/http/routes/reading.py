"""The routes that list, show, follow and end runs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from fairqr.base.errors import InputError
from fairqr.graph.service.http.access import caller_of
from fairqr.graph.service.http.answers import Json
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.sse import Events, sent
from fairqr.graph.service.records import Kind, Run, RunSummary, Status

router = APIRouter(prefix="/v1/runs", tags=["runs"])

Id = Annotated[str, Path(description="The id of the run.", examples=["0" * 32], max_length=100)]

LARGEST = 2**53
"""The largest number that every JSON parser reads exactly."""

Before = Annotated[
    float | None,
    Query(
        ge=0,
        le=LARGEST,
        allow_inf_nan=False,
        description="Only runs created before this, in seconds since the epoch. For the next page, "
        "give `created` of the last run.",
    ),
]


class RunList(BaseModel):
    """Runs, the newest first."""

    runs: list[RunSummary]


@router.get("")
async def list_runs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200, description="The most to list.")] = 50,
    before: Before = None,
    kind: Annotated[Kind | None, Query(description="Only these.")] = None,
    status: Annotated[Status | None, Query(description="Only these.")] = None,
) -> RunList:
    """List the runs of this key, the newest first."""
    found = await parts_of(request).store.runs(
        caller_of(request.scope).id, limit=limit, before=before, kind=kind, status=status
    )
    return RunList(runs=found)


@router.get("/{id}", response_model=Run)
async def get_run(request: Request, id: Id) -> Response:
    """Return a run: what was asked for, how far it is, and its result or its problem."""
    return Json((await run_of(request, id)).model_dump())


async def _followed(
    request: Request,
    id: Id,
    last_event_id: Annotated[
        str | None,
        Header(
            description="The id of the last event that is known; those after it are told.",
            examples=["3"],
        ),
    ] = None,
) -> AsyncIterator[Events]:
    after = _number(last_event_id)
    run = await run_of(request, id)
    key = caller_of(request.scope).id
    async with aclosing(parts_of(request).runs.events(run.id, key, after)) as events:
        yield events


@router.get("/{id}/events", response_class=EventSourceResponse)
async def follow_run(
    events: Annotated[Any, Depends(_followed)],
) -> AsyncIterator[ServerSentEvent]:
    """Tell what happened in a run, and what happens, until it is over."""
    async for event in sent(events):
        yield event


@router.delete("/{id}", status_code=204)
async def delete_run(request: Request, id: Id) -> Response:
    """Cancel a run that is not over, or remove one that is."""
    parts, key = parts_of(request), caller_of(request.scope).id
    run = await run_of(request, id)
    if run.live:
        await parts.runs.cancel(id, key)
    else:
        run = await parts.store.delete(id, key)
        if run.kind == "audit":
            folder = parts.settings.audits_folder / run.id
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return Response(status_code=204)


async def run_of(request: Request, id: str) -> Run:
    """Return a run of this key.

    Raises:
        RunNotFoundError: The key has no such run.
    """
    return await parts_of(request).store.run(id, caller_of(request.scope).id)


def _number(text: str | None) -> int:
    """Return the number of an event.

    Raises:
        InputError: The text is not a number of an event.
    """
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InputError("Last-Event-ID must be the number of an event, such as 3.")
    return int(text)
