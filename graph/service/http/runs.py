"""The routes of runs: starting, listing, showing, following and ending them."""

# Annotations are evaluated at once here: the annotations of streams hold their dependencies.
import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, Header, HTTPException, Query
from fastapi import Path as InPath
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, BeforeValidator
from starlette.requests import Request
from starlette.responses import Response

from fairqr.base import telemetry
from fairqr.base.errors import FairqrError, RunInterruptedError
from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.probe.result import ProbeResult
from fairqr.graph.search.result import SearchResult
from fairqr.graph.service.execution.checking import CheckedRequest
from fairqr.graph.service.execution.requests import REQUESTS, BackgroundRun, RunRequest
from fairqr.graph.service.http.access import access_key_of
from fairqr.graph.service.http.answers import Json, compact
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.records import Event, Kind, Run, RunSummary, Status, path_of
from fairqr.graph.service.runs.manager import STEPLESS
from fairqr.graph.service.slots import Slots
from fairqr.graph.service.starting import start_checked

CLIENT_GONE = 499
"""The status in the metrics if the client disconnected."""

Events = AsyncGenerator[Event, None]
T = TypeVar("T")

router = APIRouter()

_WAITED = """{0}, and wait for the result: the object of `fairqr {1} --json`.

If the client disconnects, the run is cancelled, unless `keep` is true."""
_STREAMED = """{0}, and stream each step.

The events are `run`, a `step` for each step of the graph, and in the end `end` with the result or
`error` with a problem. If an answer is written from one ranking, events `token` bring it piece by
piece, unless `stream` is false. If the client disconnects, the run is cancelled, unless `keep` is
true: then `GET /v1/runs/{{id}}/events` with `Last-Event-ID` continues the stream."""

_LOCATION = {"Location": {"description": "The path of the run.", "schema": {"type": "string"}}}
_LOCATED = {"description": "The result, or the accepted run.", "headers": _LOCATION}
_RUNS: dict[str, Any] = {"tags": ["runs"]}

ACCEPTED: dict[str, Any] = {"status_code": 202, "responses": {202: _LOCATED}}
"""Options of a route that answers with an accepted run."""

RunId = Annotated[
    str, InPath(description="The id of the run.", examples=["0" * 32], max_length=100)
]

_Before = Annotated[
    float | None,
    Query(
        ge=0,
        le=2**53,  # every JSON parser reads numbers up to here exactly
        allow_inf_nan=False,
        description=("Only runs before this; for the next page, give `created` of the last run."),
    ),
]

_empty_as_zero = BeforeValidator(lambda number: number or 0)
_LastEventId = Annotated[
    int,
    Header(
        alias="Last-Event-ID",
        ge=0,
        lt=2**31,
        description="The id of the last event that you have; later ones follow.",
    ),
    _empty_as_zero,
]

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description=(
            "Your name for this request. If you send it again, as after a lost connection, you get "
            "the same run, and no second one."
        ),
    ),
]


class RunList(BaseModel):
    """Runs, the newest first."""

    runs: list[RunSummary]


class FollowedRun(NamedTuple):
    """A run that has started, or that waits in a queue, and its events.

    Attributes:
        run: The run, as it was accepted.
        events: Yields what happens in it. If it is not kept, leaving this stops it.
        headers: The address of a kept run, or the id of another one, which names its trace.
    """

    run: Run
    events: AbstractAsyncContextManager[Events]
    headers: dict[str, str]


async def start_run(
    request: Request,
    kind: Kind,
    run_request: RunRequest,
    *,
    steps: bool = True,
    idempotency: str | None = None,
) -> FollowedRun:
    """Check a request, and start a run of it; one that is not kept waits for a free slot.

    Args:
        request: The request.
        kind: The kind of the run.
        run_request: The body of the request.
        steps: Whether somebody follows the steps, or only waits for the result.
        idempotency: What the client names a request of a kept run, so that it may repeat it.

    Raises:
        FairqrError: The request is wrong or not allowed, or the service is too busy.
    """
    parts = parts_of(request)
    key = access_key_of(request.scope).id
    checked = parts.executor.check(kind, run_request)
    if run_request.keep:
        # A client that leaves takes nothing back.
        run = await asyncio.shield(accept_run(request, checked, idempotency))
        after = 0 if steps else STEPLESS
        events = aclosing(parts.runs.events(run, key, after))
        return FollowedRun(run, events, location_of(request, run))

    ephemeral = await start_checked(
        parts.executor, parts.runs, checked, key=key, carrier=carrier_of(request), steps=steps
    )
    return FollowedRun(ephemeral.run, ephemeral, {"X-Request-ID": ephemeral.run.id})


async def accept_run(request: Request, checked: CheckedRequest, idempotency: str | None) -> Run:
    """Accept a durable run of a checked request, or return the run of the request it repeats."""
    return await parts_of(request).runs.accept(
        access_key_of(request.scope).id,
        kind=checked.kind,
        request=checked.body,
        query=checked.query,
        idempotency=idempotency,
        carrier=carrier_of(request),
    )


def location_of(request: Request, run: Run) -> dict[str, str]:
    """Return the header with the address of a run."""
    root_path = parts_of(request).settings.root_path
    return {"Location": f"{root_path}{path_of(run.id)}"}


async def run_to_end(
    request: Request, kind: Kind, run_request: RunRequest, idempotency: str | None = None
) -> tuple[FollowedRun, dict[str, Any]]:
    """Do a run to its end, unless the client disconnects; see :func:`start_run`.

    Returns:
        The run, as it was accepted, and its result.

    Raises:
        FairqrError: As of :func:`start_run`.
        HTTPException: The run failed, or the client disconnected.
    """

    async def do() -> tuple[FollowedRun, Event]:
        followed = await start_run(request, kind, run_request, steps=False, idempotency=idempotency)
        async with followed.events as events:
            async for event in events:
                if event.last:
                    return followed, event
        path = path_of(followed.run.id)
        raise RunInterruptedError(
            f"The service stopped, but the run continues; read its result at {path}."
        )

    followed, final_event = await unless_gone(request, do())
    if final_event.name == "error":
        raise HTTPException(final_event.data["status"], final_event.data, followed.headers)
    return followed, final_event.data["result"]


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work. If the client disconnects first, cancel it.

    Raises:
        HTTPException: The client disconnected.
    """

    async def wait_for_leaving() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    leaving = asyncio.create_task(wait_for_leaving())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(CLIENT_GONE)
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})


async def in_its_turn(request: Request, slots: Slots, work: Callable[[], Awaitable[T]]) -> T:
    """Do work when it is the turn of the key of a request, unless the client leaves first.

    Args:
        request: The request.
        slots: One is held for the work.
        work: What is done.

    Raises:
        HTTPException: The client disconnected.
    """

    async def wait_and_work() -> T:
        async with slots.hold(access_key_of(request.scope).id):
            return await work()

    return await unless_gone(request, wait_and_work())


def carrier_of(request: Request) -> dict[str, str]:
    """Return the header that makes the run a part of the caller's trace.

    If FastAPI traces the request, the run becomes a part of that span.
    """
    carrier = telemetry.carrier()
    if carrier:
        return carrier
    traceparent = request.headers.get("traceparent", "")[:512]  # no right one is as long
    return {"traceparent": traceparent} if traceparent else {}


def _streaming(follow: Callable[..., AsyncIterator[Events]]) -> Callable[..., Any]:
    """Return a route that streams events; its dependency may fail before the stream begins.

    If the database is away, the stream ends, and the run still goes on. A client that misses the
    last event knows that it should reconnect.

    Args:
        follow: The dependency that yields the events.
    """

    async def stream(events: Annotated[Any, Depends(follow)]) -> AsyncIterator[ServerSentEvent]:
        with suppress(FairqrError):
            async for event in events:
                number = str(event.number) if event.number else None
                yield ServerSentEvent(raw_data=compact(event.data), event=event.name, id=number)

    return stream


def _add_routes(path: str, kind: Kind, about: str, result: type[BaseModel]) -> None:
    """Add the two routes of a kind of run: one waits for its result, the other streams it."""
    shared: dict[str, Any] = {"tags": ["ask"], "responses": {200: _LOCATED}}

    async def wait_for_result(
        run_request: RunRequest, request: Request, idempotency: IdempotencyKey = None
    ) -> Response:
        followed, run_result = await run_to_end(request, kind, run_request, idempotency)
        return Json(run_result, headers=followed.headers)

    async def stream_new_run(
        run_request: RunRequest,
        request: Request,
        response: Response,
        idempotency: IdempotencyKey = None,
    ) -> AsyncIterator[Events]:
        if kind == "answer" and "stream" not in run_request.model_fields_set:
            run_request = run_request.model_copy(update={"stream": True})
        starting = start_run(request, kind, run_request, idempotency=idempotency)
        followed = await unless_gone(request, starting)
        response.headers.update(followed.headers)
        async with followed.events as events:
            yield events

    for route in (wait_for_result, stream_new_run):
        route.__annotations__["run_request"] = REQUESTS[kind]
    router.post(
        path,
        name=kind,
        response_model=result,
        description=_WAITED.format(about, kind),
        **shared,
    )(wait_for_result)
    router.post(
        f"{path}/stream",
        name=f"stream_{kind}",
        description=_STREAMED.format(about),
        response_class=EventSourceResponse,
        **shared,
    )(_streaming(stream_new_run))


_add_routes("/v1/search", "search", "Search fairly", SearchResult)
_add_routes("/v1/answer", "answer", "Answer a question from sampled rankings", AnswerResult)
_add_routes("/v1/probe", "probe", "Test whether the model that ranks prefers a group", ProbeResult)


@router.post("/v1/runs", response_model=Run, **_RUNS, **ACCEPTED)
async def begin_run(
    background_run: BackgroundRun, request: Request, idempotency: IdempotencyKey = None
) -> Response:
    """Start a run in the background.

    It is always kept: it continues without a client and after a restart of the service.
    """
    run_request = background_run.request.model_copy(update={"keep": True})
    followed = await start_run(request, background_run.kind, run_request, idempotency=idempotency)
    return Json(followed.run, 202, followed.headers)


@router.get("/v1/runs", **_RUNS)
async def list_runs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200, description="The most to list.")] = 50,
    before: _Before = None,
    kind: Annotated[Kind | None, Query(description="Only these.")] = None,
    status: Annotated[Status | None, Query(description="Only these.")] = None,
) -> RunList:
    """List the runs of this key, the newest first."""
    store = parts_of(request).store
    key = access_key_of(request.scope).id
    runs = await store.runs(key, limit=limit, before=before, kind=kind, status=status)
    return RunList(runs=runs)


@router.get("/v1/runs/{id}", response_model=Run, **_RUNS)
async def get_run(request: Request, id: RunId) -> Response:
    """Return a run: what was asked for, how far it is, and its result or its problem."""
    return Json(await run_of(request, id))


async def _stream_kept_run(
    request: Request, id: RunId, last_event_id: _LastEventId = 0
) -> AsyncIterator[Events]:
    run = await run_of(request, id)
    key = access_key_of(request.scope).id
    async with aclosing(parts_of(request).runs.events(run, key, last_event_id)) as events:
        yield events


router.get(
    "/v1/runs/{id}/events",
    name="follow_run",
    description="Stream the past and the coming events of a run until it is over.",
    response_class=EventSourceResponse,
    **_RUNS,
)(_streaming(_stream_kept_run))


@router.delete("/v1/runs/{id}", status_code=204, **_RUNS)
async def delete_run(request: Request, id: RunId) -> Response:
    """Cancel a run that is not over, or remove one that is."""
    parts = parts_of(request)
    key = access_key_of(request.scope).id
    run = await run_of(request, id)
    if run.live:
        await parts.runs.cancel(id, key)
        return Response(status_code=204)

    deleted = await parts.store.delete(id, key)
    if deleted.kind == "audit":
        folder = parts.settings.audits / deleted.id
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return Response(status_code=204)


async def run_of(request: Request, id: str) -> Run:
    """Return a run of the key of a request.

    Raises:
        RunNotFoundError: The key has no such run.
    """
    return await parts_of(request).store.run(id, access_key_of(request.scope).id)
