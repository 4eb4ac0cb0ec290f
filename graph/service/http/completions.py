"""Answers in the form of OpenAI's chat completions, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from fairqr.graph.service.http.answers import openai_error
from fairqr.graph.service.http.sse import data_line
from fairqr.graph.service.records import Event, Run


class ModelCard(BaseModel):
    """A source, as a model that answers from it."""

    id: str = Field(description="The name of the source.")
    object: Literal["model"] = "model"
    created: int = Field(0, description="Not known, so 0.")
    owned_by: str = "fairqr"


class ModelCards(BaseModel):
    """The sources that can be answered from, the default first."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class _Citation(BaseModel):
    url: str = Field(description="The document's own address, or `GET /v1/documents/{id}`.")
    title: str
    start_index: int = Field(description="Always 0, since answers are judged as a whole.")
    end_index: int


class _Annotation(BaseModel):
    type: Literal["url_citation"] = "url_citation"
    url_citation: _Citation


class _Message(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None
    annotations: list[_Annotation] = Field(description="The documents that the answer used.")


class _Choice(BaseModel):
    index: Literal[0] = 0
    message: _Message
    finish_reason: Literal["stop"] = "stop"
    logprobs: None = None


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(BaseModel):
    """An answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[_Choice]
    usage: _Usage


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

    async def whole(self, run: Run, result: Mapping[str, Any]) -> ChatCompletion:
        """Return the answer of a run: the most frequent one over the sampled rankings."""
        text: str = result["distribution"][0]["text"]
        message = _Message(content=text, annotations=await self._annotations(result, text))
        return ChatCompletion(
            id=_id_of(run.id),
            created=int(run.created),
            model=self.model,
            choices=[_Choice(message=message)],
            usage=_usage_of(result),
        )

    async def pieces(self, run: Run, events: AsyncIterator[Event]) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a stream, while the model writes the answer."""

        def chunk(delta: Mapping[str, Any] | None, end: str | None = None, **more: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": end, "logprobs": None}
            return data_line(
                {
                    "id": _id_of(run.id),
                    "object": "chat.completion.chunk",
                    "created": int(run.created),
                    "model": self.model,
                    "choices": [] if delta is None else [choice],
                    **more,
                }
            )

        yield chunk({"role": "assistant", "content": ""})
        is_written = False
        async for event in events:
            if event.name == "token":
                is_written = True
                yield chunk({"content": event.data["text"]})
            elif event.name == "error":
                yield data_line(openai_error(event.data))
            elif event.name == "end":
                completion = await self.whole(run, event.data["result"])
                message = completion.choices[0].message.model_dump(exclude={"role", "refusal"})
                yield chunk({**message, "content": "" if is_written else message["content"]})
                yield chunk({}, "stop")
                if self.with_usage:
                    yield chunk(None, usage=completion.usage.model_dump())
                yield b"data: [DONE]\n\n"

    async def _annotations(self, result: Mapping[str, Any], text: str) -> list[_Annotation]:
        titles = {document["id"]: document["title"] for document in result["ranking"]}
        ids = _used(result, text)
        return [
            _Annotation(
                url_citation=_Citation(
                    url=url, title=titles[id_], start_index=0, end_index=len(text)
                )
            )
            for id_, url in zip(ids, await self.cite(ids), strict=True)
        ]


def _id_of(run: str) -> str:
    return f"chatcmpl-{run}"


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


def _usage_of(result: Mapping[str, Any]) -> _Usage:
    read, written = result["usage"]["prompt_tokens"], result["usage"]["completion_tokens"]
    return _Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)
