"""The routes that start runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairqr.base.telemetry import carrier
from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.probe.result import ProbeResult
from fairqr.graph.search.result import SearchResult
from fairqr.graph.service.engine.audits import AuditRequest, AuditRun, not_offered
from fairqr.graph.service.engine.requests import (
    AnswerRequest,
    BackgroundRun,
    ProbeRequest,
    RunRequest,
    SearchRequest,
)
from fairqr.graph.service.http.access import caller_of
from fairqr.graph.service.http.answers import Json, ProblemResponse
from fairqr.graph.service.http.openapi import ACCEPTED, RESULT, STREAM, problems
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.sse import EventStream, gone
from fairqr.graph.service.problems import problem_of
from fairqr.graph.service.records import Event, Kind, Run, path_of
from fairqr.graph.service.runs.ephemeral import EphemeralRun

CLIENT_GONE = 499
"""The status in the metrics if the client disconnected."""

LONGEST_TRACE_HEADER = 512
"""The most characters of a trace header; the W3C requires no more of a tracestate."""

T = TypeVar("T")

router = APIRouter(prefix="/v1", responses=problems(400, 408, 413, 415, 422, 429, 502, 503, 504))


@router.post("/search", tags=["ask"], response_model=SearchResult, responses=RESULT)
async def search(asked: SearchRequest, request: Request) -> Response:
    """Search fairly, and wait for the result: the object of `fairqr search --json`.

    If the client disconnects, the search is cancelled, unless `keep` is true.
    """
    return await _answered(request, "search", asked)


@router.post("/answer", tags=["ask"], response_model=AnswerResult, responses=RESULT)
async def answer(asked: AnswerRequest, request: Request) -> Response:
    """Answer a question from sampled rankings, and wait for the result.

    The result is the object of `fairqr answer --json`. If the client disconnects, the run is
    cancelled, unless `keep` is true.
    """
    return await _answered(request, "answer", asked)


@router.post("/probe", tags=["ask"], response_model=ProbeResult, responses=RESULT)
async def probe(asked: ProbeRequest, request: Request) -> Response:
    """Test whether the model that ranks prefers a group, and wait for the result.

    If the client disconnects, the run is cancelled, unless `keep` is true.
    """
    return await _answered(request, "probe", asked)


@router.post("/search/stream", tags=["ask"], response_class=Response, responses=STREAM)
async def stream_search(asked: SearchRequest, request: Request) -> Response:
    """Search fairly, and stream each step.

    The events are `run`, a `step` for each step of the graph, and in the end `end` with the result
    or `error` with a problem. Comments show that the stream is alive. If the client disconnects,
    the search is cancelled, unless `keep` is true: then `GET /v1/runs/{id}/events` with
    `Last-Event-ID` continues the stream.
    """
    return await _streamed(request, "search", asked)


@router.post("/answer/stream", tags=["ask"], response_class=Response, responses=STREAM)
async def stream_answer(asked: AnswerRequest, request: Request) -> Response:
    """Answer a question, and stream each step, as for a search.

    If there is only one ranking to answer from, events `token` bring the answer piece by piece,
    unless `stream` is false.
    """
    if "stream" not in asked.model_fields_set:
        asked = asked.model_copy(update={"stream": True})
    return await _streamed(request, "answer", asked)


@router.post("/probe/stream", tags=["ask"], response_class=Response, responses=STREAM)
async def stream_probe(asked: ProbeRequest, request: Request) -> Response:
    """Probe the model that ranks, and stream each step, as for a search."""
    return await _streamed(request, "probe", asked)


@router.post("/runs", status_code=202, tags=["runs"], response_model=Run, responses=ACCEPTED)
async def begin_run(asked: BackgroundRun, request: Request) -> Response:
    """Start a run in the background.

    It is always kept: it continues without a client and after a restart of the service.
    """
    kind, inner = asked.asked
    run = await _submitted(request, kind, inner.model_copy(update={"keep": True}))
    return Json(run.model_dump(mode="json"), 202, _location(run))


@router.post(
    "/audits", status_code=202, tags=["audits"], response_model=AuditRun, responses=ACCEPTED
)
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
    return Json(run.model_dump(mode="json"), 202, _location(run))


async def _answered(request: Request, kind: Kind, asked: RunRequest) -> Response:
    if asked.keep:
        run = await _submitted(request, kind, asked)
        result = parts_of(request).runs.result(run.id, caller_of(request.scope).id)
    else:
        result = run_ephemeral(request, kind, asked)
    ended = await unless_gone(request, result)
    if ended is None:
        return Response(status_code=CLIENT_GONE)
    headers = _headers(asked, ended)
    if ended.result is not None:
        return Json(ended.result, headers=headers)
    return ProblemResponse(ended.problem or problem_of(LookupError()), headers)


async def _streamed(request: Request, kind: Kind, asked: RunRequest) -> Response:
    parts, key = parts_of(request), caller_of(request.scope).id
    source: AbstractAsyncContextManager[AsyncGenerator[Event, None]]
    if asked.keep:
        run = await _submitted(request, kind, asked)
        source = aclosing(parts.runs.events(run.id, key))
    else:
        begun = await unless_gone(request, begin_ephemeral(request, kind, asked))
        if begun is None:
            return Response(status_code=CLIENT_GONE)
        run, source = begun.run, begun
    return EventStream(source, parts.settings.heartbeat, _headers(asked, run))


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


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of work. If the client disconnects first, cancel it and return None."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(gone(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait({working, leaving})


def carrier_of(request: Request) -> dict[str, str]:
    """Return the headers that make the run a part of the caller's trace.

    If FastAPI traces the request, the run becomes a part of that span.
    """
    if traced := carrier():
        return traced
    found = {name: request.headers.get(name, "") for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if 0 < len(value) <= LONGEST_TRACE_HEADER}


def _location(run: Run) -> dict[str, str]:
    return {"Location": path_of(run.id)}


def _headers(asked: RunRequest, run: Run) -> dict[str, str]:
    """Return the address of a kept run, or the id of another one, which names its trace."""
    return _location(run) if asked.keep else {"X-Request-ID": run.id}
