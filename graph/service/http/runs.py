"""The routes of runs and audits: starting, listing, showing, following and ending them."""

# No annotation is delayed here: those of streams name what they depend on.
import asyncio
import os
import shutil
import threading
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, Header, HTTPException, Query
from fastapi import Path as InPath
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, BeforeValidator
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from fairqr.base import telemetry
from fairqr.base.errors import (
    FairqrError,
    InputError,
    LimitError,
    RunInterruptedError,
    RunNotFoundError,
)
from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.probe.result import ProbeResult
from fairqr.graph.search.result import SearchResult
from fairqr.graph.service.execution.checking import CheckedRequest
from fairqr.graph.service.execution.requests import (
    REQUESTS,
    AuditRequest,
    BackgroundRun,
    RunRequest,
)
from fairqr.graph.service.http.access import access_key_of
from fairqr.graph.service.http.answers import Json, compact
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.records import Event, Kind, Run, RunSummary, Status, path_of
from fairqr.graph.service.runs.manager import STEPLESS
from fairqr.graph.service.slots import Slots
from fairqr.graph.service.starting import start_checked

PIECE = 2**16
"""How many bytes of a file are read at a time."""

CLIENT_GONE = 499  # the status in the metrics if the client disconnected

# A report may only bring its own styles.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)

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

_PLACE = {"Location": {"description": "The path of the run.", "schema": {"type": "string"}}}
_LOCATED = {"description": "The result, or the accepted run.", "headers": _PLACE}
_RUNS: dict[str, Any] = {"tags": ["runs"]}
_AUDITS: dict[str, Any] = {"tags": ["audits"]}
_ACCEPTED: dict[str, Any] = {"status_code": 202, "responses": {202: _LOCATED}}

_Id = Annotated[str, InPath(description="The id of the run.", examples=["0" * 32], max_length=100)]
_BEFORE = "Only runs before this; for the next page, give `created` of the last run."
_Before = Annotated[  # every JSON parser reads numbers up to 2**53 exactly
    float | None, Query(ge=0, le=2**53, allow_inf_nan=False, description=_BEFORE)
]
_KNOWN = "The id of the last event that you have; later ones follow."
_empty = BeforeValidator(lambda known: known or 0)
_Known = Annotated[int, Header(alias="Last-Event-ID", ge=0, lt=2**31, description=_KNOWN), _empty]
_NAMED = (
    "Your name for this request. If you send it again, as after a lost connection, you get the "
    "same run, and no second one."
)
_Named = Annotated[
    str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255, description=_NAMED)
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
    parts, key = parts_of(request), access_key_of(request.scope).id
    checked = parts.executor.check(kind, run_request)
    if run_request.keep:
        # A client that leaves takes nothing back.
        run = await asyncio.shield(accept_run(request, checked, idempotency))
        events = aclosing(parts.runs.events(run, key, 0 if steps else STEPLESS))
        return FollowedRun(run, events, _place(request, run))
    started = await start_checked(
        parts.executor, parts.runs, checked, key=key, carrier=carrier_of(request), steps=steps
    )
    return FollowedRun(started.run, started, {"X-Request-ID": started.run.id})


async def accept_run(request: Request, checked: CheckedRequest, idempotency: str | None) -> Run:
    """Accept a durable run of a checked request, or return that of a request that is repeated."""
    return await parts_of(request).runs.accept(
        access_key_of(request.scope).id,
        kind=checked.kind,
        request=checked.body,
        query=checked.query,
        idempotency=idempotency,
        carrier=carrier_of(request),
    )


def _place(request: Request, run: Run) -> dict[str, str]:
    return {"Location": f"{parts_of(request).settings.root_path}{path_of(run.id)}"}


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

    followed, last = await unless_gone(request, do())
    if last.name == "error":
        raise HTTPException(last.data["status"], last.data, followed.headers)
    return followed, last.data["result"]


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work. If the client disconnects first, cancel it.

    Raises:
        HTTPException: The client disconnected.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(CLIENT_GONE)
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
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
        async with slots.held(access_key_of(request.scope).id):
            return await work()

    return await unless_gone(request, wait_and_work())


def carrier_of(request: Request) -> dict[str, str]:
    """Return the header that makes the run a part of the caller's trace.

    If FastAPI traces the request, the run becomes a part of that span.
    """
    traceparent = request.headers.get("traceparent", "")[:512]  # no right one is as long
    return telemetry.carrier() or ({"traceparent": traceparent} if traceparent else {})


def _streaming(following: Callable[..., AsyncIterator[Events]]) -> Callable[..., Any]:
    """Return a route that streams events; what they depend on may fail before the stream begins.

    If the database is away, the stream ends, and the run still goes on. A client that misses the
    last event knows that it should reconnect.
    """

    async def stream(events: Annotated[Any, Depends(following)]) -> AsyncIterator[ServerSentEvent]:
        with suppress(FairqrError):
            async for event in events:
                number = str(event.number) if event.number else None
                yield ServerSentEvent(raw_data=compact(event.data), event=event.name, id=number)

    return stream


def _add_routes(path: str, kind: Kind, about: str, result: type[BaseModel]) -> None:
    """Add the two routes of a kind of run: one waits for its result, the other streams it."""
    shared: dict[str, Any] = {"tags": ["ask"], "responses": {200: _LOCATED}}

    async def wait_for_result(
        run_request: RunRequest, request: Request, idempotency: _Named = None
    ) -> Response:
        followed, found = await run_to_end(request, kind, run_request, idempotency)
        return Json(found, headers=followed.headers)

    async def stream_new_run(
        run_request: RunRequest, request: Request, response: Response, idempotency: _Named = None
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
    shared["description"] = _WAITED.format(about, kind)
    router.post(path, name=kind, response_model=result, **shared)(wait_for_result)
    shared |= {"description": _STREAMED.format(about), "response_class": EventSourceResponse}
    router.post(f"{path}/stream", name=f"stream_{kind}", **shared)(_streaming(stream_new_run))


_add_routes("/v1/search", "search", "Search fairly", SearchResult)
_add_routes("/v1/answer", "answer", "Answer a question from sampled rankings", AnswerResult)
_add_routes("/v1/probe", "probe", "Test whether the model that ranks prefers a group", ProbeResult)


@router.post("/v1/runs", response_model=Run, **_RUNS, **_ACCEPTED)
async def begin_run(
    background_run: BackgroundRun, request: Request, idempotency: _Named = None
) -> Response:
    """Start a run in the background.

    It is always kept: it continues without a client and after a restart of the service.
    """
    kept = background_run.request.model_copy(update={"keep": True})
    followed = await start_run(request, background_run.kind, kept, idempotency=idempotency)
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
    store, key = parts_of(request).store, access_key_of(request.scope).id
    found = await store.runs(key, limit=limit, before=before, kind=kind, status=status)
    return RunList(runs=found)


@router.get("/v1/runs/{id}", response_model=Run, **_RUNS)
async def get_run(request: Request, id: _Id) -> Response:
    """Return a run: what was asked for, how far it is, and its result or its problem."""
    return Json(await _run(request, id))


async def _stream_kept_run(request: Request, id: _Id, known: _Known = 0) -> AsyncIterator[Events]:
    run, key = await _run(request, id), access_key_of(request.scope).id
    async with aclosing(parts_of(request).runs.events(run, key, known)) as events:
        yield events


router.get(
    "/v1/runs/{id}/events",
    name="follow_run",
    description="Stream the past and the coming events of a run until it is over.",
    response_class=EventSourceResponse,
    **_RUNS,
)(_streaming(_stream_kept_run))


@router.delete("/v1/runs/{id}", status_code=204, **_RUNS)
async def delete_run(request: Request, id: _Id) -> Response:
    """Cancel a run that is not over, or remove one that is."""
    parts, key = parts_of(request), access_key_of(request.scope).id
    if (await _run(request, id)).live:
        await parts.runs.cancel(id, key)
    elif (run := await parts.store.delete(id, key)).kind == "audit":
        folder = parts.settings.audits / run.id
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return Response(status_code=204)


@router.post("/v1/audits", response_model=Run, **_AUDITS, **_ACCEPTED)
async def begin_audit(
    audit_request: AuditRequest, request: Request, idempotency: _Named = None
) -> Response:
    """Start an audit of a source in the background.

    It is a durable run of kind `audit`: `GET /v1/runs/{id}` has its findings and figures in the
    end, `GET /v1/runs/{id}/events` reports its progress, and `DELETE /v1/runs/{id}` cancels it, or
    removes it with its files.
    """
    checked = await parts_of(request).executor.check_audit(audit_request)
    run = await accept_run(request, checked, idempotency)
    return Json(run, 202, _place(request, run))


def _file(media_type: str) -> dict[str, Any]:
    """Return the description of a route that sends a file of an audit."""
    answer = {"description": "The file.", "content": {media_type: {}}}
    return {"response_class": Response, "responses": {200: answer}, **_AUDITS}


@router.get("/v1/audits/{id}/report.html", **_file("text/html"))
async def get_report(request: Request, id: _Id) -> Response:
    """Return the report of a finished audit, as one HTML file."""
    folder = await _folder(request, id)
    headers = {"Content-Security-Policy": REPORT_POLICY, "X-Frame-Options": "SAMEORIGIN"}
    return FileResponse(folder / "report.html", headers=headers, media_type="text/html")


@router.get("/v1/audits/{id}/bundle.zip", **_file("application/zip"))
async def get_bundle(request: Request, id: _Id) -> Response:
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


async def zipped(folder: Path, most: int) -> IO[bytes]:
    """Write all files of a folder into a file without a name, which is gone when it is closed.

    If this is cancelled, it ends when its thread has, which is soon: whoever asked keeps their turn
    until then, and cannot have a second thread at work.

    Raises:
        LimitError: They have more than ``most`` bytes.
    """
    given_up = threading.Event()
    zipping = asyncio.ensure_future(asyncio.to_thread(_zip, folder, most, given_up))
    try:
        return await asyncio.shield(zipping)
    except asyncio.CancelledError:
        given_up.set()
        await asyncio.wait({zipping})
        zipping.exception()  # nobody is left to hear of it
        raise


def _zip(folder: Path, most: int, given_up: threading.Event) -> IO[bytes]:
    paths = [it for it in sorted(folder.rglob("*")) if it.is_file() and it.name != ".lock"]
    size = sum(path.stat().st_size for path in paths)
    if size > most:
        raise LimitError(
            "bundle_bytes",
            most,
            f"The files of this audit have {size:,} bytes, and this service packs at most {most:,} "
            "(bundle_bytes); ask whoever runs it for them.",
        )
    file = TemporaryFile()  # noqa: SIM115 (closed by who sends it)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            info = zipfile.ZipInfo.from_file(
                path, f"audit-{folder.name}/{path.relative_to(folder)}"
            )
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


async def _run(request: Request, id: str) -> Run:
    """Return a run of this key; there may be none."""
    return await parts_of(request).store.run(id, access_key_of(request.scope).id)


async def _folder(request: Request, id: str) -> Path:
    """Return the folder of a finished audit of this key.

    Raises:
        RunNotFoundError: The key has no such audit, or its files are not on this machine.
        InputError: It is not finished.
    """
    run = await _run(request, id)
    if run.kind != "audit":
        raise RunNotFoundError(f"The run {id} is not an audit; ask for it at /v1/runs/{id}.")
    if run.status != "done":
        raise InputError(
            f"The audit {id} is {run.status}, and only a finished audit has files; follow it at "
            f"/v1/runs/{id}/events."
        )
    folder = parts_of(request).settings.audits / run.id
    if not await asyncio.to_thread((folder / "report.html").is_file):
        raise RunNotFoundError(
            "The files of this audit are not on this machine; ask the worker that made it, or give "
            "all workers the same folder 'audits'."
        )
    return folder
