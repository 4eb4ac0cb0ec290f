"""Asking a chat model over real HTTP: objects, texts and choices, kept, shared and streamed."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.replies import Question, Usage
from fairqr.agents.ranking.rankers import RankerOptions, RankItem, open_ranker
from fairqr.base.errors import ModelUnavailableError
from tests.patience import PATIENCE
from tests.servers.model_server import (
    KEY,
    Answer,
    ModelServer,
    completion,
    failure,
    says,
    scores,
    stream,
)
from tests.unit.prompts.templates import a_prompt

pytestmark = pytest.mark.usefixtures("clean_environment")

GOOD = says({"n": 1})
NO_TOKEN = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
NO_TOKEN |= {"logprobs": {"content": [], "refusal": None}}
NO_DATE = "Mon, 01 Jan 99999 00:00:00 GMT"
PROMPT = a_prompt("About {query}", "query")
PIECES = ["Marie", " Curie", " did."]


def has_n(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(value.get("n"), int):
        raise ValueError("'n': a number is missing")
    return {"n": value["n"]}


def question(query: str = "x", **more: Any) -> Question:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minLength": 1}}}
    return Question(PROMPT, {"query": query}, **{"schema": schema, "validate": has_n, **more})


def model(server: ModelServer, **options: Any) -> ChatModel:
    return ChatModel("openai:fake", **{"base_url": server.base_url, "timeout": 10.0, **options})


def begun(answer: Answer, pieces: int) -> int:
    """Return how many bytes of a stream hold so many of its pieces."""
    return len(b"\n\n".join(answer.body.split(b"\n\n")[: pieces + 1])) + 2


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each wait between two attempts, in order."""
    noted: list[float] = []

    async def sleep(seconds: float) -> None:
        noted.append(seconds)
        await asyncio.sleep(seconds)

    monkeypatch.setattr("fairqr.base.retries.asyncio", SimpleNamespace(sleep=sleep))
    return noted


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


async def test_a_request_holds_what_was_asked(server: ModelServer) -> None:
    """Messages, temperature, seed and a schema without bounds arrive, and the key does."""
    server.does(GOOD)
    asking = model(server)
    reply = await asking.ask(question(seed=7, temperature=0.0))
    assert (reply.status, reply.value, reply.usage) == ("ok", {"n": 1}, Usage(1, 0, 100, 10))
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body["messages"] == [{"role": "user", "content": "About x"}]
    assert (asked.body["temperature"], asked.body["seed"]) == (0.0, 7)
    schema = asked.body["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"n": {"type": "integer"}}
    server.does(says("  Marie Curie\ndid. \n"))
    text = await asking.write(question())
    assert (text.status, text.text, text.usage) == ("ok", "Marie Curie\ndid.", reply.usage)
    assert not {"response_format", "logprobs"} & set(server.asked[0].body)


@pytest.mark.promise("agents")
async def test_a_wrong_reply_is_answered_with_the_error_once(server: ModelServer) -> None:
    """A reply that is not valid is asked for again once, with the error.

    What is no valid object is asked for again with what is wrong, and both are counted.
    """
    server.does(says('{"m": 1}'), says('Sure!\n```json\n{"n": 1}\n```\nEnjoy.'))
    reply = await model(server).ask(question())
    assert (reply.value, reply.usage) == ({"n": 1}, Usage(2, 0, 200, 20))
    again = server.asked[1].body["messages"]
    assert again[1] == {"role": "assistant", "content": '{"m": 1}'}
    assert "'n': a number is missing" in again[2]["content"]


@pytest.mark.promise("agents")
@pytest.mark.parametrize(
    ("answer", "requests", "status", "words"),
    [
        (says("y" * 5_000_000), 2, "parse_error", "no whole JSON object"),
        (completion({"content": None, "refusal": "No."}), 1, "refused", "declined to answer"),
        (Answer(body=b"<html>", content_type="text/html"), 1, "unavailable", "the base URL"),
        (failure(401, f"Wrong key {KEY}"), 1, "denied", "refused the API key (401: "),
        (failure(400, f"No: {KEY}."), 1, "invalid_request", "(400: No: …)"),
        (failure(500, retry_after="0"), 2, "unavailable", "(500: It went wrong); try later"),
        (failure(408, retry_after="0"), 2, "timeout", "did not answer in time"),
        (failure(429, retry_after="3600"), 1, "rate_limited", "too many requests"),
        (failure(503, retry_after=NO_DATE), 2, "unavailable", "(503: It went wrong); try later"),
        (failure(429, code="insufficient_quota"), 1, "rate_limited", "no quota left"),
        (says({"n": 1}, cut_after=20), 2, "unavailable", "broke off"),
    ],
)
async def test_each_failure_is_typed_and_explained(
    server: ModelServer, answer: Answer, requests: int, status: str, words: str
) -> None:
    """Only failures that can heal are asked again, and each failure is explained.

    Tried again is only what can heal; the reply says in a sentence what is wrong.
    """
    server.does(answer)
    reply = await model(server, attempts=2).ask(question())
    assert (reply.status, len(server.asked)) == (status, requests)
    assert words in reply.message
    assert KEY not in reply.message
    assert re.fullmatch(r"The model openai:fake [^\n]{5,300}\.", reply.message)
    assert reply.usage.model_calls >= 1
    if words != "no whole JSON object":
        text = await model(server, attempts=2).write(question())
        assert (text.status, text.text, text.message) == (status, "", reply.message)


@pytest.mark.promise("agents")
async def test_retry_after_is_waited_for(server: ModelServer, waits: list[float]) -> None:
    """A model is asked again after the wait that its server names.

    In seconds or as a date, the server's wish counts, and not our own idea of a wait.
    """
    gone = failure(503, retry_after="Wed, 21 Oct 2015 07:28:00 GMT")
    server.does(failure(429, retry_after="0.2"), gone, GOOD)
    assert (await model(server).ask(question())).status == "ok"
    first, second, _ = (asked.at for asked in server.asked)
    assert second - first >= 0.2
    assert waits == [0.2, 0]  # our own waits would be at least 0.5 s, and then 1 s


async def test_a_wait_that_only_the_body_states_is_waited_for(
    server: ModelServer, waits: list[float]
) -> None:
    """As Gemini, Groq and OpenAI say it; a longer one than a header may ask for ends the tries."""
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.2s"}]
    error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": details}
    gemini = Answer(429, json.dumps([{"error": error}]).encode())
    server.does(gemini, failure(429, "Please try again in 150ms."), GOOD)
    assert (await model(server).ask(question())).status == "ok"
    assert waits == [0.2, 0.15]
    server.does(failure(429, "Please try again in 7m12s."))
    assert (await model(server).ask(question())).status == "rate_limited"
    assert len(server.asked) == 1


@pytest.mark.promise("agents")
@pytest.mark.parametrize("answer", [Answer(never=True), says({"n": 1}, drip=0.05)])
async def test_a_model_that_does_not_answer_is_given_up(
    server: ModelServer, answer: Answer
) -> None:
    """A model that does not answer is given up after as much time as it may take.

    Silence and a drip end after the timeout, not when the server pleases.
    """
    server.does(answer)
    began = time.monotonic()
    reply = await model(server, timeout=0.3).ask(question())
    assert reply.status == "timeout"
    assert "did not answer within" in reply.message
    assert 0.3 <= time.monotonic() - began < 30
    assert len(server.asked) <= 2


async def test_a_deadline_of_zero_asks_nothing(server: ModelServer) -> None:
    """A budget that is spent is no reason to wait without one."""
    asking = model(server)
    reply = await asking.ask(question(), deadline=0.0)
    assert (reply.status, reply.usage, server.asked) == ("timeout", Usage(), [])
    # Nor do rankers, and nobody takes the order for ranked.
    for name, asked in (("listwise", 3), ("pairwise", 4)):
        ranking = open_ranker(name, asking, None, RankerOptions(window=2, step=1))
        found = await ranking.rank("q", [RankItem(str(n), "t", "") for n in range(4)], "", 0.0)
        assert (found.order, found.failures) == ((0, 1, 2, 3), {"timeout": asked})
        assert (found.failed, server.asked) == (True, [])


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ("response_format", "response_format is unknown"),
        ("temperature", "Unsupported value: 'temperature' does not support 0.3."),
        ("stream_options", "Unknown parameter: stream_options"),
    ],
)
async def test_a_parameter_that_is_refused_is_left_out_from_then_on(
    server: ModelServer, parameter: str, words: str
) -> None:
    """It is learnt once; the rest of the request stays."""
    streams = parameter == "stream_options"
    good = stream(PIECES, usage=False) if streams else GOOD
    asking, told = model(server), list[str]()
    for requests in (2, 1):
        server.does(lambda asked: failure(400, words) if parameter in asked.body else good)
        if streams:
            reply = await asking.write(question(), on_token=told.append)
        else:
            reply = await asking.ask(question())
        assert (reply.status, len(server.asked)) == ("ok", requests)
    assert {"model", "messages"} <= set(server.asked[0].body)


def test_what_names_no_model_is_refused() -> None:
    for name in ("gpt-4o", "openai:", ":gpt-4o"):
        with pytest.raises(ModelUnavailableError, match="provider:model, such as openai:gpt-4o"):
            ChatModel(name)
    for url in ("localhost:8000", "http://x:99999/v1", "http://[::1/v1"):
        with pytest.raises(ModelUnavailableError, match="base URL"):
            ChatModel("openai:fake", base_url=url)


async def test_what_cannot_be_opened_is_said_in_one_line(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider or the variable is named; a server of one's own needs no key."""
    monkeypatch.delenv("OPENAI_API_KEY")
    for name, words in (("nonesuch:model", "nonesuch"), ("openai:fake", "OPENAI_API_KEY")):
        with pytest.raises(ModelUnavailableError, match=rf"^.*{words}.{{0,300}}$"):
            await ChatModel(name).start()
    server.does(GOOD)
    assert (await model(server).ask(question())).status == "ok"
    assert server.asked[0].headers["authorization"] == "Bearer none"


async def test_a_url_is_shown_without_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:hidden-pass@127.0.0.1:1/v1")
    reply = await ChatModel("openai:fake", attempts=1).ask(question())
    assert reply.status == "unavailable"
    assert "http://127.0.0.1:1/v1" in reply.message
    assert "hidden" not in reply.message


@pytest.mark.promise("agents")
async def test_no_secret_around_us_is_quoted(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server says is repeated without keys.

    A key of any form is cut out of what a server says.
    """
    monkeypatch.setenv("OPENAI_API_KEY", "plainwordsecret")
    server.does(failure(400, "The key plainwordsecret and bearer abc123xyz are bad"))
    reply = await model(server).ask(question())
    assert "(400: The key … and … are bad)" in reply.message


async def test_no_redirect_is_followed(server: ModelServer) -> None:
    """It could lead the documents of a question to a server that nobody configured."""
    elsewhere = server.base_url.replace("/v1", "/elsewhere")
    server.does(Answer(307, b"", {"Location": elsewhere}), GOOD)
    assert (await model(server).ask(question())).status != "ok"
    assert [asked.path for asked in server.asked] == ["/v1/chat/completions"]


@pytest.mark.promise("agents")
@pytest.mark.parametrize("status", [200, 400])
async def test_equal_questions_at_once_are_asked_once(
    server: ModelServer, cache: ReplyCache, gate: threading.Event, status: int
) -> None:
    """Equal questions at once are asked once.

    All who ask the same get the one reply, or the one failure; only one paid for it.
    """
    server.does(Answer(status, GOOD.body if status == 200 else b"{}", gate=gate))
    asking = model(server, cache=cache)
    tasks = [asyncio.create_task(asking.ask(question())) for _ in range(5)]
    await asyncio.to_thread(server.wait_for, 1)
    gate.set()
    replies = await asyncio.gather(*tasks)
    assert {reply.status for reply in replies} == {"ok" if status == 200 else "invalid_request"}
    total = sum((reply.usage for reply in replies), Usage())
    assert total == (Usage(1, 4, 100, 10) if status == 200 else Usage(1))
    assert len(server.asked) == 1


async def test_each_leaves_as_it_likes_and_the_rest_get_the_reply(
    server: ModelServer, cache: ReplyCache, gate: threading.Event
) -> None:
    """At a deadline of one's own, or cancelled, even the first to ask."""
    server.does(says({"n": 1}, gate=gate))
    asking = model(server, cache=cache)
    first = asyncio.create_task(asking.ask(question()))
    await asyncio.to_thread(server.wait_for, 1)
    patient = asyncio.create_task(asking.ask(question()))
    hurried = await asking.ask(question(), deadline=0.05)
    assert (hurried.status, hurried.usage) == ("timeout", Usage())
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.set()
    assert (await patient).status == "ok"
    assert len(server.asked) == 1


FIELDS = {"n": {"type": "integer"}, "m": {"type": "integer"}}
TURNED = dict(reversed(FIELDS.items()))


@pytest.mark.promise("agents")
async def test_a_reply_is_kept_and_a_failure_is_not(server: ModelServer, cache: ReplyCache) -> None:
    """Replies are kept and failures are not.

    The second time costs nothing; we ask again what failed or was no valid object.
    """
    server.does(failure(400), GOOD)
    asking = model(server, cache=cache)
    assert (await asking.ask(question())).status == "invalid_request"
    first = (await asking.ask(question())).usage
    again = (await asking.ask(question())).usage
    assert (first.model_calls, again.model_calls, again.cached_calls) == (1, 0, 1)
    assert again.cached_tokens == first.prompt_tokens + first.completion_tokens == 110
    assert again.cached_milliseconds > 0
    for kept in ('{"other": 1}', '{"reply": {}, "tokens": 1, "milliseconds": 1}'):
        with sqlite3.connect(cache.path) as connection:
            connection.execute("UPDATE kept SET value = ?", (kept,))
        connection.close()
        assert (await asking.ask(question())).usage.model_calls == 1


@pytest.mark.promise("agents")
async def test_different_questions_have_different_keys(
    server: ModelServer, cache: ReplyCache
) -> None:
    """Replies are kept by everything that can change them.

    Also a schema with the same fields in another order, which models follow.
    """
    server.does(GOOD)
    schemas = [{"type": "object", "properties": fields} for fields in (FIELDS, TURNED)]
    changes = [{"seed": 1}, {"temperature": 1.0}, {"max_tokens": 7}]
    changes += [{"schema": schema} for schema in (None, *schemas)]
    options: list[dict[str, Any]] = [
        *({"reasoning_effort": how} for how in ("low", "high")),
        *({"model_kwargs": {"user": user}} for user in "ab"),
        *({"default_headers": {"X-Model": name}} for name in "ab"),
        {"base_url": server.base_url + "/"},
    ]
    asked = [(model(server, cache=cache), question("y"))]
    asked += [(model(server, cache=cache), question(**change)) for change in ({}, *changes)]
    asked += [(model(server, cache=cache, **option), question()) for option in options]
    other = ChatModel("openai:other", base_url=server.base_url, cache=cache)
    for calls in (1, 0):
        for asking, each in [*asked, (other, question())]:
            assert (await asking.ask(each)).usage.model_calls == calls


async def test_texts_objects_and_choices_are_kept_apart(
    server: ModelServer, cache: ReplyCache
) -> None:
    """The same prompt in another form is another question; an empty text is kept too."""
    server.does(GOOD, says(""), scores({"Yes": 0.5, "No": 0.5}))
    asking = model(server, cache=cache)
    for _ in range(2):
        assert (await asking.ask(question())).value == {"n": 1}
        assert (await asking.write(question())).status == "empty"
        assert (await asking.choice_probabilities(question())).probabilities == {
            "Yes": 0.5,
            "No": 0.5,
        }
    assert len(server.asked) == 3
    assert (await asking.choice_probabilities(question(), ("No", "Yes"))).usage.cached_calls == 0


async def test_no_secret_is_in_the_cache(server: ModelServer, cache: ReplyCache) -> None:
    """Whoever gets a new API key need not pay again; headers and addresses are hashed."""
    server.does(GOOD)
    hidden = {
        "base_url": server.base_url.replace("//", "//user:secret@"),
        "default_headers": {"X-Token": "secret"},
    }
    first = model(server, cache=cache, api_key="oldsecret1", **hidden)
    assert (await first.ask(question())).usage.model_calls == 1
    again = model(server, cache=cache, api_key="newsecret2", **hidden | {"timeout": 5.0})
    assert (await again.ask(question())).usage.model_calls == 0
    assert b"secret" not in cache.path.read_bytes()
    assert first.fingerprint == again.fingerprint
    assert re.fullmatch("[0-9a-f]{64}", first.fingerprint)


def test_the_address_in_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys do not; of OpenAI only the address that is used counts, wherever it stands."""
    before = ChatModel("anthropic:x").fingerprint
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hidden")
    assert ChatModel("anthropic:x").fingerprint == before
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://one")
    assert ChatModel("anthropic:x").fingerprint != before
    given = ChatModel("openai:x", base_url="http://one/v1").fingerprint
    assert given != ChatModel("openai:x").fingerprint
    monkeypatch.setenv("OPENAI_BASE_URL", "http://one/v1")
    assert given == ChatModel("openai:x").fingerprint


async def test_pieces_are_told_as_they_come_and_kept(
    server: ModelServer, cache: ReplyCache, gate: threading.Event
) -> None:
    """The first piece is there while the model still writes.

    Who joins is told at the end, who left is told no more, and who comes later is told at once.
    """
    whole = stream(PIECES)
    server.does(stream(PIECES, gate=gate, gate_after=begun(whole, 1)))
    asking = model(server, cache=cache)
    first, second, came = list[str](), list[str](), asyncio.Event()

    def on_token(piece: str) -> None:
        first.append(piece)
        came.set()

    leaving = asyncio.create_task(asking.write(question(), on_token=on_token))
    await asyncio.wait_for(came.wait(), PATIENCE)
    staying = asyncio.create_task(asking.write(question(), on_token=second.append))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.set()
    assert (await staying).status == "ok"
    assert (first, second) == (["Marie"], ["Marie Curie did."])
    later = list[str]()
    assert (await asking.write(question(), on_token=later.append)).usage.cached_calls == 1
    assert later == second
    (asked,) = server.asked
    assert asked.body["stream"] is True
    assert asked.body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("answer", "requests", "status", "told"),
    [
        (stream(PIECES), 1, "ok", "Marie Curie did."),
        (stream(PIECES, "length"), 1, "ok", "Marie Curie did."),
        (stream([" ", "\n", " Marie"]), 1, "ok", "Marie"),
        (stream([" ", "\n"]), 1, "empty", ""),
        (stream(["Ma"], "content_filter"), 1, "refused", "Ma"),
        (failure(500, retry_after="0"), 2, "unavailable", ""),
        # Nobody was told anything, so nothing is lost.
        (stream([" "], None), 2, "unavailable", ""),
    ],
)
async def test_what_becomes_of_a_stream(
    server: ModelServer, answer: Answer, requests: int, status: str, told: str
) -> None:
    """Cut off is an answer, white space is none and is not told, a filter is a refusal."""
    server.does(answer)
    pieces: list[str] = []
    reply = await model(server, attempts=2).write(question(), on_token=pieces.append)
    assert (reply.status, reply.text) == (status, told if status == "ok" else "")
    assert "".join(pieces) == told
    assert len(server.asked) == requests


@pytest.mark.parametrize(
    ("broken", "status"),
    [
        ({"cut_after": begun(stream(PIECES), 2)}, "unavailable"),
        ({"finish_reason": None}, "unavailable"),
        ({"gate": threading.Event(), "gate_after": begun(stream(PIECES), 2)}, "timeout"),
    ],
)
async def test_a_broken_stream_is_not_begun_again(
    server: ModelServer, broken: dict[str, Any], status: str
) -> None:
    """Who was told half a text must not be told another one after it."""
    server.does(stream(PIECES, **broken), stream(["Another."]))
    told: list[str] = []
    asking = model(server, timeout=2.0)
    await asking.start()
    reply = await asking.write(question(), on_token=told.append)
    broken.get("gate", threading.Event()).set()
    assert (reply.status, reply.text) == (status, "")
    assert told == PIECES[: len(told)] != []
    assert len(server.asked) == 1


async def test_the_tokens_of_a_label_are_summed(server: ModelServer) -> None:
    """With a space before it and in another case; what is no label only lowers the mass."""
    tokens = {"Yes": 0.4, " yes": 0.1, "▁YES": 0.1, "No": 0.2, "Maybe": 0.15, "Yesterday": 0.05}
    server.does(scores(tokens), scores({"A": 0.5, "B": 0.3}))
    choice = await model(server).choice_probabilities(question())
    assert (choice.status, choice.usage) == ("ok", Usage(1, 0, 100, 10))
    assert choice.probabilities == pytest.approx({"Yes": 0.75, "No": 0.25})
    assert choice.mass == pytest.approx(0.8)
    body = server.asked[0].body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 10)
    assert body.get("max_completion_tokens", body.get("max_tokens")) == 1
    choice = await model(server).choice_probabilities(question(), ("A", "B", "C"))
    assert choice.probabilities == pytest.approx({"A": 0.625, "B": 0.375, "C": 0.0})


@pytest.mark.parametrize(
    "answer",
    [
        says("Yes"),
        failure(403, "You are not allowed to request logprobs from this model."),
    ],
)
async def test_a_model_without_probabilities_is_asked_once_only(
    server: ModelServer, cache: ReplyCache, answer: Answer
) -> None:
    """It is remembered, so that a caller can ask for JSON from then on."""
    server.does(answer, GOOD)
    asking = model(server, cache=cache)
    for _ in range(2):
        choice = await asking.choice_probabilities(question())
        assert (choice.status, choice.probabilities) == ("unsupported", {})
        assert "does not give the probabilities" in choice.message
    assert len(server.asked) == 1
    assert (await asking.ask(question())).value == {"n": 1}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (failure(403), "denied"),
        (completion({"content": None, "refusal": "No."}), "refused"),
        (scores({"The": 0.9}), "parse_error"),
        # An empty list of tokens is not the same as none.
        (completion({}, choices=[NO_TOKEN]), "parse_error"),
        # llama.cpp gives no probability of a token that is only part of a character.
        (says("\ufffd"), "parse_error"),
    ],
)
async def test_other_failures_are_not_taken_for_that(
    server: ModelServer, answer: Answer, status: str
) -> None:
    """The next question may well be answered with probabilities."""
    server.does(answer, scores({"Yes": 1.0}))
    asking = model(server)
    assert (await asking.choice_probabilities(question())).status == status
    assert (await asking.choice_probabilities(question())).probabilities == {"Yes": 1.0, "No": 0.0}
