"""Asking a chat model: over real HTTP, with a cache on disk."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.question import Question
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.base.telemetry import record_to
from fairqr.prompts.template import Message, PromptTemplate
from tests.integration.model_server import (
    KEY,
    Answer,
    Asked,
    ModelServer,
    clean_environment,
    completion,
    failure,
    model_server,
    says,
)
from tests.patience import PATIENCE

__all__ = ["clean_environment", "model_server"]

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each wait between two attempts, in order."""
    noted: list[float] = []

    async def sleep(seconds: float) -> None:
        noted.append(seconds)
        await asyncio.sleep(seconds)

    monkeypatch.setattr("fairqr.base.retries.asyncio", SimpleNamespace(sleep=sleep))
    return noted


GOOD = says({"n": 1})
PROMPT = PromptTemplate(
    id="refine",
    version="v1",
    description="",
    messages=(Message(role="user", content="About {query}"),),
    input_variables=("query",),
    sha256="0" * 64,
)


def has_n(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(value.get("n"), int):
        raise ValueError("'n': a number is missing")
    return {"n": value["n"]}


def question(query: str = "x", **more: Any) -> Question:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minLength": 1}}}
    return Question(PROMPT, {"query": query}, schema, has_n, **more)


def model(server: ModelServer, **options: Any) -> ChatModel:
    return ChatModel("openai:fake", **{"base_url": server.base_url, "timeout": 10.0, **options})


@pytest.fixture
def cache(tmp_path: Path) -> ReplyCache:
    return ReplyCache(tmp_path / "replies.sqlite")


class TestAsking:
    async def test_a_request_holds_what_was_asked(self, model_server: ModelServer) -> None:
        """Messages, temperature, seed and a schema without bounds arrive, and the key does."""
        model_server.does(GOOD)
        reply = await model(model_server).ask(question(seed=7, temperature=0.0))
        assert (reply.status, reply.value) == ("ok", {"n": 1})
        assert reply.usage == Usage(1, 0, 100, 10)
        (asked,) = model_server.asked
        assert asked.path == "/v1/chat/completions"
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        assert asked.body["messages"] == [{"role": "user", "content": "About x"}]
        assert (asked.body["temperature"], asked.body["seed"]) == (0.0, 7)
        schema = asked.body["response_format"]["json_schema"]["schema"]
        assert schema["properties"] == {"n": {"type": "integer"}}

    async def test_a_wrong_reply_is_answered_with_the_error_once(
        self, model_server: ModelServer
    ) -> None:
        """What is no valid object is asked for again with what is wrong, and both are counted."""
        model_server.does(says('{"m": 1}'), GOOD)
        reply = await model(model_server).ask(question())
        assert (reply.status, reply.usage) == ("ok", Usage(2, 0, 200, 20))
        again = model_server.asked[1].body["messages"]
        assert again[1] == {"role": "assistant", "content": '{"m": 1}'}
        assert "'n': a number is missing" in again[2]["content"]

    @pytest.mark.parametrize(
        ("answer", "requests", "status", "words"),
        [
            (says("prose"), 2, "parse_error", "no whole JSON object"),
            (completion({"content": None}), 2, "parse_error", "no whole JSON object"),
            (says("y" * 5_000_000), 2, "parse_error", "no whole JSON object"),
            (completion({"content": None, "refusal": "No."}), 1, "refused", "declined to answer"),
            (completion({"content": ""}, "content_filter"), 1, "refused", "declined to answer"),
            (completion({}, choices=[]), 1, "parse_error", "not send a chat completion"),
            (completion({}, choices=None), 1, "parse_error", "not send a chat completion"),
            (Answer(body=b"<html>", content_type="text/html"), 1, "parse_error", "the base URL"),
            (Answer(body=b"<html>"), 1, "parse_error", "not send a chat completion"),
            (Answer(body=b""), 1, "parse_error", "not send a chat completion"),
            (failure(401, f"Wrong key {KEY}"), 1, "refused", "refused the API key (401)"),
            (failure(403), 1, "refused", "refused the API key (403)"),
            (failure(400, f"No: {KEY}."), 1, "invalid_request", "(400: No: …)"),
            (failure(404, "No such model."), 1, "invalid_request", "(404: No such model)"),
            (failure(501), 1, "unavailable", "(501)"),
            (failure(500), 2, "unavailable", "(500); try later"),
            (failure(503), 2, "unavailable", "(503); try later"),
            (failure(408), 2, "timeout", "did not answer in time"),
            (failure(429), 2, "rate_limited", "too many requests"),
            (failure(429, retry_after="3600"), 1, "rate_limited", "too many requests"),
            (failure(429, code="insufficient_quota"), 1, "rate_limited", "no quota left"),
            (says({"n": 1}, cut_after=20), 2, "unavailable", "broke off"),
        ],
    )
    async def test_each_failure_is_typed_and_explained(
        self, model_server: ModelServer, answer: Answer, requests: int, status: str, words: str
    ) -> None:
        """Tried again is only what can heal; the reply says in a sentence what is wrong."""
        model_server.does(answer)
        reply = await model(model_server, attempts=2).ask(question())
        assert (reply.status, len(model_server.asked)) == (status, requests)
        assert words in reply.message
        assert KEY not in reply.message
        assert re.fullmatch(r"The model openai:fake [^\n]{5,300}\.", reply.message)
        assert reply.usage.model_calls >= 1

    async def test_retry_after_is_waited_for(
        self, model_server: ModelServer, waits: list[float]
    ) -> None:
        """In seconds or as a date, the server's wish counts, and not our own idea of a wait."""
        model_server.does(failure(429, retry_after="0.2"), failure(503, retry_after="0"), GOOD)
        assert (await model(model_server).ask(question())).status == "ok"
        first, second, _ = (asked.at for asked in model_server.asked)
        assert second - first >= 0.2
        assert waits == [0.2, 0]  # our own waits would be at least 0.5 s, and then 1 s

    async def test_a_date_long_gone_is_no_wait(
        self, model_server: ModelServer, waits: list[float]
    ) -> None:
        """The header's other form is understood too."""
        model_server.does(failure(503, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"), GOOD)
        assert (await model(model_server).ask(question())).status == "ok"
        assert len(model_server.asked) == 2
        assert waits == [0]

    async def test_a_wait_beyond_the_limit_is_not_begun(self, model_server: ModelServer) -> None:
        """Where the wait would outlast the time that is left, the true reason is told at once."""
        model_server.does(failure(429, retry_after="60"))
        begun = time.monotonic()
        reply = await model(model_server).ask(question(), deadline=20)
        assert reply.status == "rate_limited"
        assert time.monotonic() - begun < 30

    @pytest.mark.parametrize("answer", [Answer(never=True), says({"n": 1}, drip=0.05)])
    async def test_a_model_that_does_not_answer_is_given_up(
        self, model_server: ModelServer, answer: Answer
    ) -> None:
        """Silence and a drip end after the timeout, not when the server pleases."""
        model_server.does(answer)
        begun = time.monotonic()
        reply = await model(model_server, timeout=0.3).ask(question())
        assert reply.status == "timeout"
        assert "did not answer within" in reply.message
        assert 0.3 <= time.monotonic() - begun < 30
        assert len(model_server.asked) <= 2

    @pytest.mark.parametrize("cached", [True, False])
    async def test_a_deadline_of_zero_asks_nothing(
        self, model_server: ModelServer, cache: ReplyCache, cached: bool
    ) -> None:
        """A budget that is spent is no reason to wait without one."""
        model_server.does(Answer(never=True))
        asking = model(model_server, cache=cache if cached else None)
        begun = time.monotonic()
        assert (await asking.ask(question(), deadline=0.0)).status == "timeout"
        assert time.monotonic() - begun < 20


class TestWhatServersRefuse:
    async def test_a_server_without_schemas_is_asked_without(
        self, model_server: ModelServer
    ) -> None:
        """It is learnt once, by all who ask at the same time, and then remembered."""

        def plain_only(asked: Asked) -> Answer:
            return failure(400, "response_format is unknown") if asked.wants_schema else GOOD

        model_server.does(plain_only)
        asking = model(model_server)
        replies = await asyncio.gather(*(asking.ask(question(str(n))) for n in range(4)))
        assert {reply.status for reply in replies} == {"ok"}
        assert len(model_server.asked) <= 8
        model_server.does(plain_only)
        assert (await asking.ask(question("later"))).status == "ok"
        assert len(model_server.asked) == 1

    async def test_a_model_without_temperature_is_asked_without(
        self, model_server: ModelServer
    ) -> None:
        """Reasoning models refuse it; the rest of the request stays."""

        def no_temperature(asked: Asked) -> Answer:
            if "temperature" in asked.body:
                return failure(400, "Unsupported value: 'temperature' does not support 0.3.")
            return GOOD if asked.wants_schema else failure(500)

        model_server.does(no_temperature)
        assert (await model(model_server).ask(question())).status == "ok"
        assert len(model_server.asked) == 2

    async def test_a_400_for_another_reason_is_final(self, model_server: ModelServer) -> None:
        """A server that always complains about the schema is not asked for ever."""
        model_server.does(failure(400, "response_format: no"))
        assert (await model(model_server).ask(question())).status == "invalid_request"
        assert len(model_server.asked) == 2


class TestNames:
    @pytest.mark.parametrize("name", ["", "gpt-4o", "openai:", ":gpt-4o"])
    def test_a_name_needs_provider_and_model(self, name: str) -> None:
        """What is no name is refused before anything is opened."""
        with pytest.raises(ModelUnavailableError, match=r"provider:model, such as openai:gpt-4o"):
            ChatModel(name)

    async def test_an_unknown_provider_is_refused_at_the_start(self) -> None:
        """The sentence is one line, however much the library has to say."""
        with pytest.raises(ModelUnavailableError, match="nonesuch") as caught:
            await ChatModel("nonesuch:model").start()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400

    async def test_a_missing_key_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The variable to set is in the sentence."""
        monkeypatch.delenv("OPENAI_API_KEY")
        with pytest.raises(ModelUnavailableError, match="OPENAI_API_KEY"):
            await ChatModel("openai:fake").start()

    async def test_a_server_of_ones_own_needs_no_key(
        self, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is sent in its place is no secret."""
        monkeypatch.delenv("OPENAI_API_KEY")
        model_server.does(GOOD)
        assert (await model(model_server).ask(question())).status == "ok"
        assert model_server.asked[0].headers["authorization"] == "Bearer none"

    @pytest.mark.parametrize(
        "url", ["localhost:8000", "ftp://x/v1", "http://", "http://x:99999/v1", "http://[::1/v1"]
    )
    def test_a_url_is_checked(self, url: str) -> None:
        """A URL that no client can use is refused when it is given."""
        with pytest.raises(ModelUnavailableError, match="base URL"):
            ChatModel("openai:fake", base_url=url)

    @pytest.mark.parametrize("timeout", [0, -1, float("nan")])
    def test_a_timeout_is_positive(self, timeout: float) -> None:
        """Nobody waits for less than nothing."""
        with pytest.raises(InputError, match="timeout"):
            ChatModel("openai:fake", timeout=timeout)

    async def test_the_configured_url_is_used_and_shown_without_credentials(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """OPENAI_BASE_URL counts, and a password in it is not shown."""
        monkeypatch.setenv("OPENAI_BASE_URL", "http://me:hidden-pass@127.0.0.1:1/v1")
        reply = await ChatModel("openai:fake", attempts=1).ask(question())
        assert reply.status == "unavailable"
        assert "http://127.0.0.1:1/v1" in reply.message
        assert "hidden" not in reply.message

    async def test_no_secret_around_us_is_quoted(
        self, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A key of any form is cut out of what a server says."""
        monkeypatch.setenv("OPENAI_API_KEY", "plainwordsecret")
        model_server.does(failure(400, "The key plainwordsecret and bearer abc123xyz are bad"))
        reply = await model(model_server).ask(question())
        assert "(400: The key … and … are bad)" in reply.message


class TestSharing:
    async def test_equal_questions_at_once_are_asked_once(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """All who ask the same get the one reply; only one of them paid for it."""
        gate = threading.Event()
        model_server.does(says({"n": 1}, gate=gate))
        asking = model(model_server, cache=cache)
        tasks = [asyncio.create_task(asking.ask(question())) for _ in range(5)]
        await asyncio.to_thread(model_server.wait_for, 1)
        gate.set()
        replies = await asyncio.gather(*tasks)
        assert [reply.value for reply in replies] == [{"n": 1}] * 5
        assert sum((reply.usage for reply in replies), Usage()) == Usage(1, 4, 100, 10)
        assert len(model_server.asked) == 1

    async def test_a_failure_is_shared_too(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """A model that fails is not asked again by each of those who wait."""
        gate = threading.Event()
        model_server.does(Answer(400, failure(400).body, gate=gate))
        asking = model(model_server, cache=cache)
        tasks = [asyncio.create_task(asking.ask(question())) for _ in range(5)]
        await asyncio.to_thread(model_server.wait_for, 1)
        gate.set()
        assert {r.status for r in await asyncio.gather(*tasks)} == {"invalid_request"}
        assert len(model_server.asked) == 1

    async def test_each_gives_up_at_its_own_deadline(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """Who has no time leaves; who can wait gets the reply to the same request."""
        gate = threading.Event()
        model_server.does(says({"n": 1}, gate=gate))
        asking = model(model_server, cache=cache)
        patient = asyncio.create_task(asking.ask(question()))
        await asyncio.to_thread(model_server.wait_for, 1)
        assert (await asking.ask(question(), deadline=0.05)).status == "timeout"
        gate.set()
        assert (await patient).status == "ok"
        assert len(model_server.asked) == 1

    async def test_one_who_is_cancelled_takes_nobody_along(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """The first to ask may go; the request goes on while somebody waits."""
        gate = threading.Event()
        model_server.does(says({"n": 1}, gate=gate))
        asking = model(model_server, cache=cache)
        first = asyncio.create_task(asking.ask(question()))
        await asyncio.to_thread(model_server.wait_for, 1)
        second = asyncio.create_task(asking.ask(question()))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.set()
        assert (await second).status == "ok"
        assert len(model_server.asked) == 1

    def test_a_model_serves_several_event_loops(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """Threads with a loop of their own may ask the same at the same time."""
        gate = threading.Event()
        model_server.does(says({"n": 1}, gate=gate))
        asking = model(model_server, cache=cache)
        statuses: list[str] = []

        def ask() -> None:
            statuses.append(asyncio.run(asking.ask(question())).status)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        model_server.wait_for(2)
        gate.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert statuses == ["ok", "ok"]


class TestCache:
    async def test_a_reply_is_kept_and_a_failure_is_not(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """The second time costs nothing; what failed is asked anew."""
        model_server.does(failure(400), GOOD)
        asking = model(model_server, cache=cache)
        assert (await asking.ask(question())).status == "invalid_request"
        first = (await asking.ask(question())).usage
        assert first.model_calls == 1
        again = (await asking.ask(question())).usage
        assert (again.model_calls, again.cached_calls) == (0, 1)
        assert (again.prompt_tokens, again.completion_tokens) == (0, 0)
        assert again.cached_tokens == first.prompt_tokens + first.completion_tokens > 0
        assert again.cached_milliseconds > 0
        assert len(model_server.asked) == 2

    async def test_a_kept_reply_that_is_not_valid_is_asked_anew(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """What another version or a damaged file holds is checked like a model's reply."""
        model_server.does(GOOD)
        asking = model(model_server, cache=cache)
        await asking.ask(question())
        with sqlite3.connect(cache.path) as connection:
            connection.execute("UPDATE kept SET value = '{\"other\": 1}'")
        connection.close()
        assert (await asking.ask(question())).value == {"n": 1}
        assert len(model_server.asked) == 2

    async def test_different_questions_have_different_keys(
        self, model_server: ModelServer, cache: ReplyCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another query, seed, temperature, model or server is another question."""
        model_server.does(GOOD)
        url = model_server.base_url
        one = model(model_server, cache=cache)
        other = ChatModel("openai:other", base_url=url, cache=cache)
        monkeypatch.setenv("OPENAI_BASE_URL", url + "/")
        configured = ChatModel("openai:fake", cache=cache)
        for asking, asked in [
            (one, question()),
            (one, question("y")),
            (one, question(seed=1)),
            (one, question(temperature=1.0)),
            (other, question()),
            (configured, question()),
        ]:
            assert (await asking.ask(asked)).usage.model_calls == 1

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({}, {"reasoning_effort": "high"}),
            ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}),
            ({"top_p": 0.1}, {"top_p": 0.9}),
            ({"model_kwargs": {"user": "a"}}, {"model_kwargs": {"user": "b"}}),
            ({"default_headers": {"X-Model": "a"}}, {"default_headers": {"X-Model": "b"}}),
        ],
    )
    async def test_models_with_other_options_share_no_replies(
        self,
        model_server: ModelServer,
        cache: ReplyCache,
        one: dict[str, Any],
        other: dict[str, Any],
    ) -> None:
        """Each is asked once; a model that is opened again with the same options is not asked."""
        model_server.does(says({"n": 1}), says({"n": 2}))
        for options, n, calls in [(one, 1, 1), (other, 2, 1), (one, 1, 0), (other, 2, 0)]:
            reply = await model(model_server, cache=cache, **options).ask(question())
            assert (reply.value, reply.usage.model_calls) == ({"n": n}, calls)

    async def test_a_key_or_a_timeout_changes_no_reply(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """Whoever gets a new API key need not pay again, and no key is in the file."""
        model_server.does(GOOD)
        first = model(model_server, cache=cache, api_key="oldsecret1")
        assert (await first.ask(question())).usage.model_calls == 1
        again = model(model_server, cache=cache, api_key="newsecret2", timeout=5.0)
        assert (await again.ask(question())).usage.model_calls == 0
        cache.close()
        assert b"secret" not in cache.path.read_bytes()
        assert first.fingerprint == again.fingerprint
        assert re.fullmatch("[0-9a-f]{64}", first.fingerprint)

    async def test_a_secret_in_a_header_or_an_address_is_hashed(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        model_server.does(GOOD)
        url = model_server.base_url.replace("//", "//user:secret@")
        asking = model(
            model_server, cache=cache, base_url=url, default_headers={"X-Token": "secret"}
        )
        assert (await asking.ask(question())).status == "ok"
        cache.close()
        assert b"secret" not in cache.path.read_bytes()
        assert "secret" not in asking.fingerprint

    async def test_another_schema_or_length_is_another_question(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """Also a schema with the same fields in another order, which models follow."""
        model_server.does(GOOD)
        asking = model(model_server, cache=cache)
        fields = {"n": {"type": "integer"}, "m": {"type": "integer"}}
        turned = dict(reversed(fields.items()))
        for asked in [
            question(),
            question(max_tokens=7),
            Question(PROMPT, {"query": "x"}, {"type": "object", "properties": fields}, has_n),
            Question(PROMPT, {"query": "x"}, {"type": "object", "properties": turned}, has_n),
            Question(PROMPT, {"query": "x"}, None, has_n),
        ]:
            assert (await asking.ask(asked)).usage.model_calls == 1
            assert (await asking.ask(asked)).usage.model_calls == 0


class TestTraces:
    async def test_content_is_recorded_only_when_asked(
        self, model_server: ModelServer, tmp_path: Path
    ) -> None:
        """Tokens and the prompt's hash always; texts by a wish; the key never."""
        for content in (False, True):
            model_server.does(failure(500), says({"n": 1, "note": "private"}))
            with record_to(tmp_path / "t", content=content):
                await model(model_server).ask(question("private matter"))
            written = (tmp_path / "t").read_text()
            assert ("private matter" in written) is content
            assert KEY not in written
            (span,) = map(json.loads, written.splitlines())
            assert span["name"] == "chat fake"
            assert span["attributes"]["gen_ai.usage.input_tokens"] == 100
            assert span["attributes"]["fairqr.prompt.sha256"] == "0" * 64
            assert span["events"][0]["attributes"]["fairqr.attempt"] == 1

    async def test_a_reply_that_utf8_cannot_hold_is_recorded(
        self, model_server: ModelServer, tmp_path: Path
    ) -> None:
        """Half a surrogate pair ends neither the run nor the trace."""
        model_server.does(says('{"n": 1, "x": "\ud800"}'))
        with record_to(tmp_path / "t", content=True):
            assert (await model(model_server).ask(question())).status == "ok"
        assert json.loads((tmp_path / "t").read_text())["attributes"]["fairqr.status"] == "ok"
