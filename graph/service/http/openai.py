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
from fairqr.graph.service.execution.openai_requests import ChatRequest
from fairqr.graph.service.http.answers import OPENAI_PROBLEMS, Json, compact, openai_error
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.runs import FollowedRun, run_to_end, start_run, unless_gone
from fairqr.graph.service.records import Run

router = APIRouter(tags=["openai"], responses=OPENAI_PROBLEMS)

_KINDS_OF_TOKENS = ("prompt_tokens", "completion_tokens")

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
    name = chat_request.name_of_chat
    if name:
        return _named(chat_request, name)

    answer_request = chat_request.as_answer()
    if chat_request.stream:
        followed = await unless_gone(request, start_run(request, "answer", answer_request))
        headers = {**followed.headers, "X-Accel-Buffering": "no"}
        chunks = _chunks(request, chat_request, followed)
        return StreamingResponse(chunks, headers=headers, media_type="text/event-stream")

    followed, result = await run_to_end(request, "answer", answer_request)
    content = await message_of(request, chat_request.model, result)
    message = {"role": "assistant", "refusal": None, **content}
    completion = _completion(followed.run, chat_request, message)
    completion["usage"] = _usage_of(result)
    return Json(completion, headers=followed.headers)


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
    if chat_request.stream:
        chunks = [
            _line(_chunk(run, chat_request, {"role": "assistant", "content": name})),
            _line(_chunk(run, chat_request, {}, "stop")),
            format_sse_event(data_str="[DONE]"),
        ]
        return Response(b"".join(chunks), media_type="text/event-stream")

    message = {"role": "assistant", "content": name, "refusal": None}
    completion = _completion(run, chat_request, message)
    completion["usage"] = dict.fromkeys((*_KINDS_OF_TOKENS, "total_tokens"), 0)
    return Json(completion)


async def require_source(request: Request, name: str) -> None:
    """Check that there is such a source.

    Raises:
        IndexNotFoundError: The source does not exist.
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
    run = followed.run

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        return _line(_chunk(run, chat_request, delta, finish_reason))

    includes_usage = (chat_request.stream_options or {}).get("include_usage")
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
                if is_written:
                    message["content"] = ""
                yield chunk(message)
                yield chunk({}, "stop")
                if includes_usage:
                    usage_chunk = _chunk(run, chat_request, {})
                    usage_chunk["choices"] = []
                    usage_chunk["usage"] = _usage_of(result)
                    yield _line(usage_chunk)
                yield format_sse_event(data_str="[DONE]")


def _line(data: Mapping[str, Any]) -> bytes:
    """Return an event of a stream."""
    return format_sse_event(data_str=compact(data))


def _completion(run: Run, chat_request: ChatRequest, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a completion, without its usage."""
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return _object_of(run, chat_request, "chat.completion", choice)


def _chunk(
    run: Run,
    chat_request: ChatRequest,
    delta: Mapping[str, Any],
    finish_reason: str | None = None,
) -> dict[str, Any]:
    """Return a chunk of a completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
    return _object_of(run, chat_request, "chat.completion.chunk", choice)


def _object_of(
    run: Run, chat_request: ChatRequest, kind: str, choice: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{run.id}",
        "object": kind,
        "created": int(run.created),
        "model": chat_request.model,
        "choices": [choice],
    }


async def message_of(request: Request, corpus: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the most frequent answer, with the documents that it used as annotations.

    Each annotation is of the whole text, since answers are judged as a whole.
    """
    text: str = result["distribution"][0]["text"]
    used = _used_documents(result, text)

    executor = parts_of(request).executor
    links: dict[str, str] = {}
    with suppress(FairqrError):  # keep the answer even if its documents cannot be read
        async with executor.lend_engine(corpus) as engine:
            links = await links_of(engine, [*used], executor.capabilities.link(corpus))

    root_path = parts_of(request).settings.root_path.lstrip("/")
    if root_path:
        root_path += "/"
    documents_url = f"{request.base_url}{root_path}v1/documents/"
    query = urlencode({"corpus": corpus})
    annotations = []
    for id_, title in used.items():
        url = links.get(id_, f"{documents_url}{quote(id_, safe='')}?{query}")
        citation = {"url": url, "title": title, "start_index": 0, "end_index": len(text)}
        annotations.append({"type": "url_citation", "url_citation": citation})
    return {"content": text, "annotations": annotations}


def _used_documents(result: Mapping[str, Any], text: str) -> dict[str, str]:
    """Return the titles of the documents that answers with a text used, by id, in reading order.

    Without an attributor, it is empty.
    """
    titles = {document["id"]: document["title"] for document in result["ranking"]}
    used: dict[str, str] = {}
    for answer in result["answers"]:
        if answer["text"] != text:
            continue
        for id_, is_used in zip(answer["ids"], answer["used"], strict=False):
            if is_used:
                used[id_] = titles[id_]
    return used


def _usage_of(result: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of a result as OpenAI's API names them."""
    tokens = {kind: result["usage"][kind] for kind in _KINDS_OF_TOKENS}
    return {**tokens, "total_tokens": sum(tokens.values())}
