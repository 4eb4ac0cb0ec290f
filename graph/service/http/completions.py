"""Answers in the form of OpenAI's chat completions, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi.sse import format_sse_event

from fairqr.graph.service.http.answers import openai_error
from fairqr.graph.service.http.sse import compact
from fairqr.graph.service.records import Event, Run

Cite = Callable[[list[str]], Awaitable[list[str]]]
"""Returns the addresses of documents, given their ids."""


@dataclass(frozen=True, slots=True)
class Completing:
    """Writes the answer of a run.

    Attributes:
        model: The name that the client gave.
        cite: Finds the addresses of the used documents.
        with_usage: Whether a stream ends with the usage.
    """

    model: str
    cite: Cite
    with_usage: bool

    async def whole(self, run: Run, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of a run: the most frequent one over the sampled rankings."""
        message = {"role": "assistant", "refusal": None, **await self._message(result)}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        usage = _usage_of(result)
        return {**self._head(run, "chat.completion"), "choices": [choice], "usage": usage}

    async def pieces(self, run: Run, events: AsyncIterator[Event]) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a stream, while the model writes the answer."""
        head = self._head(run, "chat.completion.chunk")

        def chunk(delta: Mapping[str, Any], end: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": end, "logprobs": None}
            return _line({**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        is_written = False
        async for event in events:
            if event.name == "token":
                is_written = True
                yield chunk({"content": event.data["text"]})
            elif event.name == "error":
                yield _line(openai_error(event.data))
            elif event.name == "end":
                message = await self._message(event.data["result"])
                yield chunk({**message, "content": "" if is_written else message["content"]})
                yield chunk({}, "stop")
                if self.with_usage:
                    usage = _usage_of(event.data["result"])
                    yield _line({**head, "choices": [], "usage": usage})
                yield format_sse_event(data_str="[DONE]")

    def _head(self, run: Run, kind: str) -> dict[str, Any]:
        created = int(run.created)
        return {"id": f"chatcmpl-{run.id}", "object": kind, "created": created, "model": self.model}

    async def _message(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer, with the documents that it used as annotations.

        Their places are those of the whole text, since answers are judged as a whole.
        """
        text: str = result["distribution"][0]["text"]
        titles = {document["id"]: document["title"] for document in result["ranking"]}
        ids = _used(result, text)
        place = {"start_index": 0, "end_index": len(text)}
        cited = [
            {"type": "url_citation", "url_citation": {"url": url, "title": titles[id_], **place}}
            for id_, url in zip(ids, await self.cite(ids), strict=True)
        ]
        return {"content": text, "annotations": cited}


def _line(data: Mapping[str, Any]) -> bytes:
    return format_sse_event(data_str=compact(data))


def _used(result: Mapping[str, Any], text: str) -> list[str]:
    """Return the ids of the documents that this answer used, in reading order."""
    return list(
        dict.fromkeys(
            id_
            for answer in result["answers"]
            if answer["text"] == text
            # Without a judge, `used` is empty.
            for id_, used in zip(answer["ids"], answer["used"], strict=False)
            if used
        )
    )


def _usage_of(result: Mapping[str, Any]) -> dict[str, int]:
    read, written = result["usage"]["prompt_tokens"], result["usage"]["completion_tokens"]
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
