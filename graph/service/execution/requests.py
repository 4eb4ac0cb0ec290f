"""The requests of the service: the parameters of the Python API, as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from fairqr.base.errors import InputError, one_line, parameter_errors
from fairqr.graph.answer.context import AnswerSettings
from fairqr.graph.probe.context import ProbeSettings
from fairqr.graph.search.context import Frozen, Method, SearchParameters
from fairqr.graph.service.records import Kind
from fairqr.retrieval.encoders.opening import RetrieverName
from fairqr.retrieval.fairness.target import Target

NAMED = 80
"""Characters of the first query in the name of an audit."""

_NOT_IN_CHATS = frozenset({"corpus", "question", "keep", "stream"})
"""Parameters of an answer for which chat completions have another form, or none."""


def or_text(from_text: Callable[[str], object], usual_type: Any) -> BeforeValidator:
    """Return a validator that also takes a text, and makes the usual type of it."""

    def validate(value: object) -> object:
        return from_text(value) if isinstance(value, str) else value

    return BeforeValidator(validate, json_schema_input_type=str | usual_type)


_Text = Annotated[str, Field(max_length=2000)]
_Texts = Annotated[list[_Text], Field(max_length=100, fail_fast=True)]
"""Some texts; an error names only the first wrong one."""

_Attributes = Annotated[_Texts, or_text(lambda text: [text], _Texts)]
_Target = Annotated[
    _Text | _Texts | Target | None,
    Field(examples=["retrieved:0.5,population:0.5", ["gender=female:0.5,male:0.5"]]),
]
_Seed = Annotated[int, Field(ge=0, lt=2**63)]


def example(**values: Any) -> Any:
    """Return the configuration that gives the schema of a model this example."""
    return {"json_schema_extra": {"example": values}}


def _unless(usual: object = None) -> AfterValidator:
    """Return a validator that refuses a value that we do not offer, unless it is the usual one."""

    def check(value: Any) -> Any:
        if value and value != usual:
            raise ValueError("this service does not offer it; leave it out")
        return value

    return AfterValidator(check)


def _description(parameter: str) -> str | None:
    """Return the description of a search's parameter that has another form in JSON."""
    return SearchParameters.model_fields[parameter].description


class RunRequest(SearchParameters):
    """The parameters of all requests: those of a search, in the forms of JSON, and the service's.

    They are checked together when they become the context of a run.
    """

    attributes: _Attributes = Field(  # type: ignore[assignment]
        [], examples=[["gender"], "gender"], description=_description("attributes")
    )
    target: _Target = Field(  # type: ignore[assignment]
        None, description=_description("target")
    )
    discount: str = Field(  # type: ignore[assignment]
        "log2", description=_description("discount")
    )
    seed: _Seed | None = Field(None, description=_description("seed"))
    corpus: str | None = Field(
        None,
        examples=["notables"],
        description="What to search: a name that `GET /v1/indexes` lists; defaults to the first.",
    )
    retriever: RetrieverName = Field(
        "auto",
        description=(
            "How documents are found: by words (`bm25`), by vectors (`dense`), or by both "
            "(`hybrid`), which also estimates relevance. `auto` is `hybrid` for an index if the "
            "service has the encoder, and otherwise the engine's own ranking."
        ),
    )
    model: str | None = Field(
        None,
        examples=["feedback"],
        description=(
            "A model that `GET /v1/models` lists; defaults to the first. `feedback` uses no "
            "language model."
        ),
    )
    keep: bool = Field(
        False,
        description=(
            "Continue without the client and after a restart of the service, and keep the result. "
            "Otherwise the run is cancelled if its client disconnects."
        ),
    )


class SearchRequest(RunRequest):
    """A search, with the parameters and defaults of the command `fairqr search`."""

    model_config = example(query="physicist", attributes=["gender"], k=5, model="feedback")

    query: str = Field(min_length=1, examples=["physicist"], description="What to search for.")


class AnswerRequest(AnswerSettings, RunRequest):
    """A question, with the parameters of `FairSearch.answer`.

    `k` is the number of documents to sample from, and `documents` how many of them are read. The
    command calls these `--pool` and `-k`.
    """

    model_config = example(question="Which composer was born in Vienna?", samples=2, documents=3)

    question: str = Field(
        min_length=1, examples=["Which composer was born in Vienna?"], description="What to answer."
    )
    k: int | None = Field(  # type: ignore[assignment]
        None,
        ge=1,
        le=10_000,
        description=(
            "How many documents to sample from. By default 20, or `documents` if that is more; at "
            "most the size of the corpus."
        ),
    )
    method: Method = Field("baseline", description="How to rank, as in a search.")
    attributor: str | None = Field(
        None,
        examples=["overlap"],
        description=(
            "What judges which documents an answer used: a name that `GET /v1/models` lists, or "
            "`none`; defaults to the first."
        ),
    )


class ProbeRequest(ProbeSettings, RunRequest):
    """A probe of the model that ranks, with the parameters of `FairSearch.probe`.

    `depth` is how many of the `k` documents take part, and `seed` is the seed of the probe.
    """

    model_config = example(
        query="physicist", attribute="gender", protected="female", kinds=["pairwise"], pairs=2, k=10
    )

    query: str = Field(min_length=1, examples=["physicist"], description="What to search for.")
    k: int = Field(
        20,
        ge=1,
        le=10_000,
        description=(
            "How many results to find and to probe; with depth, only the first of them are probed."
        ),
    )
    method: Method = Field("baseline", description="How to rank, as in a search.")
    depth: int | None = Field(
        None,
        ge=2,
        le=1000,
        description="How many of the best documents of the result take part; by default all.",
    )


REQUESTS: dict[Kind, type[RunRequest]] = {
    "search": SearchRequest,
    "answer": AnswerRequest,
    "probe": ProbeRequest,
}


class BackgroundSearch(Frozen):
    """A search in the background."""

    kind: Literal["search"]
    request: SearchRequest


class BackgroundAnswer(Frozen):
    """An answer in the background."""

    kind: Literal["answer"]
    request: AnswerRequest


class BackgroundProbe(Frozen):
    """A probe in the background."""

    kind: Literal["probe"]
    request: ProbeRequest


BackgroundRun = Annotated[
    BackgroundSearch | BackgroundAnswer | BackgroundProbe, Field(discriminator="kind")
]


class AuditedQuery(Frozen):
    """A query of an audit."""

    query: str
    weight: float = Field(
        1.0, ge=0, le=1e9, allow_inf_nan=False, description="How often it was asked."
    )


_Query = Annotated[AuditedQuery, or_text(lambda text: {"query": text}, AuditedQuery)]


class AuditRequest(Frozen):
    """An audit of a source by a list of queries."""

    model_config = example(
        queries=["physicist", {"query": "composer", "weight": 12}], attributes=["gender"], k=10
    )

    corpus: str | None = Field(
        None, description="What to audit, as `GET /v1/indexes` lists it; defaults to the first."
    )
    retriever: RetrieverName = Field(
        "auto", examples=["bm25"], description="How documents are found; as in a search."
    )
    queries: list[_Query] = Field(
        min_length=1,
        fail_fast=True,
        description="What people search for. A text counts once; an object may give its weight.",
    )
    attributes: _Texts = Field(
        [], description="The attributes to measure; by default all attributes of the source."
    )
    intersections: bool = Field(
        True, description="Also measure the combinations of every two attributes."
    )
    k: int = Field(10, ge=1, le=10_000, description="How many results count as shown.")
    depth: int = Field(
        100,
        ge=2,
        le=10_000,
        description=(
            "How many results to ask for. Those after `k` count as candidates that were not shown."
        ),
    )
    target: _Target = Field(
        None,
        examples=["relevance:0.5,population:0.5"],
        description=(
            "The exposure that each group should get: a mixture of `relevance`, `population`, "
            "`uniform` and `corpus`, or shares of one attribute. Defaults to `relevance:1`."
        ),
    )
    discount: str = Field(
        "log2",
        description=(
            "Attention by rank: log2, trec, rbp(p), top_k(k), inverse_log, or weights(1, 0.6, …), "
            "those of the first ranks."
        ),
    )
    clicks: list[dict[str, Any]] = Field(
        [],
        fail_fast=True,
        description=(
            "What users were shown and clicked: searches and events as User Behavior Insights "
            "records them. The attention by rank that they show takes the place of `discount`."
        ),
    )
    seed: _Seed = Field(0, description="Fixes all random choices.")

    @property
    def name(self) -> str:
        """The name of the audit, for lists of runs."""
        first_query = one_line(self.queries[0].query, NAMED)
        other_queries = len(self.queries) - 1
        return f"{first_query} and {other_queries:,} more" if other_queries else first_query

    @property
    def options(self) -> dict[str, Any]:
        """What to measure, as an :class:`Auditor` takes it."""
        return self.model_dump(
            exclude={"corpus", "retriever", "queries", "clicks"}, exclude_none=True
        )


_TEXT_PARTS = ("text", "input_text")

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
        """Return the text of the user's last message."""
        user_messages = [message for message in self.messages if message.role == "user"]
        content = user_messages[-1].content if user_messages else None
        parts = content if isinstance(content, list) else [content]

        texts = []
        is_only_text = True
        for part in parts:
            text = part
            if isinstance(part, dict):
                text = part.get("text")
                if part.get("type") not in _TEXT_PARTS:
                    is_only_text = False
            if isinstance(text, str):
                texts.append(text)

        question = "\n".join(texts)
        if not question or not is_only_text:
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


def parsed(kind: Kind, body: Mapping[str, Any]) -> RunRequest:
    """Parse the body of a request.

    Raises:
        InputError: A parameter is wrong; the message names it.
    """
    with parameter_errors():
        return REQUESTS[kind].model_validate(body)
