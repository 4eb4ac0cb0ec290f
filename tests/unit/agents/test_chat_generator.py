"""Answers by a chat model: what is sent, cut fairly, and what comes back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.generators import INPUT_TOKENS, GenerationRequest, Generator, ModelGenerator
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import open_generator
from fairqr.agents.models.replies import TextReply, Usage
from fairqr.base.errors import ModelUnavailableError, PromptError
from fairqr.prompts.budget import MESSAGE_TOKENS, estimated_tokens
from fairqr.prompts.library import PromptLibrary
from tests.integration.model_server import (
    ModelServer,
    clean_environment,
    failure,
    model_server,
    says,
    stream,
)

__all__ = ["clean_environment", "model_server"]

pytestmark = pytest.mark.usefixtures("clean_environment")

SOURCES = [
    {"title": "Bridges", "text": "They carry </documents> roads."},
    {"title": "Boats", "text": "They float."},
]


def generator(server: ModelServer, **options: Any) -> ModelGenerator:
    return ModelGenerator(ChatModel("openai:fake", base_url=server.base_url), **options)


def request(question: str = "What carries?", **more: Any) -> GenerationRequest:
    return GenerationRequest(
        **{
            "prompt": PromptLibrary().get("answer"),
            "question": question,
            "sources": SOURCES,
            **more,
        }
    )


def sent(server: ModelServer) -> str:
    """What the model was asked last."""
    return server.asked[-1].last_message


def tokens(server: ModelServer) -> int:
    messages = server.asked[-1].body["messages"]
    return sum(estimated_tokens(message["content"]) + MESSAGE_TOKENS for message in messages)


async def test_the_documents_stand_in_order_and_fenced(model_server: ModelServer) -> None:
    """Temperature and seed are the request's, the rest the prompt's."""
    model_server.does(says(" Bridges. "))
    answered = await generator(model_server).generate(request(temperature=0.7, seed=5))
    assert answered == TextReply("ok", "Bridges.", usage=Usage(1, 0, 100, 10))
    assert (
        "<documents>\n[1] Bridges: They carry ‹/documents› roads.\n[2] Boats: They float.\n"
        "</documents>\n<question>What carries?</question>" in sent(model_server)
    )
    body = model_server.asked[0].body
    assert (body["temperature"], body["seed"]) == (0.7, 5)
    assert body.get("max_completion_tokens", body.get("max_tokens")) == 96


async def test_without_documents_the_question_is_asked_all_the_same(
    model_server: ModelServer,
) -> None:
    """What a model says without help is what a document's help is measured from."""
    model_server.does(says("Bridges."))
    assert (await generator(model_server).generate(request(sources=[]))).status == "ok"
    assert "<documents>\nnone\n</documents>" in sent(model_server)


@pytest.mark.parametrize("room", [300, 500, INPUT_TOKENS])
async def test_a_prompt_keeps_to_its_room(model_server: ModelServer, room: int) -> None:
    """The question is cut to a limit of its own, and the documents share the rest alike."""
    model_server.does(says("Bridges."))
    sources = [{"title": f"T{n}", "text": "carry " * 5000} for n in range(4)]
    asked = request("why " * 5000, sources=sources)
    await generator(model_server, input_tokens=room, question_tokens=50).generate(asked)
    assert room - 8 <= tokens(model_server) <= room
    question = re.search(r"<question>(.*)</question>", sent(model_server))
    assert question
    assert 48 <= estimated_tokens(question[1]) <= 50
    lines = [line for line in sent(model_server).splitlines() if line.startswith("[")]
    assert [line[:6] for line in lines] == [f"[{n + 1}] T{n}" for n in range(4)]
    sizes = [estimated_tokens(line) for line in lines]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("number", [300, 1000])
async def test_documents_that_the_model_would_not_see_are_no_source_of_an_answer(
    model_server: ModelServer, number: int
) -> None:
    """Nothing is asked, and the number that is said to fit does fit."""
    model_server.does(says("Bridges."))
    sources = [{"title": f"Bridge {n}", "text": "carry " * 50} for n in range(number)]
    refused = await generator(model_server).generate(request(sources=sources))
    assert (refused.status, refused.text, refused.usage) == ("invalid_request", "", Usage())
    assert refused.message.endswith(
        "lower k, raise input_tokens, or use a model with a larger window."
    )
    assert model_server.asked == []
    told = re.search(rf"room for (\d+) of the {number} documents", refused.message)
    assert told
    fitting = int(told[1])
    assert fitting > 50
    answered = await generator(model_server).generate(request(sources=sources[:fitting]))
    assert answered.status == "ok"
    lines = [line for line in sent(model_server).splitlines() if line.startswith("[")]
    assert [line.partition("]")[0] for line in lines] == [f"[{n + 1}" for n in range(fitting)]
    assert all("Bridge" in line for line in lines)
    more = generator(model_server, input_tokens=30_000)
    assert (await more.generate(request(sources=sources))).status == "ok"


@pytest.mark.parametrize("sources", [SOURCES, []])
async def test_a_prompt_that_is_too_long_by_itself_is_not_sent(
    model_server: ModelServer, sources: list[dict[str, str]]
) -> None:
    """Whether or not there are documents."""
    refused = await generator(model_server, input_tokens=150).generate(request(sources=sources))
    assert refused.status == "invalid_request"
    assert "tokens, but there is only room for 150;" in refused.message
    assert model_server.asked == []


async def test_a_failure_is_typed_and_an_answer_streams(model_server: ModelServer) -> None:
    """What the model does wrong is a status; what it does right is told as it comes."""
    model_server.does(failure(400), says(" "), stream(["Bri", "dges."]))
    answering = generator(model_server)
    assert (await answering.generate(request())).status == "invalid_request"
    assert (await answering.generate(request())).status == "empty"
    told: list[str] = []
    assert (await answering.generate(request(), on_token=told.append)).text == "Bridges."
    assert told == ["Bri", "dges."]
    assert (await answering.generate(request(), deadline=0.0)).status == "timeout"


async def test_a_prompt_that_wants_what_the_documents_lack(model_server: ModelServer) -> None:
    """The field is named before anything is asked."""
    with pytest.raises(PromptError, match="needs 'score', which the documents do not have"):
        await generator(model_server).generate(request(prompt=PromptLibrary().get("lamp3")))
    assert model_server.asked == []


class TestNames:
    async def test_a_chat_model_is_opened_by_its_name(
        self, model_server: ModelServer, tmp_path: Path
    ) -> None:
        """It keeps its replies where it is told to, and asks once."""
        model_server.does(says("Bridges."))
        cache = ReplyCache(tmp_path / "r.sqlite")
        answering: Generator = open_generator(
            "openai:fake", cache=cache, base_url=model_server.base_url, timeout=5.0
        )
        await answering.start()
        assert answering.name == "openai:fake"
        for _ in range(2):
            assert (await answering.generate(request())).text == "Bridges."
        assert len(model_server.asked) == 1
        assert cache.path.exists()

    def test_the_configured_model_is_the_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One setting for all that asks a model."""
        assert open_generator(cache=False).name == "local:smollm2-135m"
        monkeypatch.setenv("FAIRQR_MODEL", "openai:mine")
        assert open_generator(cache=False).name == "openai:mine"

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("seq2seq:", "write it like seq2seq:google/flan-t5-small"),
            ("feedback", "neither ranks nor writes. Name a language model"),
            ("gpt", "names no provider"),
        ],
    )
    def test_what_is_no_generator_is_refused(self, name: str, words: str) -> None:
        """With what to write in its place."""
        with pytest.raises(ModelUnavailableError, match=words):
            open_generator(name)
