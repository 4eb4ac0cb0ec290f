"""OpenAI's Responses API, as far as an answer goes; its sources are those of ``http.openai``."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from fastapi.sse import format_sse_event
from openai.types.responses import Response as OpenAIResponse
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fairqr.graph.service.execution.requests import ResponseRequest
from fairqr.graph.service.http.answers import OPENAI_PROBLEMS, Json, compact, openai_error
from fairqr.graph.service.http.openai import message_of, require_source
from fairqr.graph.service.http.runs import FollowedRun, run_to_end, start_run, unless_gone
from fairqr.graph.service.records import Run

router = APIRouter(tags=["openai"], responses=OPENAI_PROBLEMS)

_EVENTS: Any = {
    200: {
        "description": "The response; with `stream`, its events as server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}

_PLACE = {"output_index": 0, "content_index": 0}
"""Where the only text of a response stands."""


@router.post("/openai/v1/responses", response_model=OpenAIResponse, responses=_EVENTS)
async def create_response(response_request: ResponseRequest, request: Request) -> Response:
    """Answer the last message of the user from a source.

    This is an ephemeral run of `POST /v1/answer`. Annotations name the documents that the answer
    used. No response is stored.
    """
    await require_source(request, response_request.model)
    asked = response_request.as_chat().as_answer()
    if response_request.stream:
        followed = await unless_gone(request, start_run(request, "answer", asked))
        headers = {**followed.headers, "X-Accel-Buffering": "no"}
        events = _events(request, response_request, followed)
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")
    followed, result = await run_to_end(request, "answer", asked)
    part = await _part_of(request, response_request.model, result)
    whole = _response(followed.run, response_request, part, result)
    return Json(whole, headers=followed.headers)


async def _part_of(request: Request, source: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text of an answer, with the documents that it used as annotations."""
    message = await message_of(request, source, result)
    cited = [{"type": "url_citation", **it["url_citation"]} for it in message["annotations"]]
    return _text_part(message["content"], cited)


def _text_part(text: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def _item(run: Run, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that a response consists of."""
    return {
        "id": f"msg_{run.id}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": parts,
    }


def _response(
    run: Run,
    response_request: ResponseRequest,
    part: dict[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a response.

    Args:
        run: The run that answers.
        response_request: What was asked.
        part: The text, once it is whole.
        result: The result of the run, which has its usage.
    """
    is_whole = part is not None
    return {
        "id": f"resp_{run.id}",
        "object": "response",
        "created_at": int(run.created),
        "model": response_request.model,
        "status": "completed" if is_whole else "in_progress",
        "output": [_item(run, "completed", [part])] if part is not None else [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "store": False,
        "temperature": response_request.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none",
        "tools": [],
        "top_p": None,
        "usage": None if result is None else _usage_of(result),
    }


def _usage_of(result: Mapping[str, Any]) -> dict[str, Any]:
    usage = result["usage"]
    read = usage["prompt_tokens"]
    written = usage["completion_tokens"]
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


async def _events(
    request: Request, response_request: ResponseRequest, followed: FollowedRun
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, while the model writes the answer."""
    run = followed.run
    numbers = itertools.count()

    def event(kind: str, **data: Any) -> bytes:
        whole = {"type": kind, "sequence_number": next(numbers), **data}
        return format_sse_event(event=kind, data_str=compact(whole))

    of_text = {"item_id": f"msg_{run.id}", **_PLACE}
    written = ""
    async with followed.events as events, aclosing(events):
        begun = _response(run, response_request)
        yield event("response.created", response=begun)
        yield event("response.in_progress", response=begun)
        empty = _item(run, "in_progress", [])
        yield event("response.output_item.added", output_index=0, item=empty)
        yield event("response.content_part.added", **of_text, part=_text_part("", []))
        async for one in events:
            if one.name == "token":
                written += one.data["text"]
                yield event(
                    "response.output_text.delta", **of_text, delta=one.data["text"], logprobs=[]
                )
            elif one.name == "error":
                error = openai_error(one.data)["error"]
                told = {name: error[name] for name in ("code", "message", "param")}
                yield event("error", **told)
            elif one.name == "end":
                result = one.data["result"]
                part = await _part_of(request, response_request.model, result)
                if not written:
                    yield event(
                        "response.output_text.delta", **of_text, delta=part["text"], logprobs=[]
                    )
                yield event("response.output_text.done", **of_text, text=part["text"], logprobs=[])
                for number, annotation in enumerate(part["annotations"]):
                    yield event(
                        "response.output_text.annotation.added",
                        **of_text,
                        annotation_index=number,
                        annotation=annotation,
                    )
                yield event("response.content_part.done", **of_text, part=part)
                item = _item(run, "completed", [part])
                yield event("response.output_item.done", output_index=0, item=item)
                whole = _response(run, response_request, part, result)
                yield event("response.completed", response=whole)
