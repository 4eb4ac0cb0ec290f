"""The routes that start runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fairqr.base.telemetry import carrier
from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.probe.result import ProbeResult
from fairqr.graph.search.result import SearchResult
from fairqr.graph.service.engine.requests import REQUESTS, BackgroundRun, RunRequest
from fairqr.graph.service.http.access import caller_of
from fairqr.graph.service.http.answers import Json, ProblemResponse
from fairqr.graph.service.http.openapi import located
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.sse import Events, sent
from fairqr.graph.service.problems import problem_of
from fairqr.graph.service.records import Kind, Run, path_of
from fairqr.graph.service.runs.ephemeral import EphemeralRun

CLIENT_GONE = 499
"""The status in the metrics if the client disconnected."""

LONGEST_TRACE_HEADER = 512
"""The most characters of a trace header; the W3C requires no more of a tracestate."""

T = TypeVar("T")

router = APIRouter(prefix="/v1")

_ASKED: Mapping[Kind, tuple[str, type[BaseModel]]] = {
    "search": ("Search fairly", SearchResult),
    "answer": ("Answer a question from sampled rankings", AnswerResult),
    "probe": ("Test whether the model that ranks prefers a group", ProbeResult),
}
_WAITED = """{0}, and wait for the result: the object of `fairqr {1} --json`.

If the client disconnects, the run is cancelled, unless `keep` is true."""
_STREAMED = """{0}, and stream each step.

The events are `run`, a `step` for each step of the graph, and in the end `end` with the result or
`error` with a problem. If an answer is written from one ranking, events `token` bring it piece by
piece, unless `stream` is false. If the client disconnects, the run is cancelled, unless `keep` is
true: then `GET /v1/runs/{{id}}/events` with `Last-Event-ID` continues the stream."""


def _add_routes(kind: Kind) -> None:
    """Add the two routes of a kind of run: one waits for its result, the other streams it."""
    about, result = _ASKED[kind]
    shared: dict[str, Any] = {"tags": ["ask"], "responses": located(200)}

    async def begin(
        asked: RunRequest, request: Request, response: Response
    ) -> AsyncIterator[Events]:
        if kind == "answer" and "stream" not in asked.model_fields_set:
            asked = asked.model_copy(update={"stream": True})
        run, source = await _begun(request, kind, asked)
        response.headers.update(_headers(asked, run))
        async with source as events:
            yield events

    async def stream(events: Any) -> AsyncIterator[ServerSentEvent]:
        async for event in sent(events):
            yield event

    async def wait(asked: RunRequest, request: Request) -> Response:
        return await _answered(request, kind, asked)

    wait.__annotations__["asked"] = begin.__annotations__["asked"] = REQUESTS[kind]
    stream.__annotations__["events"] = Annotated[Any, Depends(begin)]
    text = _WAITED.format(about, kind)
    router.post(f"/{kind}", name=kind, description=text, response_model=result, **shared)(wait)
    sse, text = EventSourceResponse, _STREAMED.format(about)
    named = f"stream_{kind}"
    router.post(f"/{kind}/stream", name=named, description=text, response_class=sse, **shared)(
        stream
    )


for _kind in _ASKED:
    _add_routes(_kind)


@router.post("/runs", status_code=202, tags=["runs"], response_model=Run, responses=located(202))
async def begin_run(asked: BackgroundRun, request: Request) -> Response:
    """Start a run in the background.

    It is always kept: it continues without a client and after a restart of the service.
    """
    kept = asked.request.model_copy(update={"keep": True})
    run = await _submitted(request, asked.kind, kept)
    return Json(run.model_dump(mode="json"), 202, _headers(kept, run))


async def _answered(request: Request, kind: Kind, asked: RunRequest) -> Response:
    if asked.keep:
        run = await _submitted(request, kind, asked)
        result = parts_of(request).runs.result(run.id, caller_of(request.scope).id)
    else:
        result = run_ephemeral(request, kind, asked)
    ended = await unless_gone(request, result)
    headers = _headers(asked, ended)
    if ended.result is not None:
        return Json(ended.result, headers=headers)
    return ProblemResponse(ended.problem or problem_of(LookupError()), headers)


async def _begun(
    request: Request, kind: Kind, asked: RunRequest
) -> tuple[Run, AbstractAsyncContextManager[Events]]:
    """Start a run, and return it with its events."""
    if asked.keep:
        run = await _submitted(request, kind, asked)
        return run, aclosing(parts_of(request).runs.events(run.id, caller_of(request.scope).id))
    begun = await unless_gone(request, begin_ephemeral(request, kind, asked))
    return begun.run, begun


async def _submitted(request: Request, kind: Kind, asked: RunRequest) -> Run:
    """Accept a durable run."""
    parts = parts_of(request)
    checked = parts.engine.checked(kind, asked)
    return await parts.runs.submit(
        kind,
        checked.body,
        key=caller_of(request.scope).id,
        query=checked.query,
        carrier=carrier_of(request),
    )


async def begin_ephemeral(
    request: Request, kind: Kind, asked: RunRequest, *, steps: bool = True
) -> EphemeralRun:
    """Check a request, and start an ephemeral run of it when a slot is free.

    Args:
        request: The request.
        kind: The kind of the run.
        asked: The body of the request.
        steps: Whether somebody follows its steps, or only waits for its result.

    Raises:
        FairqrError: The request is wrong or not allowed, or the service is too busy.
    """
    parts = parts_of(request)
    checked = parts.engine.checked(kind, asked)
    return await parts.runs.ephemeral.begin(
        kind,
        checked.query,
        lambda id_: parts.engine.execute(checked, id_, steps=steps),
        key=caller_of(request.scope).id,
        carrier=carrier_of(request),
    )


async def run_ephemeral(request: Request, kind: Kind, asked: RunRequest) -> Run:
    """Start an ephemeral run, and return it when it is over; see :func:`begin_ephemeral`."""
    return await (await begin_ephemeral(request, kind, asked, steps=False)).end()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work. If the client disconnects first, cancel it.

    Raises:
        HTTPException: The client disconnected.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(CLIENT_GONE)
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait({working, leaving})


async def _gone(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def carrier_of(request: Request) -> dict[str, str]:
    """Return the headers that make the run a part of the caller's trace.

    If FastAPI traces the request, the run becomes a part of that span.
    """
    if traced := carrier():
        return traced
    found = {name: request.headers.get(name, "") for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if 0 < len(value) <= LONGEST_TRACE_HEADER}


def _headers(asked: RunRequest, run: Run) -> dict[str, str]:
    """Return the address of a kept run, or the id of another one, which names its trace."""
    return {"Location": path_of(run.id)} if asked.keep else {"X-Request-ID": run.id}
