"""Listwise ranking over HTTP: a model that is right, ones that misbehave, and the embedded one."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.ranking.listwise import ListwiseRanker
from fairqr.agents.ranking.rankers import RankerOptions, RankItem
from fairqr.prompts.library import PromptLibrary
from tests.integration.local_model import MODEL
from tests.integration.model_server import (
    Answer,
    Asked,
    ModelServer,
    clean_environment,
    failure,
    model_server,
    says,
)

__all__ = ["clean_environment", "model_server"]

PASSAGE = re.compile(r"^\[(\d+)\] Article (\d+)", re.MULTILINE)

ORDER = random.Random(7).sample(range(40), 40)
"""Forty articles; the smaller the number, the more relevant."""

ITEMS = [RankItem(f"a{it}", f"Article {it}", "It tells of something.") for it in ORDER]


def right(asked: Asked) -> list[int]:
    """Return the identifiers of the passages of a request, in the right order."""
    found = [(int(article), int(number)) for number, article in PASSAGE.findall(asked.last_message)]
    return [number for _, number in sorted(found)]


def oracle(asked: Asked) -> Answer:
    """A model that is right."""
    return says(" > ".join(f"[{it}]" for it in right(asked)))


def ranker(server: ModelServer, cache: ReplyCache | None = None, **options: Any) -> ListwiseRanker:
    model = ChatModel("openai:fake", base_url=server.base_url, cache=cache, attempts=1, timeout=5.0)
    return ListwiseRanker(model, PromptLibrary().get("listwise", "v1"), RankerOptions(**options))


@pytest.mark.usefixtures("clean_environment")
class TestServer:
    @pytest.mark.parametrize(
        ("answer", "status"),
        [
            (says("I'm sorry, but I cannot rank people."), "refused"),
            (says("[21] > [22] > [23]"), "parse_error"),
            (failure(500), "unavailable"),
        ],
    )
    async def test_a_model_that_never_gives_a_list(
        self, model_server: ModelServer, answer: Answer, status: str
    ) -> None:
        """The order stays, and each of the three windows counts as failed."""
        model_server.does(answer)
        found = await ranker(model_server).rank("physicist", ITEMS)
        assert found.order == tuple(range(40))
        assert (found.asked, found.failures, found.repairs) == (3, {status: 3}, {})
        assert found.failed

    async def test_one_window_takes_too_long(self, model_server: ModelServer) -> None:
        """It counts as a timeout, and the next ones are asked."""
        asking = ranker(model_server)
        await asking.start()
        model_server.does(Answer(never=True), oracle, oracle)
        found = await asking.rank("physicist", ITEMS)
        assert (found.asked, found.failures) == (3, {"timeout": 1})
        assert len(model_server.asked) == 3
        second = sorted(ORDER[10:30])
        assert [ORDER[place] for place in found.order] == [
            *sorted(ORDER[:10] + second[:10]),
            *second[10:],
            *ORDER[30:],
        ]


@pytest.mark.model
@pytest.mark.usefixtures("model_cache")
async def test_the_embedded_model_answers_lists() -> None:
    """With the example each window is a list that can be repaired.

    That its order means anything is not claimed; the model has 135 million parameters.
    """
    titles = ["Marie Curie", "Frida Kahlo", "Alan Turing", "Lise Meitner", "Pelé", "Isaac Newton"]
    items = [RankItem(title, title, "") for title in (*titles, "Hypatia", "Confucius")]
    prompt = PromptLibrary().get("listwise", "v2")
    options = RankerOptions(window=6, step=3)
    found = await ListwiseRanker(ChatModel(f"local:{MODEL}"), prompt, options).rank(
        "physicist", items
    )
    assert (found.asked, found.failures, found.warnings) == (2, {}, ())
    assert sorted(found.order) == list(range(8))
    assert found.usage.model_calls == 2
