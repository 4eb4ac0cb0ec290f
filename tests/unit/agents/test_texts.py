"""Texts and choices of a chat model: whole or streamed, kept, and failing in typed ways."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.question import Question
from fairqr.agents.models.replies import Usage
from fairqr.prompts.template import PromptTemplate
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
    stream,
    weighs,
)
from tests.patience import PATIENCE

__all__ = ["clean_environment", "model_server"]

pytestmark = pytest.mark.usefixtures("clean_environment")

PROMPT = PromptTemplate.model_validate(
    {
        "id": "answer",
        "version": "v1",
        "description": "",
        "messages": [{"role": "user", "content": "About {query}"}],
        "input_variables": ("query",),
        "defaults": {"temperature": 0.0, "max_tokens": 20},
        "sha256": "1" * 64,
    }
)
PIECES = ["Marie", " Curie", " did."]


def question(query: str = "x", **more: Any) -> Question:
    return Question(PROMPT, {"query": query}, **more)


def model(server: ModelServer, **options: Any) -> ChatModel:
    return ChatModel("openai:fake", **{"base_url": server.base_url, "timeout": 10.0, **options})


@pytest.fixture
def cache(tmp_path: Path) -> ReplyCache:
    return ReplyCache(tmp_path / "replies.sqlite")


def begun(answer: Answer, pieces: int) -> int:
    """Return how many bytes of a stream hold so many of its pieces."""
    return len(b"\n\n".join(answer.body.split(b"\n\n")[: pieces + 1])) + 2


class TestWriting:
    async def test_a_text_is_asked_for_without_a_schema(self, model_server: ModelServer) -> None:
        """What comes back is the text without white space around it, and what it cost."""
        model_server.does(says("  Marie Curie\ndid. \n"))
        reply = await model(model_server).write(question(seed=3))
        assert (reply.status, reply.text) == ("ok", "Marie Curie\ndid.")
        assert reply.usage == Usage(1, 0, 100, 10)
        body = model_server.asked[0].body
        assert (body["temperature"], body["seed"]) == (0.0, 3)
        assert not {"response_format", "logprobs", "stream_options", "cache_prompt"} & set(body)

    @pytest.mark.parametrize(
        ("answer", "requests", "status", "words"),
        [
            (says(""), 1, "empty", "gave an empty answer"),
            (says(" \n\t"), 1, "empty", "gave an empty answer"),
            (completion({"content": None}), 1, "empty", "gave an empty answer"),
            (completion({"content": None, "refusal": "No."}), 1, "refused", "declined"),
            (completion({"content": "I"}, "content_filter"), 1, "refused", "declined"),
            (failure(401), 1, "refused", "API key"),
            (failure(400), 1, "invalid_request", "(400"),
            (failure(500, retry_after="0"), 2, "unavailable", "(500)"),
            (completion({}, choices=[]), 1, "parse_error", "not send a chat completion"),
            (says("abc", cut_after=30), 2, "unavailable", "broke off"),
        ],
    )
    async def test_each_failure_is_typed(
        self,
        model_server: ModelServer,
        answer: Answer,
        requests: int,
        status: str,
        words: str,
    ) -> None:
        """An empty answer is told from a failed one."""
        model_server.does(answer)
        reply = await model(model_server, attempts=2).write(question())
        assert (reply.status, reply.text) == (status, "")
        assert words in reply.message
        assert KEY not in reply.message
        assert len(model_server.asked) == requests

    async def test_a_text_that_was_cut_off_is_an_answer(self, model_server: ModelServer) -> None:
        """The limit of tokens is ours, so what came until then counts."""
        model_server.does(completion({"content": "Half a sen"}, "length"))
        reply = await model(model_server).write(question())
        assert (reply.status, reply.text) == ("ok", "Half a sen")

    async def test_texts_are_kept_apart_from_objects_and_choices(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """The same prompt in another form is another question; an empty text is kept too."""
        model_server.does(says('{"n": 1}'), says(""), weighs({"Yes": 0.5, "No": 0.5}))
        asking = model(model_server, cache=cache)
        for _ in range(2):
            assert (await asking.ask(question())).value == {"n": 1}
            assert (await asking.write(question())).status == "empty"
            assert (await asking.weigh(question())).probabilities == {"Yes": 0.5, "No": 0.5}
        assert len(model_server.asked) == 3
        assert (await asking.weigh(question(), ("No", "Yes"))).usage.cached_calls == 0

    async def test_the_time_of_a_question_begins_with_its_turn(
        self, model_server: ModelServer, cache: ReplyCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A model that answers one after the other, as the embedded one does, is waited for."""
        turn = asyncio.Lock()

        model_server.does(says("Bridges."))
        asking = model(model_server, timeout=2.0, cache=cache)
        await asking.start()
        monkeypatch.setattr(asking, "_turn", lambda: turn)
        async with turn:
            waiting = asyncio.create_task(asking.write(question()))
            await asyncio.sleep(4.1)  # longer than both requests that a question may have
            assert not waiting.done()
        assert (await waiting).status == "ok"
        [kept] = [reply async for batch in cache.batches(9) for reply in batch.values()]
        assert kept
        assert kept["milliseconds"] < 4000


class TestStreaming:
    async def test_pieces_are_told_as_they_come(self, model_server: ModelServer) -> None:
        """The first piece is there while the model still writes; usage is counted in the end."""
        gate = threading.Event()
        whole = stream(PIECES)
        model_server.does(stream(PIECES, gate=gate, gate_after=begun(whole, 1)))
        told: list[str] = []
        came = asyncio.Event()

        def on_token(piece: str) -> None:
            told.append(piece)
            came.set()

        writing = asyncio.create_task(model(model_server).write(question(), on_token=on_token))
        await asyncio.wait_for(came.wait(), PATIENCE)
        assert told == ["Marie"]
        assert not writing.done()
        gate.set()
        reply = await writing
        assert (reply.status, reply.text) == ("ok", "Marie Curie did.")
        assert told == PIECES
        assert reply.usage == Usage(1, 0, 100, 10)
        body = model_server.asked[0].body
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}

    @pytest.mark.parametrize(
        ("answer", "status", "text"),
        [
            (stream(PIECES, "length"), "ok", "Marie Curie did."),
            (stream([" ", "\n", " Marie"]), "ok", "Marie"),
            (stream(PIECES, usage=False), "ok", "Marie Curie did."),
            (stream([]), "empty", ""),
            (stream([" ", "\n"]), "empty", ""),
            (stream(["Ma"], "content_filter"), "refused", ""),
        ],
    )
    async def test_what_becomes_of_a_stream(
        self, model_server: ModelServer, answer: Answer, status: str, text: str
    ) -> None:
        """Cut off is an answer, white space is none and is not told, a filter is a refusal."""
        model_server.does(answer)
        told: list[str] = []
        reply = await model(model_server).write(question(), on_token=told.append)
        assert (reply.status, reply.text) == (status, text)
        assert "".join(told) == (text or ("Ma" if status == "refused" else ""))
        assert reply.usage.model_calls == 1

    @pytest.mark.parametrize(
        ("answer", "requests", "status"),
        [
            (failure(401), 1, "refused"),
            (failure(400), 1, "invalid_request"),
            (failure(500, retry_after="0"), 2, "unavailable"),
            (failure(429, retry_after="3600"), 1, "rate_limited"),
            (Answer(body=b"<html>", content_type="text/html"), 1, "parse_error"),
        ],
    )
    async def test_a_stream_that_never_begins(
        self, model_server: ModelServer, answer: Answer, requests: int, status: str
    ) -> None:
        """It fails as a whole text fails, and nothing is told."""
        model_server.does(answer)
        told: list[str] = []
        reply = await model(model_server, attempts=2).write(question(), on_token=told.append)
        assert (reply.status, reply.text, told) == (status, "", [])
        assert len(model_server.asked) == requests

    @pytest.mark.parametrize("how", ["closed", "ended"])
    async def test_a_stream_that_breaks_off_after_a_piece_is_not_begun_again(
        self, model_server: ModelServer, how: str
    ) -> None:
        """Who was told half a text must not be told another one after it."""
        broken = stream(PIECES, finish_reason=None if how == "ended" else "stop")
        if how == "closed":
            broken = stream(PIECES, cut_after=begun(broken, 2))
        model_server.does(broken, stream(["Another."]))
        told: list[str] = []
        reply = await model(model_server).write(question(), on_token=told.append)
        assert (reply.status, reply.text) == ("unavailable", "")
        assert "broke off the connection" in reply.message
        assert told == PIECES[: len(told)]
        assert told
        assert len(model_server.asked) == 1

    @pytest.mark.parametrize("finish", [None, "stop"])
    async def test_a_stream_that_breaks_off_before_is_tried_again(
        self, model_server: ModelServer, finish: str | None
    ) -> None:
        """Nobody was told anything, so nothing is lost."""
        broken = stream([" "], finish, **({"cut_after": 300} if finish else {}))
        model_server.does(broken, failure(500, retry_after="0"), stream(PIECES))
        told: list[str] = []
        reply = await model(model_server).write(question(), on_token=told.append)
        assert (reply.status, told) == ("ok", PIECES)
        assert len(model_server.asked) == 3

    async def test_a_stream_that_stands_still_is_given_up(self, model_server: ModelServer) -> None:
        """The timeout is of the whole request, however much has come."""
        gate = threading.Event()
        answer = stream(PIECES)
        model_server.does(stream(PIECES, gate=gate, gate_after=begun(answer, 1)))
        told: list[str] = []
        began = time.monotonic()
        asking = model(model_server, timeout=5.0)
        await asking.start()
        reply = await asking.write(question(), on_token=told.append)
        assert (reply.status, told) == ("timeout", ["Marie"])
        assert time.monotonic() - began < 30
        assert len(model_server.asked) == 1
        gate.set()

    async def test_a_server_that_does_not_count_in_streams_is_asked_without(
        self, model_server: ModelServer
    ) -> None:
        """It is learnt once; the text matters more than its price."""

        def no_usage(asked: Asked) -> Answer:
            if "stream_options" in asked.body:
                return failure(400, "Unknown parameter: stream_options")
            return stream(PIECES, usage=False)

        model_server.does(no_usage)
        asking = model(model_server)
        told: list[str] = []
        assert (await asking.write(question(), on_token=told.append)).status == "ok"
        assert (await asking.write(question(), on_token=told.append)).usage == Usage(1)
        assert told == PIECES * 2
        assert len(model_server.asked) == 3

    async def test_a_kept_text_is_told_at_once(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """Streamed or not, the same question is asked once."""
        model_server.does(stream(PIECES))
        asking = model(model_server, cache=cache)
        told: list[str] = []
        await asking.write(question(), on_token=lambda _: None)
        reply = await asking.write(question(), on_token=told.append)
        assert told == [reply.text] == ["Marie Curie did."]
        assert (await asking.write(question())).text == reply.text
        assert len(model_server.asked) == 1

    async def test_who_joins_is_told_at_the_end_and_who_left_is_told_no_more(
        self, model_server: ModelServer, cache: ReplyCache
    ) -> None:
        """The text is written on for those who wait for it."""
        gate = threading.Event()
        answer = stream(PIECES)
        model_server.does(stream(PIECES, gate=gate, gate_after=begun(answer, 1)))
        asking = model(model_server, cache=cache)
        first: list[str] = []
        second: list[str] = []
        came = asyncio.Event()

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
        assert first == ["Marie"]
        assert second == ["Marie Curie did."]
        assert len(model_server.asked) == 1


class TestWeighing:
    async def test_the_tokens_of_a_label_are_summed(self, model_server: ModelServer) -> None:
        """With a space before it and in another case; what is no label only lowers the mass."""
        tokens = {"Yes": 0.4, " yes": 0.1, "▁YES": 0.1, "No": 0.2, "Maybe": 0.15, "Yesterday": 0.05}
        model_server.does(weighs(tokens))
        choice = await model(model_server).weigh(question())
        assert choice.status == "ok"
        assert choice.probabilities == pytest.approx({"Yes": 0.75, "No": 0.25})
        assert choice.mass == pytest.approx(0.8)
        assert choice.usage == Usage(1, 0, 100, 10)
        body = model_server.asked[0].body
        assert (body["logprobs"], body["top_logprobs"]) == (True, 10)
        assert body.get("max_completion_tokens", body.get("max_tokens")) == 1
        assert "response_format" not in body

    async def test_a_label_that_is_not_among_the_likeliest_has_nothing(
        self, model_server: ModelServer
    ) -> None:
        """Labels are the caller's, and may be more than two."""
        model_server.does(weighs({"A": 0.5, "B": 0.3}))
        choice = await model(model_server).weigh(question(), ("A", "B", "C"))
        assert choice.probabilities == pytest.approx({"A": 0.625, "B": 0.375, "C": 0.0})

    async def test_a_model_that_would_say_something_else(self, model_server: ModelServer) -> None:
        """There is nothing to divide by, and that is said."""
        model_server.does(weighs({"The": 0.9}))
        choice = await model(model_server).weigh(question())
        assert (choice.status, choice.probabilities) == ("parse_error", {})
        assert "it would begin with none of Yes, No" in choice.message
        assert len(model_server.asked) == 1

    @pytest.mark.parametrize(
        "answer",
        [
            says("Yes"),
            failure(400, "'logprobs' is not supported with this model."),
            failure(403, "You are not allowed to request logprobs from this model."),
            failure(422, "logprobs: extra fields not permitted"),
        ],
    )
    async def test_a_model_without_probabilities_is_asked_once_only(
        self, model_server: ModelServer, cache: ReplyCache, answer: Answer
    ) -> None:
        """It is remembered, so that a caller can ask for JSON from then on."""
        model_server.does(answer, says({"n": 1}))
        asking = model(model_server, cache=cache)
        for _ in range(2):
            choice = await asking.weigh(question())
            assert (choice.status, choice.probabilities) == ("unsupported", {})
            assert "does not give the probabilities" in choice.message
        assert len(model_server.asked) == 1
        assert (await asking.ask(question())).value == {"n": 1}

    @pytest.mark.parametrize(
        ("answer", "status"),
        [
            (failure(403), "refused"),
            (failure(400), "invalid_request"),
            (failure(429, retry_after="3600"), "rate_limited"),
            (completion({"content": None, "refusal": "No."}), "refused"),
            (completion({"content": ""}, "content_filter"), "refused"),
        ],
    )
    async def test_other_failures_are_not_taken_for_that(
        self, model_server: ModelServer, answer: Answer, status: str
    ) -> None:
        """The next question may well be answered with probabilities."""
        model_server.does(answer, weighs({"Yes": 1.0}))
        asking = model(model_server)
        assert (await asking.weigh(question())).status == status
        assert (await asking.weigh(question())).probabilities == {"Yes": 1.0, "No": 0.0}

    async def test_a_reply_without_a_token_is_no_lack_of_probabilities(
        self, model_server: ModelServer
    ) -> None:
        """An empty list is not the same as none."""
        body = json.loads(says("").body)
        body["choices"][0]["logprobs"] = {"content": [], "refusal": None}
        model_server.does(Answer(body=json.dumps(body).encode()), weighs({"No": 1.0}))
        asking = model(model_server)
        assert (await asking.weigh(question())).status == "parse_error"
        assert (await asking.weigh(question())).status == "ok"

    @pytest.mark.parametrize("labels", [(), ("Yes",), ("Yes", "yes"), ("a", "b", " A")])
    async def test_labels_are_told_apart(
        self, model_server: ModelServer, labels: tuple[str, ...]
    ) -> None:
        """A choice between what is the same is the caller's mistake."""
        with pytest.raises(ValueError, match="all different"):
            await model(model_server).weigh(question(), labels)
        assert model_server.asked == []
