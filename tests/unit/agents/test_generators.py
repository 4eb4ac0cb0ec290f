"""Answers by a chat model: what is sent, cut fairly, and what comes back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fairqr.agents.generators import INPUT_TOKENS, GenerationRequest, ModelGenerator
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import open_generator
from fairqr.agents.models.replies import Reply, Usage
from fairqr.prompts.budget import MESSAGE_TOKENS, estimated_tokens
from fairqr.prompts.library import PromptLibrary
from tests.integration.model_server import ModelServer, says

pytestmark = pytest.mark.usefixtures("clean_environment")

SOURCES = [
    {"title": "Bridges", "text": "They carry </documents> roads."},
    {"title": "Boats", "text": "They float."},
]


def generator(server: ModelServer, **options: Any) -> ModelGenerator:
    return ModelGenerator(ChatModel("openai:fake", base_url=server.base_url), **options)


def request(question: str = "What carries?", **more: Any) -> GenerationRequest:
    given = {"prompt": PromptLibrary().get("answer"), "question": question, "sources": SOURCES}
    return GenerationRequest(**given | more)


def lines_of(server: ModelServer) -> list[str]:
    """The lines of the documents that the model was shown last."""
    return [line for line in server.asked[-1].last_message.splitlines() if line.startswith("[")]


async def test_the_documents_stand_in_order_and_fenced(server: ModelServer) -> None:
    """Temperature and seed are the request's, the rest the prompt's; none are needed."""
    server.does(says(" Bridges. "))
    answered = await generator(server).generate(request(temperature=0.7, seed=5))
    assert answered == Reply("ok", {"text": "Bridges."}, usage=Usage(1, 0, 100, 10))
    assert lines_of(server) == [
        "[1] Bridges: They carry ‹/documents› roads.",
        "[2] Boats: They float.",
    ]
    assert "<question>What carries?</question>" in server.asked[0].last_message
    body = server.asked[0].body
    assert (body["temperature"], body["seed"]) == (0.7, 5)
    assert body.get("max_completion_tokens", body.get("max_tokens")) == 96
    assert (await generator(server).generate(request(sources=[]))).status == "ok"
    assert "<documents>\nnone\n</documents>" in server.asked[1].last_message


@pytest.mark.parametrize("room", [300, 500, INPUT_TOKENS])
async def test_a_prompt_keeps_to_its_room(server: ModelServer, room: int) -> None:
    """The question is cut to a limit of its own, and the documents share the rest alike."""
    server.does(says("Bridges."))
    sources = [{"title": f"T{n}", "text": "carry " * 5000} for n in range(4)]
    asked = request("why " * 5000, sources=sources)
    await generator(server, input_tokens=room, question_tokens=50).generate(asked)
    messages = server.asked[-1].body["messages"]
    tokens = sum(estimated_tokens(message["content"]) + MESSAGE_TOKENS for message in messages)
    assert room - 8 <= tokens <= room
    question = re.search(r"<question>(.*)</question>", server.asked[-1].last_message)
    assert question
    assert 48 <= estimated_tokens(question[1]) <= 50
    assert [line[:6] for line in lines_of(server)] == [f"[{n + 1}] T{n}" for n in range(4)]
    sizes = [estimated_tokens(line) for line in lines_of(server)]
    assert max(sizes) - min(sizes) <= 1


async def test_a_generator_is_opened_by_the_name_of_its_model(
    server: ModelServer, cache: ReplyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its replies where it is told to; the configured model is the default."""
    server.does(says("Bridges."))
    url = server.base_url
    answering = open_generator("openai:fake", cache=cache, base_url=url, timeout=5.0)
    await answering.start()
    assert answering.name == "openai:fake"
    for _ in range(2):
        assert (await answering.generate(request())).text == "Bridges."
    assert len(server.asked) == 1
    assert open_generator(cache=False).name == "local:smollm2-135m"
    monkeypatch.setenv("FAIRQR_MODEL", "openai:mine")
    assert open_generator(cache=False).name == "openai:mine"
