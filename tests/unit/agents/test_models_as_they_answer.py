"""Models as providers and servers really answer: what is refused, stated, wrapped or thought aloud.

Each list holds several examples of one kind, from different providers and servers; the shape of
the body and what it means count, and none of their sentences is known to the code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.complaints import read_complaint
from fairqr.agents.models.plain_text import StreamEnd, plain_events
from fairqr.agents.models.provider import takes_extra_body, trimmed_key
from fairqr.agents.models.reading import ThoughtFilter, read_object, without_thoughts
from fairqr.agents.models.replies import Question, Reply
from fairqr.base.errors import ModelUnavailableError
from tests.servers.model_server import (
    KEY,
    Answer,
    Asked,
    ModelServer,
    completion,
    failure,
    says,
    scores,
    stream,
)
from tests.unit.prompts.templates import a_prompt

pytestmark = pytest.mark.usefixtures("clean_environment")

SYSTEM = "You are brief."
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "About {query}"}]
PROMPT = a_prompt("", "query", messages=MESSAGES, defaults={"presence_penalty": 0.5})
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
GOOD = says({"n": 1})


def has_n(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(value.get("n"), int):
        raise ValueError("'n': a number is missing")
    return {"n": value["n"]}


def question(query: str = "x", **more: Any) -> Question:
    return Question(PROMPT, {"query": query}, **{"schema": SCHEMA, "validate": has_n, **more})


def model(server: ModelServer, **options: Any) -> ChatModel:
    return ChatModel("openai:fake", **{"base_url": server.base_url, "timeout": 10.0, **options})


def body_of(status: int, body: Any) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body)
    return Answer(status, text.encode())


def unless(refused: Callable[[Asked], bool], answer: Answer, good: Answer = GOOD) -> Any:
    """A server that gives an error if a request has what it does not know."""
    return lambda asked: answer if refused(asked) else good


def has(name: str) -> Callable[[Asked], bool]:
    return lambda asked: name in asked.body


REFUSED = [
    ("temperature", 400, {"error": {"message": "`temperature` is deprecated for this model."}}),
    (
        "temperature",
        400,
        {
            "error": {
                "message": "This model doesn't support temperature=0.0. Only 1.",
                "param": None,
            }
        },
    ),
    ("temperature", 400, [{"error": {"code": 400, "message": "Unsupported value: temperature"}}]),
    ("temperature", 422, {"detail": "Sampling: Temperature is fixed for this deployment"}),
    (
        "seed",
        422,
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra"}]},
    ),
    ("seed", 400, {"error": {"message": 'Invalid JSON payload received. Unknown name "seed"'}}),
    (
        "seed",
        400,
        {
            "error": {
                "code": 400,
                "message": "Request contains an invalid argument.",
                "details": [{"fieldViolations": [{"field": "seed", "description": "Cannot find"}]}],
            }
        },
    ),
    (
        "seed",
        422,
        "Failed to deserialize: unknown field `seed`, expected one of `model`, `temperature`",
    ),
    (
        "response_format",
        400,
        {"error": {"code": "json_validate_failed", "message": "Failed to generate JSON."}},
    ),
    (
        "response_format",
        400,
        {"error": {"code": "json_validate_failed", "message": "Please adjust your prompt."}},
    ),
    ("seed", 400, {"title": "Bad request", "invalid-params": [{"name": "seed", "reason": "no"}]}),
    (
        "presence_penalty",
        400,
        {"code": "x", "error": "Argument not supported on this model: presencePenalty"},
    ),
    ("presence_penalty", 400, {"message": "Presence penalty is not enabled for this model"}),
    ("presence_penalty", 422, {"detail": [{"loc": ["body", "presence_penalty"], "msg": "Extra"}]}),
    ("presence_penalty", 400, {"error": '{"message": "presence-penalty unknown", "code": 3}'}),
    ("response_format", 400, {"error": "This model has no json_schema mode"}),
    ("response_format", 501, {"error": {"message": "responseFormat is not implemented"}}),
    ("response_format", 400, {"message": "Structured outputs are not available here", "code": 1}),
    (
        "response_format",
        400,
        {"error": {"message": "Provider returned error", "metadata": {"raw": "response_format?"}}},
    ),
]


@pytest.mark.parametrize(("name", "status", "body"), REFUSED)
async def test_a_refused_parameter_is_left_out_from_then_on(
    server: ModelServer, name: str, status: int, body: Any
) -> None:
    server.does(unless(has(name), body_of(status, body)))
    asked = model(server)
    assert (await asked.ask(question(seed=7))).value == {"n": 1}
    assert len(server.asked) == 2
    assert server.asked[0].body.keys() - server.asked[1].body.keys() == {name}
    assert (await asked.ask(question("another"))).status == "ok"
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "max_completion_tokens"]}]},
        {"error": "unknown field max_completion_tokens"},
        {"object": "error", "message": "maxCompletionTokens: extra inputs are not permitted"},
    ],
)
async def test_the_limit_of_a_reply_has_two_names(server: ModelServer, body: Any) -> None:
    server.does(unless(has("max_completion_tokens"), body_of(422, body)))
    asked = model(server)
    assert (await asked.ask(question())).status == "ok"
    limit = server.asked[0].body["max_completion_tokens"]
    assert server.asked[1].body["max_tokens"] == limit
    server.does(
        unless(
            lambda it: bool({"max_tokens", "max_completion_tokens"} & it.body.keys()),
            body_of(422, {"detail": "max_tokens is unknown"}),
        )
    )
    assert (await asked.ask(question("neither"))).status == "ok"
    assert not {"max_tokens", "max_completion_tokens"} & server.asked[-1].body.keys()


@pytest.mark.parametrize(
    "reason",
    [
        "max_tokens is too large: 5000. This model supports at most 4096 completion tokens.",
        "max_completion_tokens: 5000 > 4096, which is the maximum allowed for this model",
        "`max_tokens` must be less than or equal to `4096`",
    ],
)
async def test_a_limit_that_is_too_large_is_lowered_and_not_forgotten(
    server: ModelServer, reason: str
) -> None:
    def is_too_large(asked: Asked) -> bool:
        return asked.body.get("max_completion_tokens", 10**9) > 4096

    server.does(unless(is_too_large, failure(400, reason)))
    asked = model(server)
    assert (await asked.ask(question(max_tokens=5000))).status == "ok"
    assert (await asked.ask(question("y", max_tokens=9000))).status == "ok"
    assert [it.body["max_completion_tokens"] for it in server.asked] == [5000, 4096, 4096]


async def test_a_limit_goes_by_the_prompt_where_the_server_counts_both(
    server: ModelServer,
) -> None:
    """As vLLM and OpenAI say it; a shorter prompt has its own room."""
    context = 4096

    def answer(asked: Asked) -> Answer:
        limit = asked.body["max_completion_tokens"]
        prompt = 2000 if "long" in asked.last_message else 74
        if limit <= context - prompt:
            return GOOD
        return failure(
            400,
            f"'max_tokens' is too large: {limit}. This model's maximum context length is {context} "
            f"tokens and your request has {prompt} input tokens ({limit} > {context} - {prompt}).",
        )

    server.does(answer)
    asked = model(server)
    assert (await asked.ask(question("long", max_tokens=4192))).status == "ok"
    assert (await asked.ask(question("x", max_tokens=4192))).status == "ok"
    limits = [it.body["max_completion_tokens"] for it in server.asked]
    assert limits == [4192, context - 2000, 4192, context - 74]
    says_both = failure(
        400,
        "This model's maximum context length is 4097 tokens. However, you requested 5000 tokens "
        "(1000 in the messages, 4000 in the completion: max_tokens).",
    )
    server.does(unless(lambda it: it.body["max_completion_tokens"] > 3097, says_both))
    assert (await model(server).ask(question("y", max_tokens=4000))).status == "ok"
    assert server.asked[-1].body["max_completion_tokens"] == 3097


@pytest.mark.parametrize(
    "sentence",
    [
        "This model's maximum context length is 512 tokens. However, you requested 546 tokens "
        "(450 in the messages, 96 in the completion). Please reduce the length of the messages.",
        "This model's maximum context length is 512 tokens, however you requested 546 tokens "
        "(450 in your prompt; 96 for the completion). Please reduce your prompt.",
        "You passed 450 input tokens and requested 96 output tokens. However, the model's context "
        "length is only 512 tokens, resulting in a maximum input length of 416 tokens.",
    ],
)
async def test_a_limit_on_the_reply_alone_is_lowered(server: ModelServer, sentence: str) -> None:
    refused = unless(lambda it: it.body["max_completion_tokens"] > 62, failure(400, sentence))
    server.does(refused)
    assert (await model(server).ask(question(max_tokens=96))).status == "ok"
    assert [it.body["max_completion_tokens"] for it in server.asked] == [96, 62]


async def test_a_server_that_refuses_every_limit_is_asked_a_few_times(server: ModelServer) -> None:
    server.does(failure(400, "max_tokens: not possible with 12 input tokens"))
    reply = await model(server).ask(question(max_tokens=4000))
    assert reply.status == "invalid_request"
    assert len(server.asked) < 8


async def test_a_text_without_end_is_cut_where_no_limit_is_known(server: ModelServer) -> None:
    server.does(stream(["word "] * 100_000))
    shown: list[str] = []
    reply = await model(server).write(question(max_tokens=100), on_token=shown.append)
    assert reply.status == "ok"
    assert 1600 <= len(reply.text) < 1700
    assert "".join(shown).startswith(reply.text)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "System role not supported"}}),
        (500, {"error": {"code": 500, "message": "Jinja: System role not supported here"}}),
        (400, {"error": {"message": "Developer instruction is not enabled for models/gemma"}}),
        (400, {"error": "Only user and assistant roles are supported!"}),
        (400, [{"error": {"message": "Please use a valid role: user, model."}}]),
        (400, {"message": "Conversation roles must alternate user/assistant/user/assistant"}),
        (
            422,
            {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "Input should be 'user'"}]},
        ),
    ],
)
async def test_without_a_system_role_the_user_message_has_both(
    server: ModelServer, status: int, body: Any
) -> None:
    def has_system(asked: Asked) -> bool:
        return any(message["role"] == "system" for message in asked.body["messages"])

    server.does(unless(has_system, body_of(status, body)))
    asked = model(server)
    assert (await asked.ask(question())).status == "ok"
    (message,) = server.asked[-1].body["messages"]
    assert (message["role"], message["content"]) == ("user", f"{SYSTEM}\n\nAbout x")
    assert (await asked.ask(question("y"))).status == "ok"
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Rate limit exceeded", "code": 429}},
        {"error": {"message": "Too many", "status": "429"}},
        [{"error": {"code": 429, "message": "Resource exhausted"}}],
        {"error": "overloaded"},
        {"choices": [{"error": {"code": 502, "message": "Upstream"}, "finish_reason": "error"}]},
        {"base_resp": {"status_code": 1002, "status_msg": "rate limit"}, "choices": None},
        {"object": "error", "message": "internal", "code": 500},
        {"error": {"message": "Upstream failed", "code": "server_error"}, "choices": []},
    ],
)
async def test_an_error_with_status_200_is_waited_for(server: ModelServer, body: Any) -> None:
    server.does(body_of(200, body), GOOD)
    assert (await model(server).ask(question())).value == {"n": 1}
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("answer", "status", "words", "not_words"),
    [
        (body_of(200, {"error": "overloaded"}), "unavailable", ["overloaded", "try later"], "50"),
        (
            body_of(200, {"error": {"message": "Slow down", "code": 429}}),
            "rate_limited",
            ["429: Slow down"],
            "URL",
        ),
        (
            failure(403, "Country, region, or territory not supported"),
            "denied",
            ["403: Country, region, or territory not supported", "ask the provider"],
            "check the key",
        ),
        (
            failure(403, "The project lacks permission"),
            "denied",
            ["permission", "check the key"],
            "URL",
        ),
        (body_of(401, {"message": "Unauthorized"}), "denied", ["401: Unauthorized"], "URL"),
        (
            body_of(404, {"detail": "Not Found"}),
            "unavailable",
            ["404: Not Found", "check the base URL"],
            "key",
        ),
        (
            body_of(404, "<html><title>404 Not Found</title></html>"),
            "unavailable",
            ["base URL"],
            "<",
        ),
        (
            body_of(404, {"error": "model 'fake' not found, try pulling it first"}),
            "unavailable",
            ["try pulling it first", "check its name"],
            "URL",
        ),
        *(
            (body_of(400, body), "denied", ["400: ", "check the key of the provider"], "name")
            for body in (
                [{"error": {"code": 400, "message": "API key not valid. Pass a valid API key."}}],
                {"code": "invalid argument", "error": "Incorrect API key provided: sk***ef."},
                {"error": {"message": "x", "details": [{"reason": "API_KEY_INVALID"}]}},
            )
        ),
        *(
            (
                body_of(status, {"error": {"message": text}}),
                "unavailable",
                ["check its name"],
                "URL",
            )
            for status, text in (
                (400, "Invalid model: fake"),
                (400, "Model Not Exist"),
                (400, "fake is not a valid model ID"),
                (422, "Invalid model name passed in model=fake"),
                (400, "The model fake was not found"),
            )
        ),
        (Answer(405, b"Method Not Allowed"), "unavailable", ["405: ", "base URL"], "refused"),
        (
            failure(404, "No endpoints found matching your data policy (Free model training)"),
            "denied",
            ["matching your data policy", "not open to this account", "settings of the account"],
            "name",
        ),
        (
            failure(404, "No allowed providers are available for the selected model."),
            "denied",
            ["No allowed providers", "settings of the account"],
            "name",
        ),
        (
            body_of(404, {"message": "Model use case details are missing for this account."}),
            "denied",
            ["use case details", "settings of the account"],
            "name",
        ),
        (
            failure(404, "The model `x` does not exist or you do not have access to it."),
            "unavailable",
            ["does not exist", "check its name"],
            "account",
        ),
        (
            body_of(422, {"detail": [{"loc": ["body", "messages"], "msg": "too many images"}]}),
            "invalid_request",
            ["422: body.messages: too many images"],
            "Error code",
        ),
        (body_of(422, "The prompt holds nothing."), "invalid_request", ["The prompt holds"], "URL"),
        (
            body_of(403, {"Message": "Authentication failed"}),
            "denied",
            ["Authentication fa"],
            "URL",
        ),
        *(
            (failure(status, reason), "rate_limited", ["no quota left", "plan of"], "refused")
            for status, reason in (
                (400, "Your credit balance is too low to access the API."),
                (403, "Your team does not have any credits yet."),
                (403, "You exceeded your current quota."),
            )
        ),
        (failure(402, "Insufficient credits"), "rate_limited", ["Insufficient credits"], "URL"),
        (body_of(200, "<html><body>Welcome</body></html>"), "unavailable", ["base URL"], "Error"),
        (
            body_of(200, {"choices": []}),
            "unavailable",
            ["no chat completion|not send a chat"],
            "Error",
        ),
    ],
)
async def test_an_error_has_the_reason_and_one_remedy(
    server: ModelServer, answer: Answer, status: str, words: list[str], not_words: str
) -> None:
    server.does(answer)
    reply = await model(server, attempts=1).ask(question())
    assert reply.status == status
    for each in words:
        assert any(part in reply.message for part in each.split("|")), reply.message
    assert not_words not in reply.message
    assert "Error code" not in reply.message


THOUGHTS = [
    '<think>Perhaps {"n": 7}?</think>{"n": 1}',
    'Perhaps {"n": 7}?</think>\n\n{"n": 1}',
    '<thinking>\n{"n": 7}\n</thinking>\n```json\n{"n": 1}\n```',
    '[THINK]{"n": 7}[/THINK]{"n": 1}',
    '◁think▷{"n": 7}◁/think▷{"n": 1}',
    '<seed:think>{"n": 7}</seed:think>{"n": 1}',
    '<|START_THINKING|>{"n": 7}<|END_THINKING|>{"n": 1}',
    '<think reason="x">{"n": 7}</think>{"n": 1}',
    '<|channel|>analysis<|message|>{"n": 7}<|channel|>final <|constrain|>json<|message|>{"n": 1}',
    '<|channel|>analysis<|message|>{"n": 7}<|end|><|channel|>final<|message|>{"n": 1}',
]


WITHOUT_MARKS = 'analysisWe need n. Perhaps {"n": 7}? No.assistantfinal{"n": 1}'


@pytest.mark.parametrize("text", [*THOUGHTS, WITHOUT_MARKS])
async def test_thoughts_are_no_answer(server: ModelServer, text: str) -> None:
    server.does(says(text))
    assert (await model(server).ask(question())).value == {"n": 1}


@pytest.mark.parametrize("text", [*THOUGHTS, WITHOUT_MARKS])
async def test_thoughts_are_not_shown_or_judged(server: ModelServer, text: str) -> None:
    """Of an answer that comes in pieces; where no mark stands before them, from the next on."""
    plain = text.replace('{"n": 1}', "Marie Curie").replace("```json\n", "").replace("\n```", "")
    server.does(stream([*plain]))
    asked = model(server)
    reply = await asked.write(question("first"), on_token=lambda _: None)
    assert reply.text == "Marie Curie"
    shown: list[str] = []
    reply = await asked.write(question("second"), on_token=shown.append)
    assert (reply.text, "".join(shown).strip()) == ("Marie Curie", "Marie Curie")


async def test_reasoning_content_is_no_answer(server: ModelServer) -> None:
    thought = {"content": '{"n": 1}', "reasoning_content": '{"n": 7}', "reasoning": '{"n": 8}'}
    server.does(completion(thought))
    assert (await model(server).ask(question())).value == {"n": 1}


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('analysisWe need n. "Final": 7?assistantfinalMarie Curie', "Marie Curie"),
        ("analysis The user asks who.assistantfinal\n\nMarie Curie", "\n\nMarie Curie"),
        ("\nanalysisUser: who?assistantfinalMarie Curie<|return|>", "Marie Curie"),
        ("analysisWe must think, but the limit", ""),
        ("analysis of papers is her work", "analysis of papers is her work"),
        ("analyses differ", "analyses differ"),
        ("Analysis: assistantfinal is a word", "Analysis: assistantfinal is a word"),
    ],
)
def test_thoughts_whose_marks_are_gone_are_not_shown(text: str, answer: str, size: int) -> None:
    shown = ThoughtFilter()
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    seen = "".join(map(shown.feed, pieces)) + shown.end()
    assert seen.removesuffix("<|return|>") == answer
    assert without_thoughts(text) == answer


@pytest.mark.parametrize("pieces", [["a < b"], ["<", "b>bold"], ["[1] ", "says"], ["<thin", "g>"]])
def test_what_only_looks_like_a_thought_is_shown(pieces: list[str]) -> None:
    shown = ThoughtFilter()
    assert "".join(map(shown.feed, pieces)) + shown.end() == "".join(pieces)
    assert without_thoughts("".join(pieces)) == "".join(pieces)


def thinks(limit: int, text: str) -> Callable[[Asked], Answer]:
    """A model that thinks for some tokens before it answers."""

    def answer(asked: Asked) -> Answer:
        room = asked.body["max_completion_tokens"]
        return completion({"content": None}, "length") if room < limit else says(text)

    return answer


@pytest.mark.parametrize("budget", [16, 96, 128])
async def test_a_model_that_thinks_gets_room_for_that(server: ModelServer, budget: int) -> None:
    server.does(thinks(2000, '{"n": 1}'))
    asked = model(server)
    assert (await asked.ask(question(max_tokens=budget))).value == {"n": 1}
    assert [it.body["max_completion_tokens"] for it in server.asked] == [budget, budget + 4096]
    assert (await asked.ask(question("y", max_tokens=budget))).value == {"n": 1}
    assert len(server.asked) == 3


async def test_a_limit_that_is_reached_is_said_with_what_helps(server: ModelServer) -> None:
    server.does(thinks(10**9, ""))
    asked = model(server, reasoning_tokens=100)
    reply = await asked.ask(question(max_tokens=28))
    assert reply.status == "empty"
    assert "reached its limit of 128 tokens before it answered" in reply.message
    assert "raise reasoning_tokens" in reply.message
    server.does(completion({"content": '{"n": '}, "length"))
    reply = await asked.ask(question("cut", max_tokens=28))
    assert "it reached the limit of 128 tokens; raise max_tokens in the prompt" in reply.message


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
TEXT = {"type": "text", "text": '{"n": 1}'}


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "reasoning_content": "Hm"},
        {"content": None, "reasoning": "Hm", "reasoning_details": [{"type": "reasoning.text"}]},
        {"content": "", "thinking": "Hm"},
        {"content": " \n", "reasoning_content": "Hm"},
        {"content": [THOUGHT]},
        {"content": [{"type": "reasoning", "text": "Hm"}]},
        {"content": "<think>Hm"},
    ],
)
@pytest.mark.parametrize("wanted", ["object", "text"])
async def test_thoughts_alone_get_more_room_and_are_said(
    server: ModelServer, message: dict[str, Any], wanted: Any
) -> None:
    server.does(completion(message))
    asked = model(server, reasoning_tokens=100)
    reply = await asked.ask(question(max_tokens=28, wanted=wanted))
    assert reply.status == "empty"
    assert "gave only thoughts and no answer, with a limit of 128 tokens" in reply.message
    assert "raise reasoning_tokens" in reply.message
    assert [it.body["max_completion_tokens"] for it in server.asked] == [28, 128]


def deltas(*each: dict[str, Any]) -> Answer:
    """A stream of these changes."""
    made = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    choices = [{"index": 0, "delta": it, "finish_reason": None} for it in each]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events = [json.dumps({**made, "choices": [choice]}) for choice in choices]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    return Answer(body=body.encode(), content_type="text/event-stream")


@pytest.mark.parametrize(
    "each",
    [
        [{"role": "assistant", "content": None}, {"reasoning_content": "Hm"}],
        [{"role": "assistant", "content": ""}, {"reasoning": "H"}, {"reasoning": "m"}],
        [{"role": "assistant", "content": ""}, {"content": [THOUGHT]}, {"content": [THOUGHT]}],
    ],
)
async def test_a_stream_of_thoughts_alone_is_said(
    server: ModelServer, each: list[dict[str, Any]]
) -> None:
    server.does(deltas(*each))
    shown: list[str] = []
    reply = await model(server, reasoning_tokens=100).write(question(), on_token=shown.append)
    assert (reply.status, shown) == ("empty", [])
    assert "gave only thoughts and no answer" in reply.message


@pytest.mark.parametrize(
    "each",
    [
        [{"content": [THOUGHT]}, {"content": [{"type": "text", "text": "Mar"}]}, {"content": "ie"}],
        [{"content": [{"type": "text", "text": "Mar"}, {"type": "text", "text": "ie"}]}],
        [{"reasoning_content": "Hm"}, {"content": ["Mar"]}, {"content": "ie"}],
        [{"content": "Mar"}, {"content": []}, {"content": [{"type": "text", "text": "ie"}]}],
    ],
)
async def test_a_text_in_parts_is_read_without_a_warning(
    server: ModelServer, each: list[dict[str, Any]], recwarn: pytest.WarningsRecorder
) -> None:
    server.does(deltas(*each))
    shown: list[str] = []
    reply = await model(server).write(question(), on_token=shown.append)
    assert (reply.text, "".join(shown)) == ("Marie", "Marie")
    server.does(completion({"content": [THOUGHT, TEXT]}))
    assert (await model(server).ask(question())).value == {"n": 1}
    assert [it for it in recwarn if "erializ" in str(it.message)] == []


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_lines_of_a_stream_are_plain_wherever_it_is_cut(end: bytes, size: int) -> None:
    body = deltas({"content": [THOUGHT, TEXT]}, {"content": "ä"}).body.replace(b"\n", end)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    noted = StreamEnd()
    lines = b"".join([it async for it in plain_events(pieces(), noted)]).splitlines()
    events = [json.loads(it.removeprefix(b"data: ")) for it in lines if it.startswith(b'data: {"')]
    texts = [it["choices"][0]["delta"].get("content") for it in events]
    assert texts == ['{"n": 1}', "ä", None]
    assert lines.count(b"") >= 4
    assert (noted.is_marked, noted.has_thoughts) == (True, True)


FIELDS = ("topic", "keywords", "reason")
WORDS = ["women", "girls"]


@pytest.mark.parametrize(
    "text",
    [
        '{"topic": ["women", "girls",],}',
        "{'topic': ['women', 'girls']}",
        '{"topic": ["women", "girls"] /* both */, // none\n "reason": null}',
        '{topic: ["women", "girls"]}',
        '["women", "girls"]',
        "```json\n['women', 'girls']\n```",
        "- women\n- girls",
        "1. women\n2. girls",
        '"{\\"topic\\": [\\"women\\", \\"girls\\"]}"',
        '{"result": {"topic": ["women", "girls"]}}',
        '{"output": "{\\"topic\\": [\\"women\\", \\"girls\\"]}"}',
        '[{"topic": ["women", "girls"]}]',
        '{"Topic": ["women", "girls"]}',
        '{"note": 1}\n{"topic": ["women", "girls"]}',
        'Sure! Here it is: {"topic": ["women", "girls"]}. Anything else?',
    ],
)
def test_an_object_is_read_in_whatever_form_it_comes(text: str) -> None:
    assert read_object(text, FIELDS, "topic")["topic"] == WORDS


@pytest.mark.parametrize(
    "text",
    [
        "I cannot do that.",
        "Sorry, but as a model, I cannot help with that request.",
        "see [1] and [2]",
        '{"topic": ["wom',
        "",
        "42",
    ],
)
def test_what_means_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no whole JSON object"):
        read_object(text, FIELDS, "topic")


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "object", "properties": {"topic": {"type": "array"}}}\n{"topic": ["women"]}',
        '```json\n{"type": "object", "properties": {"topic": {"type": "string"}}}\n```\n["women"]'
        '{"topic": ["women"]}',
        '{"type": "object", "properties": {"topic": ["women"]}}',
    ],
)
def test_a_schema_that_is_repeated_is_no_answer(text: str) -> None:
    assert read_object(text, FIELDS, "topic")["topic"] == ["women"]


@pytest.mark.parametrize(
    "end", ["</s>", "<|im_end|>", "<|eot_id|>\n", "\n<end_of_turn></s>", "<eos>"]
)
async def test_marks_of_the_end_are_no_text_and_not_shown(server: ModelServer, end: str) -> None:
    text = f"If a < b, Marie <b>Curie</b>{end}"
    for size in (1, 5, 100):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        server.does(stream(pieces))
        shown: list[str] = []
        reply = await model(server).write(question(), on_token=shown.append)
        assert reply.text == "If a < b, Marie <b>Curie</b>"
        assert "".join(shown).rstrip() == reply.text


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "Rate limit exceeded", "code": 429}},
        {"error": {"message": "Over capacity", "type": "internal_server_error"}},
        {"error": {"object": "error", "message": "Engine died", "code": 500}},
    ],
)
async def test_an_error_at_the_beginning_of_a_stream_is_waited_for(
    server: ModelServer, error: dict[str, Any]
) -> None:
    body = f"data: {json.dumps(error)}\n\n".encode()
    failed = Answer(200, body, content_type="text/event-stream")
    server.does(failed, stream(["Marie", " Curie"]))
    reply = await model(server).write(question(), on_token=lambda _: None)
    assert (reply.text, len(server.asked)) == ("Marie Curie", 2)
    server.does(failed)
    reply = await model(server, attempts=2).write(question(), on_token=lambda _: None)
    assert error["error"]["message"] in reply.message
    assert ("503" in reply.message, len(server.asked)) == (False, 2)


@pytest.mark.parametrize(
    ("reason", "param"),
    [
        ("Your organization must be verified to stream this model.", "stream"),
        ("streaming is not supported with this model", None),
        ("Unsupported value: 'stream' does not support true with this model.", None),
    ],
)
async def test_where_no_stream_is_allowed_the_text_comes_whole(
    server: ModelServer, reason: str, param: str | None
) -> None:
    refused = body_of(400, {"error": {"message": reason, "param": param}})
    server.does(unless(lambda it: it.body["stream"], refused, says("Marie Curie")))
    asked = model(server)
    for text in ("first", "second"):
        shown: list[str] = []
        reply = await asked.write(question(text), on_token=shown.append)
        assert (reply.text, shown) == ("Marie Curie", ["Marie Curie"])
    assert [it.body["stream"] for it in server.asked] == [True, False, False]


@pytest.mark.parametrize("end", ["stop", "length", "content_filter"])
async def test_a_whole_reply_in_place_of_a_stream_is_one(server: ModelServer, end: str) -> None:
    server.does(completion({"content": "<think>x</think>Marie Curie"}, end))
    shown: list[str] = []
    reply = await model(server).write(question(), on_token=shown.append)
    assert reply.status == ("refused" if end == "content_filter" else "ok")
    assert "".join(shown) == "Marie Curie"
    assert reply.usage.prompt_tokens == 100


@pytest.mark.parametrize("most", [5, 8])
async def test_as_many_candidates_are_asked_for_as_the_server_gives(
    server: ModelServer, most: int
) -> None:
    refused = failure(400, f"top_logprobs must be between 0 and {most}.")
    good = scores({"Yes": 0.7, "No": 0.2})
    server.does(unless(lambda it: it.body["top_logprobs"] > most, refused, good))
    asked = model(server)
    for text in ("first", "second"):
        assert (await asked.choice_probabilities(question(text))).status == "ok"
    assert [it.body["top_logprobs"] for it in server.asked] == [10, most, most]


async def test_a_candidate_of_no_probability_is_none(server: ModelServer) -> None:
    """Its logarithm is minus infinity, which JSON lacks."""
    body = json.loads(scores({"Yes": 0.7, "No": 0.2}).body)
    body["choices"][0]["logprobs"]["content"][0]["top_logprobs"][1]["logprob"] = None
    server.does(Answer(body=json.dumps(body).encode()))
    assert (await model(server).choice_probabilities(question())).probabilities["Yes"] == 1.0
    server.does(scores({"<think>": 1.0}))
    reply = await model(server).choice_probabilities(question("thinks"))
    assert "it would begin with none of Yes, No" in reply.message


async def test_an_error_in_the_middle_of_a_stream_has_its_reason(server: ModelServer) -> None:
    event = json.dumps({"error": {"message": "Upstream failed", "code": "server_error"}})
    server.does(Answer(200, f"data: {event}\n\n".encode(), content_type="text/event-stream"))
    reply = await model(server, attempts=1).write(question(), on_token=lambda _: None)
    assert "reported an error (Upstream failed); try later" in reply.message


def ends_with(events: Sequence[str], finish_reason: str | None = None) -> Answer:
    """A stream of "Marie Curie" with these events after it."""
    pieces = stream(["Marie", " Curie"], finish_reason, usage=False).body.decode()
    without_mark = pieces.replace("data: [DONE]\n\n", "")
    body = without_mark + "".join(f"data: {event}\n\n" for event in events)
    return Answer(body=body.encode(), content_type="text/event-stream")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (ends_with(["[DONE]"], "stop"), "ok"),
        (ends_with([], "stop"), "ok"),
        (ends_with(["[DONE]"]), "ok"),
        (ends_with(['{"choices": [], "usage": null}', "[DONE]"]), "ok"),
        (dataclasses.replace(ends_with(["[DONE]"]), drip=0.0001), "ok"),
        (ends_with([]), "unavailable"),
        (ends_with(['{"choices": [{"index": 0, "delta": {"content": "[DONE]"}}]}']), "unavailable"),
        (dataclasses.replace(ends_with(["[DONE]"]), cut_after=250), "unavailable"),
    ],
)
async def test_a_stream_ends_with_a_reason_or_a_mark_or_it_broke_off(
    server: ModelServer, answer: Answer, status: str
) -> None:
    server.does(answer)
    reply = await model(server, attempts=1).write(question(), on_token=lambda _: None)
    assert (reply.status, reply.text) == (status, "Marie Curie" if status == "ok" else "")
    if status != "ok":
        assert "broke off the connection; check that its server runs" in reply.message


async def test_tokens_that_are_counted_in_each_piece_count_once(server: ModelServer) -> None:
    """Each count is of all until then, as some servers send it; the last one is that of all."""
    answer = stream(["Marie", " Curie"])
    lines = answer.body.decode().split("\n\n")
    counted = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for number, event in enumerate(counted):
        event["usage"] = {"prompt_tokens": 100, "completion_tokens": number, "total_tokens": 100}
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in counted) + "data: [DONE]\n\n"
    server.does(Answer(200, body.encode(), content_type="text/event-stream"))
    reply = await model(server).write(question(), on_token=lambda _: None)
    assert reply.text == "Marie Curie"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (100, len(counted) - 1)


async def reply_to(server: ModelServer, message: dict[str, Any], end: str = "stop") -> Reply:
    server.does(completion(message, end))
    return await model(server).ask(question())


OPEN_CALL = {"id": "1", "type": "function", "function": {"name": "x", "arguments": {"n": 1}}}
CALL = {"id": "1", "type": "function", "function": {"name": "reply", "arguments": '{"n": 1}'}}


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "text", "text": '{"n": '}, {"type": "text", "text": "1}"}]},
        {"content": ['{"n": 1}']},
        {"content": [{"type": "thinking", "thinking": "{}"}, {"type": "text", "text": '{"n": 1}'}]},
        {"content": None, "tool_calls": [CALL]},
        {"content": "", "tool_calls": [CALL]},
        {"content": None, "function_call": {"name": "reply", "arguments": '{"n": 1}'}},
        {"content": {"n": 1}},
        {"content": '{"n": 1}', "role": None},
        {"content": None, "tool_calls": [OPEN_CALL]},
        {"content": None, "tool_calls": [OPEN_CALL], "reasoning_content": "Hm"},
    ],
)
async def test_a_message_is_read_in_whatever_parts_it_comes(
    server: ModelServer, message: dict[str, Any]
) -> None:
    assert (await reply_to(server, message)).value == {"n": 1}


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"content": '{"n": 1}'}},
        {"delta": {"role": "assistant", "content": '{"n": 1}'}, "finish_reason": "stop"},
        {"message": None, "delta": {"content": [TEXT]}, "index": 0},
        {"text": '{"n": 1}', "index": 0, "logprobs": None, "finish_reason": "stop"},
    ],
)
async def test_a_message_is_read_where_other_routes_have_it(
    server: ModelServer, choice: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    server.does(body_of(200, {"id": "c", "object": "x", "created": 1, "choices": [choice]}))
    asked = model(server)
    assert (await asked.ask(question())).value == {"n": 1}
    assert (await asked.write(question(), on_token=lambda _: None)).text == '{"n": 1}'
    assert [it for it in recwarn if "erializ" in str(it.message)] == []


@pytest.mark.parametrize(
    ("message", "end"),
    [
        ({"content": None, "refusal": "No."}, "stop"),
        ({"content": ""}, "content_filter"),
        ({"content": None}, "SAFETY"),
        ({"content": "Marie"}, "content_filter: RECITATION"),
        ({"content": "I cannot."}, "refusal"),
        ({"content": ""}, "guardrail_intervened"),
    ],
)
async def test_a_refusal_is_one(server: ModelServer, message: dict[str, Any], end: str) -> None:
    assert (await reply_to(server, message, end)).status == "refused"


AZURE = {
    "message": "The response was filtered due to the prompt triggering a content management policy",
    "param": "prompt",
    "code": "content_filter",
    "status": 400,
    "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {}},
}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": AZURE}),
        (400, {"error": {"message": "No.", "innererror": {"code": "ResponsibleAIPolicy"}}}),
        (400, {"error": {"code": "data_inspection_failed", "message": "Output may be harmful"}}),
        (400, {"error": {"message": "Content Exists Risk", "type": "invalid_request_error"}}),
        (403, {"error": {"code": 403, "message": "Your input was flagged", "metadata": {}}}),
        (400, {"error": {"code": "invalid_prompt", "message": "The prompt was flagged: policy"}}),
        (200, {"error": AZURE}),
    ],
)
async def test_a_filter_before_the_model_is_a_refusal(
    server: ModelServer, status: int, body: Any
) -> None:
    server.does(body_of(status, body))
    reply = await model(server).ask(question())
    assert reply.status == "refused"
    assert f"declined to answer ({400 if status == 200 else status}: " in reply.message
    assert len(server.asked) == 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "  \n", "\t"])
async def test_a_key_may_end_in_a_line_break(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Mounted secrets do."""
    monkeypatch.setenv("OPENAI_API_KEY", f"sk-mounted{end}")
    server.does(GOOD)
    assert (await model(server).ask(question())).status == "ok"
    assert server.asked[0].headers["authorization"] == "Bearer sk-mounted"


@pytest.mark.parametrize(
    ("provider", "variable"),
    [
        ("anthropic", "ANTHROPIC_API_KEY"),
        ("mistralai", "MISTRAL_API_KEY"),
        ("google_genai", "GOOGLE_API_KEY"),
        ("azure_openai", "AZURE_OPENAI_API_KEY"),
        ("xai", "XAI_API_KEY"),
    ],
)
def test_the_key_of_each_provider_may_end_in_a_line_break(
    monkeypatch: pytest.MonkeyPatch, provider: str, variable: str
) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "of-another\n")
    monkeypatch.setenv(variable, "mounted\n")
    assert trimmed_key(provider) == "mounted"


async def test_a_key_with_a_break_inside_is_said(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-one\nsk-two")
    with pytest.raises(ModelUnavailableError, match="OPENAI_API_KEY has a space or a line break"):
        await model(server).ask(question())


@pytest.mark.parametrize("query", ["api-version=2024-02-01", "a=1&b=", "key=x%20y"])
async def test_the_query_of_an_address_is_kept(server: ModelServer, query: str) -> None:
    server.does(GOOD)
    asked = model(server, base_url=f"{server.base_url}/deployments/d?{query}")
    assert (await asked.ask(question())).status == "ok"
    path, _, sent = server.asked[0].path.partition("?")
    assert path == "/v1/deployments/d/chat/completions"
    assert sent.replace("+", "%20") == query


@pytest.mark.parametrize("end", ["", "/", "/chat/completions", "/chat/completions/?a=b"])
async def test_an_address_may_name_the_path_of_chats(server: ModelServer, end: str) -> None:
    server.does(GOOD)
    assert (await model(server, base_url=f"{server.base_url}{end}").ask(question())).status == "ok"
    assert server.asked[0].path.partition("?")[0] == "/v1/chat/completions"


async def test_what_took_too_long_says_how_long_and_how_often(server: ModelServer) -> None:
    server.does(Answer(never=True))
    reply = await model(server, timeout=0.3).ask(question())
    assert reply.status == "timeout"
    assert "did not answer within 0.3 s" in reply.message


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"error": {"message": "a"}}, "a"),
        ({"error": "a"}, "a"),
        ([{"error": {"message": "a"}}], "a"),
        ({"errors": [{"message": "a"}, {"message": "b"}]}, "a; b"),
        ({"detail": {"msg": "a"}}, "a"),
        ({"title": "b", "detail": "a"}, "a; b"),
        ('{"error": {"message": "{\\"error\\": \\"a\\"}"}}', "a"),
        ("<html><head><title>a</title></head></html>", "a"),
        ({}, ""),
    ],
)
def test_a_reason_is_found_in_any_shape(body: Any, reason: str) -> None:
    class FailedError(Exception):
        def __init__(self) -> None:
            self.body = body
            self.status_code = 400

    assert read_complaint(FailedError()).reason == reason


def lacks(name: str, value: Any) -> Callable[[Asked], bool]:
    """Whether a request does not say this value, at a name with dots between objects."""

    def is_wrong(asked: Asked) -> bool:
        inner: Any = asked.body
        for part in name.split("."):
            inner = inner.get(part, {})
        return bool(inner != value or type(inner) is not type(value))

    return is_wrong


BAD_TYPE = {"type": "bool_type", "loc": ["body", "enable_thinking"], "msg": "Input should be False"}

DEMANDED = [
    ("enable_thinking", False, "parameter.enable_thinking must be set to false for such calls"),
    ("enable_thinking", True, "<400> A.B.C: The value of the enable_thinking parameter is "
     "restricted to True."),
    ("store", False, {"detail": "Store must be set to false"}),
    ("enable_thinking", False, {"detail": [BAD_TYPE]}),
    ("thinking.budget_tokens", 1024, "thinking.budget_tokens: must be 1024"),
    ("reasoning_effort", "none", "Only 'none' is supported for reasoning_effort"),
    ("enable_search", False, "Please set `enable_search` to false."),
    ("incrementalOutput", True, "incrementalOutput has to be set to true"),
    ("chat_template_kwargs.enable_thinking", False,
     "This request requires chat_template_kwargs.enable_thinking to be False"),
    ("top_k", 1, {"error": {"message": "must be 1", "param": "top_k"}}),
    ("topK", 1, {"error": {"message": "This value must be 1", "param": "topK"}}),
    ("thinking.type", "disabled", {"message": "should be 'disabled'", "param": "thinking.type"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "body"), DEMANDED)
async def test_a_demanded_parameter_is_sent_from_then_on(
    server: ModelServer, name: str, value: object, body: Any
) -> None:
    said = {"error": {"code": "invalid", "message": body}} if isinstance(body, str) else body
    server.does(unless(lacks(name, value), body_of(400, said)))
    asked = model(server)
    assert (await asked.ask(question())).value == {"n": 1}
    assert len(server.asked) == 2
    added = server.asked[1].body.keys() - server.asked[0].body.keys()
    assert added == {name.partition(".")[0]}
    assert (await asked.ask(question("another"))).status == "ok"
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "reason",
    [
        "`stream` must be true",
        "model must be 'other'",
        "messages.0.content must be 'text'",
        "messages[0].content.type must be 'text'",
        "this must be true",
        {"message": "`stream` must be true", "param": "top_k"},
        {"message": "For x, stream must be true", "param": "top_k"},
        "top_k must be between 1 and 5",
        "top_k must be 1, 2 or 3",
        "top_k must be 5 or less",
        "thinking.type: Input should be 'enabled' or 'disabled'",
        "enable_thinking must not be true",
        "reasoning is mandatory for this endpoint and cannot be disabled",
    ],
)
async def test_what_demands_no_one_value_is_not_sent(server: ModelServer, reason: Any) -> None:
    server.does(body_of(400, {"error": reason}))
    reply = await model(server).ask(question())
    assert (reply.status, len(server.asked)) == ("invalid_request", 1)
    assert (reason if isinstance(reason, str) else reason["message"]) in reply.message


async def test_a_demand_that_does_not_help_is_tried_once(
    server: ModelServer,
) -> None:
    server.does(failure(400, "enable_thinking must be set to false"))
    asked = model(server)
    for text in ("first", "second"):
        server.asked.clear()
        reply = await asked.ask(question(text))
        assert reply.status == "invalid_request"
        assert ["enable_thinking" in it.body for it in server.asked] == [False, True]
    names = iter("abcdefghijklmnop")
    server.does(lambda _: failure(400, f"x_{next(names)} must be true"))
    assert (await model(server).ask(question())).status == "invalid_request"
    assert len(server.asked) < 8


async def test_a_demand_and_what_is_refused_are_both_met(server: ModelServer) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.body.get("temperature") != 1:
            return failure(400, "temperature must be 1")
        return (
            GOOD if asked.body.get("store") is True else failure(400, "Store must be set to true")
        )

    server.does(answer)
    assert (await model(server).ask(question())).status == "ok"
    assert (server.asked[-1].body["temperature"], server.asked[-1].body["store"]) == (1, True)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("Missing required parameter: 'thinking'", "thinking"),
        ("reasoning is mandatory for this endpoint and cannot be disabled", "reasoning"),
        ("body.budget_tokens: Field required", "budget_tokens"),
        ("thinking.budget_tokens: must be greater than or equal to 1024", "thinking.budget_tokens"),
        ({"error": {"message": "No.", "param": "serviceTier"}}, "serviceTier"),
        ("A.InvalidParameter: that is required here", None),
        ("messages must be a list of user_messages", "user_messages"),
        ("vLLM cannot do this", None),
        ("`messages` must be a list", None),
        (f"one must send a+{KEY.replace('-', '_')}_b", None),
    ],
)
async def test_a_refusal_that_names_a_parameter_says_what_can_set_it(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, body: Any, name: str | None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"a+{KEY.replace('-', '_')}_b")
    server.does(body_of(400, {"message": body} if isinstance(body, str) else body))
    reply = await model(server).ask(question())
    if name is None:
        assert "extra_body" not in reply.message
    else:
        assert reply.message.endswith(f"; extra_body can set {name}.")
    assert "SECRET" not in reply.message
    given: Any = ChatOpenAI(model="m", base_url=server.base_url, max_retries=0)
    assert "extra_body" not in (await ChatModel.of(given).ask(question())).message


def test_a_client_that_does_not_send_an_extra_body_is_known() -> None:
    from langchain_core.language_models import FakeListChatModel

    assert takes_extra_body(ChatOpenAI(model="m"))
    assert not takes_extra_body(FakeListChatModel(responses=[]))


EXTRA = {"chat_template_kwargs": {"enable_thinking": False}, "seed": 9}


async def test_members_that_a_user_sets_are_in_each_request(server: ModelServer) -> None:
    asked = model(server, extra_body=EXTRA)
    for wanted in ("object", "text"):
        server.does(GOOD)
        assert (await asked.ask(question(seed=7, wanted=wanted))).status == "ok"
        assert server.asked[0].body.items() >= EXTRA.items()
        assert ("response_format" in server.asked[0].body) == (wanted == "object")
    server.does(stream(["Marie"]))
    assert (await asked.write(question(), on_token=lambda _: None)).text == "Marie"
    assert server.asked[0].body.items() >= EXTRA.items()
    assert asked.fingerprint != model(server).fingerprint


@pytest.mark.parametrize(
    "settings",
    [
        {"extra_body": EXTRA},
        {"extra_body": {"seed": 9, "response_format": {"type": "text"}}},
        {"model_kwargs": {"response_format": {"type": "json_object"}}},
        {"model_kwargs": {"metadata": {"a": "b"}}, "extra_body": EXTRA},
    ],
)
async def test_the_members_that_a_given_chat_model_sets_are_kept(
    server: ModelServer, settings: dict[str, Any]
) -> None:
    server.does(GOOD)
    client: Any = ChatOpenAI(model="m", base_url=server.base_url, **settings)
    assert (await ChatModel.of(client).ask(question(seed=7))).value == {"n": 1}
    for stated in settings.values():
        assert server.asked[0].body.items() >= stated.items()
    if "response_format" not in str(settings):
        assert server.asked[0].body["response_format"]["type"] == "json_schema"


async def test_no_demand_changes_what_a_user_set(
    server: ModelServer,
) -> None:
    server.does(failure(400, "enable_thinking must be false"))
    reply = await model(server, extra_body={"enable_thinking": True}).ask(question())
    assert (reply.status, len(server.asked)) == ("invalid_request", 1)
    assert reply.message.endswith("(400: enable_thinking must be false); extra_body can set "
                                  "enable_thinking.")  # fmt: skip
    server.does(failure(400, "response_format is unknown"))
    reply = await model(server, extra_body={"response_format": {"type": "text"}}).ask(question())
    assert (reply.status, len(server.asked)) == ("invalid_request", 1)
    server.does(failure(400, "seed is unknown"))
    assert (await model(server, extra_body={"seed": 1}).ask(question(seed=2))).status != "ok"


@pytest.mark.parametrize(
    "body",
    [
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 4096,
                "n_ctx": 2048,
            }
        },
        {"error": {"message": "Too long.", "code": "context_length_exceeded"}},
        {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}},
        {"message": "Input is too long for requested model."},
        {"detail": "This model's context window is 4k."},
    ],
)
async def test_a_prompt_that_is_too_long_says_what_helps(server: ModelServer, body: Any) -> None:
    server.does(body_of(400, body))
    reply = await model(server).write(question())
    assert reply.status == "invalid_request"
    assert "; let it read fewer documents, lower input_tokens for answers, or use" in reply.message
