"""Requests in the forms of OpenAI's API, as requests for answers."""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from fairqr.base.errors import InputError, one_line
from fairqr.graph.service.execution.requests import NAMED, RunRequest, example, or_text, parsed

_NOT_IN_CHATS = frozenset({"corpus", "question", "keep", "stream"})
"""Parameters of an answer for which chat completions have another form, or none."""

_TEXT_PARTS = ("text", "input_text")
"""The types of the parts of a message that are text."""

# Anybody may send a megabyte of newlines: no pattern here reads a part of a text again and again.
_SPEAKER = re.compile(
    r"(?im)(?:^[^\w\n]*|\"role\"\s*:\s*\")"
    r"(?:(?P<user>user|human)|(?P<assistant>assistant|ai|bot|model|response))\b\W{0,4}[:\",]"
)
"""Who speaks next in a conversation that is quoted."""


_OPENING_TAG = re.compile(r"<(\w+)>\s*(?:user|human)\s*:")
"""Where a conversation between tags begins; perhaps only the user has spoken yet."""

_MOST_TAGS = 10
"""How many opening tags of a text we look at."""

_CONTENT = re.compile(r'^\W*content"\s*:\s*"')
"""What stands before the words of a message that is quoted as JSON."""


def _unless(usual: object = None) -> AfterValidator:
    """Return a validator that refuses a value that we do not offer, unless it is the usual one."""

    def check(value: Any) -> Any:
        if value and value != usual:
            raise ValueError("this service does not offer it; leave it out")
        return value

    return AfterValidator(check)


def _is_tagged(text: str) -> bool:
    """Return whether a text quotes a conversation between tags."""
    lowered = text.lower()
    for opening in islice(_OPENING_TAG.finditer(lowered), _MOST_TAGS):
        closing_tag = f"</{opening[1]}>"
        if lowered.find(closing_tag, opening.end()) >= 0:
            return True
    return False


def _format_of_name(name: str) -> dict[str, Any]:
    return {"type": name}


def _message_of_user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _text_of(content: str | list[str | dict[str, Any]] | None) -> str:
    """Return the text of a message; empty if it has parts that are not text."""
    if isinstance(content, str):
        return content

    texts = []
    for part in content or []:
        if isinstance(part, str):
            texts.append(part)
            continue
        if part.get("type") not in _TEXT_PARTS:
            return ""
        text = part.get("text")
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)


_NOT_OFFERED = "Not offered: anything but null or an empty value is an error."


class _Message(BaseModel):
    role: str = ""  # items of other kinds than messages have none
    content: str | list[str | dict[str, Any]] | None = None


class _QuestionToSource(BaseModel):
    """What OpenAI's two forms of a question have in common."""

    model: str = Field(description="The source to answer from; see `GET /openai/v1/models`.")
    stream: bool | None = Field(None, description="Send the answer piece by piece.")
    temperature: float | None = Field(None, description="As in `POST /v1/answer`.")
    fairqr: dict[str, Any] = Field(
        {},
        description=(
            "More parameters of `POST /v1/answer`, such as `method` and `attributes`. Its `model` "
            "is the language model."
        ),
    )


class ChatRequest(_QuestionToSource):
    """A question in the form of OpenAI's chat completions.

    The last message of the user is the question; we read no other message, and ignore parameters of
    OpenAI's that are not listed here. A message that quotes a conversation, as chat interfaces send
    to name it, is no question: it gets the first words of that conversation, and nothing is asked.
    """

    model_config = example(
        model="notables", messages=[{"role": "user", "content": "Who was born in Vienna?"}]
    )

    messages: list[_Message] = Field(fail_fast=True)
    stream_options: dict[str, bool | None] | None = Field(
        None, description="With `include_usage`, a last chunk has the usage."
    )
    seed: int | None = Field(None, description="As in `POST /v1/answer`; a negative one is none.")
    n: Annotated[int | None, _unless(1)] = Field(None, description="Must be 1.")
    tools: Annotated[list[Any] | None, _unless()] = Field(None, description=_NOT_OFFERED)
    functions: Annotated[list[Any] | None, _unless()] = Field(None, description=_NOT_OFFERED)
    logprobs: Annotated[bool | None, _unless()] = Field(None, description=_NOT_OFFERED)
    response_format: Annotated[
        dict[str, Any] | None, _unless({"type": "text"}), or_text(_format_of_name, dict[str, Any])
    ] = Field(None, description="Must be text.")

    def as_answer(self) -> RunRequest:
        """Return this as a request for an answer.

        Raises:
            InputError: There is no question, or a parameter is wrong.
        """
        misplaced = sorted(_NOT_IN_CHATS & self.fairqr.keys())
        if misplaced:
            raise InputError(f"Leave '{misplaced[0]}' out of 'fairqr'; it is set elsewhere.")

        parameters = self.model_dump(include={"temperature", "seed"}, exclude_none=True)
        has_no_seed = parameters.get("seed", 0) < 0
        if has_no_seed:
            del parameters["seed"]
        parameters["corpus"] = self.model
        parameters["question"] = self._question()
        parameters["stream"] = bool(self.stream)
        return parsed("answer", {**self.fairqr, **parameters})

    @property
    def name_of_chat(self) -> str:
        """The first words of a conversation that is quoted; empty if this is a question."""
        text = self._question()
        turns = [*_SPEAKER.finditer(text)]
        user_turns = [turn for turn in turns if turn["user"]]
        have_both_spoken = 0 < len(user_turns) < len(turns)
        if not have_both_spoken and not _is_tagged(text):
            return ""

        start = user_turns[0].end() if user_turns else 0
        first_words = _CONTENT.sub("", text[start:]).strip()
        first_line = first_words.partition("\n")[0]
        unquoted = first_line.partition('"')[0]
        return one_line(unquoted.strip(" ,{}"), NAMED) or "Chat"

    def _question(self) -> str:
        """Return the question that the last message of the user is, or ends with.

        Raises:
            InputError: The user has no message, or one that is not text alone.
        """
        question = self._last_message_of_user()
        turns = [*_SPEAKER.finditer(question)]
        if len(turns) < 2:
            return question

        last_turn = turns[-1]
        words_of_last_turn = question[last_turn.end() :].strip()
        asks_to_go_on = last_turn["assistant"] and not words_of_last_turn
        if not asks_to_go_on:
            return question

        # A prompt to go on with a conversation: the last words of the user are the question.
        user_turn = next((turn for turn in reversed(turns) if turn["user"]), last_turn)
        last_words = question[user_turn.end() : last_turn.start()].strip()
        return last_words or question

    def _last_message_of_user(self) -> str:
        """Return the text of the user's last message.

        Raises:
            InputError: The user has no message, or one that is not text alone.
        """
        question = ""
        user_messages = [message for message in self.messages if message.role == "user"]
        if user_messages:
            question = _text_of(user_messages[-1].content)
        if not question:
            raise InputError("Put the question into the last message of the user, as text alone.")
        return question


class _TextFormat(BaseModel):
    """How an answer is to be written; only as text."""

    format: Annotated[dict[str, Any] | None, _unless({"type": "text"})] = None


class ResponseRequest(_QuestionToSource):
    """A question in the form of OpenAI's Responses API.

    The last message of the user is the question; we read no other message, keep no response, and
    ignore parameters of OpenAI's that are not listed here.
    """

    model_config = example(model="notables", input="Who was born in Vienna?")

    input: Annotated[list[_Message], or_text(_message_of_user, list[_Message])] = Field(
        fail_fast=True,
        description="The question, or messages of which the last of the user is the question.",
    )
    text: _TextFormat | None = Field(None, description="Its `format` must be text.")
    tools: Annotated[list[Any] | None, _unless()] = Field(None, description=_NOT_OFFERED)
    background: Annotated[bool | None, _unless()] = Field(None, description=_NOT_OFFERED)
    conversation: Annotated[str | dict[str, Any] | None, _unless()] = Field(
        None, description=_NOT_OFFERED
    )
    previous_response_id: Annotated[str | None, _unless()] = Field(None, description=_NOT_OFFERED)
    prompt: Annotated[dict[str, Any] | None, _unless()] = Field(None, description=_NOT_OFFERED)
    include: Annotated[list[Any] | None, _unless()] = Field(None, description=_NOT_OFFERED)
    top_logprobs: Annotated[int | None, _unless()] = Field(None, description=_NOT_OFFERED)

    def as_chat(self) -> ChatRequest:
        """Return this as a request for a chat completion, whose rules it shares."""
        return ChatRequest(
            model=self.model,
            messages=self.input,
            stream=self.stream,
            temperature=self.temperature,
            fairqr=self.fairqr,
        )
