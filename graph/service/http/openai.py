"""The routes in the form of OpenAI's API, where each source is a model."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter
from fastapi.sse import format_sse_event
from openai.types import Model
from openai.types.chat import ChatCompletion
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fairqr.base.errors import FairqrError, IndexNotFoundError, one_line
from fairqr.graph.service.execution.engines import links_of
from fairqr.graph.service.execution.requests import ChatRequest
from fairqr.graph.service.http.answers import OPENAI_PROBLEMS, Json, compact, openai_error
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.runs import FollowedRun, run_to_end, start_run, unless_gone
from fairqr.graph.service.records import Run

router = APIRouter(tags=["openai"], responses=OPENAI_PROBLEMS)

_CHUNKS: Any = {
    200: {
        "description": "The answer; with `stream`, its chunks as server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


class Sources(BaseModel):
    """The sources that can be answered from, the default first, as models."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("/openai/v1/models")
async def list_sources(request: Request) -> Sources:
    """List the sources to answer from, as models."""
    return Sources(data=[_as_model(name) for name in await _sources(request)])


@router.get("/openai/v1/models/{name:path}", response_model=Model)
async def get_source(request: Request, name: str) -> Model:
    """Return a source to answer from, as a model."""
    await require_source(request, name)
    return _as_model(name)


def _as_model(name: str) -> Model:
    # Nobody knows when a source was made.
    return Model(id=name, object="model", created=0, owned_by="fairqr")


@router.post("/openai/v1/chat/completions", response_model=ChatCompletion, responses=_CHUNKS)
async def complete_chat(chat_request: ChatRequest, request: Request) -> Response:
    """Answer the last message of the user from a source.

    This is an ephemeral run of `POST /v1/answer`. Annotations name the documents that the answer
    used.
    """
    await require_source(request, chat_request.model)
    if name := chat_request.name_of_chat:
        return _named(chat_request, name)
    if chat_request.stream:
        followed = await unless_gone(
            request, start_run(request, "answer", chat_request.as_answer())
        )
        headers = {**followed.headers, "X-Accel-Buffering": "no"}
        chunks = _chunks(request, chat_request, followed)
        return StreamingResponse(chunks, headers=headers, media_type="text/event-stream")
    followed, result = await run_to_end(request, "answer", chat_request.as_answer())
    message = {"role": "assistant", "refusal": None}
    message |= await message_of(request, chat_request.model, result)
    whole = {**_piece(followed.run, chat_request, message, "stop"), "usage": _usage_of(result)}
    return Json(whole, headers=followed.headers)


def _named(chat_request: ChatRequest, name: str) -> Response:
    """Return the completion of a request that asks for the name of a conversation."""
    run = Run(
        id=uuid.uuid4().hex,
        kind="answer",
        status="done",
        query=name,
        created=time.time(),
        request={},
    )
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)
    if not chat_request.stream:
        message = {"role": "assistant", "content": name, "refusal": None}
        return Json({**_piece(run, chat_request, message, "stop"), "usage": usage})
    chunks = [
        _line(_piece(run, chat_request, {"role": "assistant", "content": name}, None, of="delta")),
        _line(_piece(run, chat_request, {}, "stop", of="delta")),
        format_sse_event(data_str="[DONE]"),
    ]
    return Response(b"".join(chunks), media_type="text/event-stream")


async def require_source(request: Request, name: str) -> None:
    """Check that there is such a source.

    Raises:
        IndexNotFoundError: There is none.
    """
    if name not in await _sources(request):
        raise IndexNotFoundError(
            f"There is no model '{one_line(name, 60)}'; GET /openai/v1/models lists all."
        )


async def _sources(request: Request) -> list[str]:
    return await asyncio.to_thread(parts_of(request).executor.capabilities.corpora)


async def _chunks(
    request: Request, chat_request: ChatRequest, followed: FollowedRun
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a stream, while the model writes the answer."""

    def chunk(delta: Mapping[str, Any], end: str | None = None, **more: Any) -> bytes:
        return _line({**_piece(followed.run, chat_request, delta, end, of="delta"), **more})

    is_written = False
    async with followed.events as events, aclosing(events):
        yield chunk({"role": "assistant", "content": ""})
        async for event in events:
            if event.name == "token":
                is_written = True
                yield chunk({"content": event.data["text"]})
            elif event.name == "error":
                yield _line(openai_error(event.data))
            elif event.name == "end":
                result = event.data["result"]
                message = await message_of(request, chat_request.model, result)
                yield chunk({**message, "content": "" if is_written else message["content"]})
                yield chunk({}, "stop")
                if (chat_request.stream_options or {}).get("include_usage"):
                    yield chunk({}, choices=[], usage=_usage_of(result))
                yield format_sse_event(data_str="[DONE]")


def _line(data: Mapping[str, Any]) -> bytes:
    return format_sse_event(data_str=compact(data))


def _piece(
    run: Run,
    chat_request: ChatRequest,
    said: Mapping[str, Any],
    end: str | None,
    of: str = "message",
) -> dict[str, Any]:
    """Return a completion, or a chunk of one."""
    return {
        "id": f"chatcmpl-{run.id}",
        "object": "chat.completion" if of == "message" else "chat.completion.chunk",
        "created": int(run.created),
        "model": chat_request.model,
        "choices": [{"index": 0, of: said, "finish_reason": end, "logprobs": None}],
    }


async def message_of(request: Request, corpus: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the most frequent answer, with the documents that it used as annotations.

    Their places are those of the whole text, since answers are judged as a whole.
    """
    text: str = result["distribution"][0]["text"]
    titles = {document["id"]: document["title"] for document in result["ranking"]}
    used = {  # without a judge, there is none; in reading order
        id_: titles[id_]
        for answer in result["answers"]
        if answer["text"] == text
        for id_, is_used in zip(answer["ids"], answer["used"], strict=False)
        if is_used
    }
    executor, links = parts_of(request).executor, {}
    with suppress(FairqrError):  # keep the answer even if its documents cannot be read
        async with executor.lend_engine(corpus) as engine:
            links = await links_of(engine, [*used], executor.capabilities.link(corpus))
    place, source = {"start_index": 0, "end_index": len(text)}, urlencode({"corpus": corpus})
    root = parts_of(request).settings.root_path.lstrip("/")
    own = f"{request.base_url}{root}{'/' if root else ''}v1/documents/"
    citations = [
        {"url": links.get(id_, f"{own}{quote(id_, safe='')}?{source}"), "title": title, **place}
        for id_, title in used.items()
    ]
    annotations = [{"type": "url_citation", "url_citation": cited} for cited in citations]
    return {"content": text, "annotations": annotations}


def _usage_of(result: Mapping[str, Any]) -> dict[str, int]:
    kinds, usage = ("prompt_tokens", "completion_tokens"), result["usage"]
    return {**{kind: usage[kind] for kind in kinds}, "total_tokens": sum(map(usage.get, kinds))}
