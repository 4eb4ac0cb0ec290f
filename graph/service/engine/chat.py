"""Chat completions of OpenAI's API as requests for an answer."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationInfo, field_validator

from fairqr.base.errors import InputError
from fairqr.graph.documented import Documented
from fairqr.graph.service.engine.checking import parsed
from fairqr.graph.service.engine.requests import RunRequest

_ELSEWHERE = frozenset({"corpus", "question", "keep", "stream"})
"""Parameters of an answer for which chat completions have another form, or none."""


class _Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _StreamOptions(Documented):
    """What else is streamed.

    Attributes:
        include_usage: Add a last chunk with the usage.
    """

    include_usage: bool | None = None


class ChatRequest(Documented):
    """A question in the form of OpenAI's chat completions.

    The last message of the user is the question; we read no other message, and ignore parameters of
    OpenAI's that are not listed here.

    Attributes:
        model: The source to answer from; see ``GET /openai/v1/models``.
        stream: Send the answer piece by piece.
        temperature: As in ``POST /v1/answer``.
        seed: As in ``POST /v1/answer``.
        fairqr: More parameters of ``POST /v1/answer``, such as ``method`` and ``attributes``. Its
            ``model`` is the language model.
        n: Must be 1.
        tools, functions, logprobs: Not offered: anything but null or an empty value is an error.
        response_format: Must be text.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "example": {
                "model": "notables",
                "messages": [{"role": "user", "content": "Which composer was born in Vienna?"}],
            }
        },
    )

    model: str
    messages: Annotated[list[_Message], FailFast()]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    seed: int | None = None
    fairqr: dict[str, Any] = Field({})
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    logprobs: bool | None = None
    response_format: dict[str, Any] | None = None

    @field_validator("n", "tools", "functions", "logprobs", "response_format")
    @classmethod
    def _is_offered(cls, value: Any, info: ValidationInfo) -> Any:
        offered = {"n": 1, "response_format": {"type": "text"}}.get(info.field_name or "")
        if value and value != offered:
            raise ValueError("this service does not offer it; leave it out")
        return value

    @property
    def usage_is_wanted(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def as_answer(self) -> RunRequest:
        """Return this as a request for an answer.

        Raises:
            InputError: There is no question, or a parameter is wrong.
        """
        if taken := sorted(_ELSEWHERE & self.fairqr.keys()):
            raise InputError(f"Leave '{taken[0]}' out of 'fairqr'; it is set elsewhere.")
        given = {"temperature": self.temperature, "seed": self.seed}
        return parsed(
            "answer",
            {
                **self.fairqr,
                **{name: value for name, value in given.items() if value is not None},
                "corpus": self.model,
                "question": self._question(),
                "stream": bool(self.stream),
            },
        )

    def _question(self) -> str:
        content = next((m.content for m in reversed(self.messages) if m.role == "user"), None)
        if isinstance(content, list):
            texts = [part.get("text") if part.get("type") == "text" else None for part in content]
            if not all(isinstance(text, str) for text in texts):
                raise InputError("The question contains more than text; send text only.")
            content = "\n".join(map(str, texts))
        if not content:
            raise InputError(
                "The last message of the user is empty or missing; put the question there."
            )
        return content
