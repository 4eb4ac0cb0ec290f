"""OpenAI's Responses API, as far as an answer needs it; ``http.openai`` lists the sources."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from fastapi.sse import format_sse_event
from openai.types.responses import Response as OpenAIResponse
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fairqr.graph.service.execution.openai_requests import ResponseRequest
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

_POSITION = {"output_index": 0, "content_index": 0}
"""Where the only text of a response stands."""


@router.post("/openai/v1/responses", response_model=OpenAIResponse, responses=_EVENTS)
async def create_response(response_request: ResponseRequest, request: Request) -> Response:
    """Answer the last message of the user from a source.

    This is an ephemeral run of `POST /v1/answer`. Annotations name the documents that the answer
    used. No response is stored.
    """
    await require_source(request, response_request.model)
    answer_request = response_request.as_chat().as_answer()
    if response_request.stream:
        followed = await unless_gone(request, start_run(request, "answer", answer_request))
        headers = {**followed.headers, "X-Accel-Buffering": "no"}
        events = _events(request, response_request, followed)
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")

    followed, result = await run_to_end(request, "answer", answer_request)
    part = await _part_of(request, response_request.model, result)
    response = _response(followed.run, response_request, part, result)
    return Json(response, headers=followed.headers)


async def _part_of(request: Request, source: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text of an answer, with the documents that it used as annotations."""
    message = await message_of(request, source, result)
    annotations = []
    for annotation in message["annotations"]:
        annotations.append({"type": "url_citation", **annotation["url_citation"]})
    return _text_part(message["content"], annotations)


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
        response_request: The request.
        part: The text, once it is whole.
        result: The result of the run, which has its usage.
    """
    output = []
    if part is not None:
        output.append(_item(run, "completed", [part]))
    return {
        "id": f"resp_{run.id}",
        "object": "response",
        "created_at": int(run.created),
        "model": response_request.model,
        "status": "in_progress" if part is None else "completed",
        "output": output,
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
    """Return the tokens of a result as this API names them."""
    usage = result["usage"]
    input_tokens = usage["prompt_tokens"]
    output_tokens = usage["completion_tokens"]
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }


class _ResponseStream:
    """Makes the events of a response, numbered in order.

    Args:
        run: The run that answers.
        response_request: The request.
    """

    def __init__(self, run: Run, response_request: ResponseRequest) -> None:
        self._run = run
        self._response_request = response_request
        self._numbers = itertools.count()

    def _event(self, kind: str, **data: Any) -> bytes:
        event = {"type": kind, "sequence_number": next(self._numbers), **data}
        return format_sse_event(event=kind, data_str=compact(event))

    def _text_event(self, kind: str, **data: Any) -> bytes:
        """Return an event about the only text."""
        return self._event(kind, item_id=f"msg_{self._run.id}", **_POSITION, **data)

    def start(self) -> Iterator[bytes]:
        """Yield the events before any text."""
        response = _response(self._run, self._response_request)
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)
        item = _item(self._run, "in_progress", [])
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._text_event("response.content_part.added", part=_text_part("", []))

    def delta(self, text: str) -> bytes:
        """Return the event of a piece of the text."""
        return self._text_event("response.output_text.delta", delta=text, logprobs=[])

    def error(self, problem: Mapping[str, Any]) -> bytes:
        """Return the event of a failed run."""
        error = openai_error(problem)["error"]
        members = {name: error[name] for name in ("code", "message", "param")}
        return self._event("error", **members)

    def end(self, part: dict[str, Any], result: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events after all of the text."""
        text = part["text"]
        yield self._text_event("response.output_text.done", text=text, logprobs=[])
        for number, annotation in enumerate(part["annotations"]):
            yield self._text_event(
                "response.output_text.annotation.added",
                annotation_index=number,
                annotation=annotation,
            )
        yield self._text_event("response.content_part.done", part=part)
        item = _item(self._run, "completed", [part])
        yield self._event("response.output_item.done", output_index=0, item=item)
        response = _response(self._run, self._response_request, part, result)
        yield self._event("response.completed", response=response)


async def _events(
    request: Request, response_request: ResponseRequest, followed: FollowedRun
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, while the model writes the answer."""
    stream = _ResponseStream(followed.run, response_request)
    is_written = False
    async with followed.events as events, aclosing(events):
        for line in stream.start():
            yield line
        async for event in events:
            if event.name == "token":
                text = event.data["text"]
                is_written = is_written or text != ""
                yield stream.delta(text)
            elif event.name == "error":
                yield stream.error(event.data)
            elif event.name == "end":
                result = event.data["result"]
                part = await _part_of(request, response_request.model, result)
                if not is_written:
                    yield stream.delta(part["text"])
                for line in stream.end(part, result):
                    yield line
