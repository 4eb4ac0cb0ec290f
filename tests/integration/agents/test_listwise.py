"""Listwise ranking over HTTP: a model that is right, ones that misbehave, and the embedded one."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.listwise import ListwiseRanker
from fairqr.agents.ranking.rankers import RankerOptions, RankItem
from fairqr.prompts.library import PromptLibrary
from tests.integration.local_model import MODEL
from tests.integration.model_server import (
    Answer,
    Asked,
    ModelServer,
    clean_environment,
    completion,
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


def listed(change: Callable[[list[int]], list[int]] = list) -> Callable[[Asked], Answer]:
    """A model that is right, but for a change to its list."""
    return lambda asked: says(" > ".join(f"[{it}]" for it in change(right(asked))))


oracle = listed()


def ranker(server: ModelServer, cache: ReplyCache | None = None, **options: Any) -> ListwiseRanker:
    model = ChatModel("openai:fake", base_url=server.base_url, cache=cache, attempts=1, timeout=5.0)
    return ListwiseRanker(model, PromptLibrary().get("listwise", "v1"), RankerOptions(**options))


def articles(order: tuple[int, ...]) -> list[int]:
    """Return the numbers of the articles in an order."""
    return [ORDER[place] for place in order]


@pytest.mark.usefixtures("clean_environment")
class TestServer:
    async def test_an_oracle_brings_the_best_to_the_front(self, model_server: ModelServer) -> None:
        """Forty items, windows of 20, step 10: three requests, and the first ten are right."""
        model_server.does(oracle)
        asking = ranker(model_server)
        found = await asking.rank("physicist", ITEMS)
        assert articles(found.order)[:10] == list(range(10))
        assert sorted(found.order) == list(range(40))
        assert (found.asked, found.failures, found.repairs) == (3, {}, {})
        assert found.usage == Usage(3, 0, 300, 30)
        assert len(model_server.asked) == asking.cost("physicist", ITEMS).calls == 3
        body = model_server.asked[0].body
        assert body["temperature"] == 0
        assert body.get("max_completion_tokens", body.get("max_tokens")) == 6 * 20 + 32
        # The first window is the end of the list; the next one sees what that brought up.
        seen = [
            [int(article) for _, article in PASSAGE.findall(asked.last_message)]
            for asked in model_server.asked
        ]
        assert seen[0] == ORDER[20:]
        assert seen[1] == ORDER[10:20] + sorted(ORDER[20:])[:10]
        assert seen[2] == ORDER[:10] + sorted(seen[1])[:10]

    @pytest.mark.parametrize(
        ("answer", "status"),
        [
            (says("I'm sorry, but I cannot rank people."), "refused"),
            (completion({"content": None, "refusal": "No."}), "refused"),
            (says("The articles are all of interest to those who work on them."), "essay"),
            (says("[21] > [22] > [23]"), "parse_error"),
            (says(""), "empty"),
            (failure(500), "unavailable"),
            (failure(429), "rate_limited"),
            (failure(400, "This model's maximum context length is 10."), "invalid_request"),
            (Answer(body=b"no JSON at all"), "parse_error"),
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

    async def test_each_window_fails_by_itself(self, model_server: ModelServer) -> None:
        """One refused, one in time, one an essay: what was ranked is kept."""
        model_server.does(says("I'm sorry, I can't."), oracle, says("They are all good articles."))
        found = await ranker(model_server).rank("physicist", ITEMS)
        assert (found.asked, found.failures) == (3, {"refused": 1, "essay": 1})
        assert not found.failed
        assert articles(found.order) == ORDER[:10] + sorted(ORDER[10:30]) + ORDER[30:]

    async def test_repairs_are_counted_in_items_over_all_windows(
        self, model_server: ModelServer
    ) -> None:
        """The best ten are right all the same."""
        model_server.does(listed(lambda order: [*order[:10], 50, order[1]]))
        found = await ranker(model_server).rank("physicist", ITEMS)
        assert (found.asked, found.failures) == (3, {})
        assert found.repairs == {"missing": 30, "stranger": 3, "duplicate": 3}
        assert articles(found.order)[:10] == list(range(10))

    async def test_one_window_takes_too_long(self, model_server: ModelServer) -> None:
        """It counts as a timeout, and the next ones are asked."""
        asking = ranker(model_server)
        await asking.start()
        model_server.does(Answer(never=True), oracle, oracle)
        found = await asking.rank("physicist", ITEMS)
        assert (found.asked, found.failures) == (3, {"timeout": 1})
        assert len(model_server.asked) == 3
        second = sorted(ORDER[10:30])
        assert articles(found.order) == [
            *sorted(ORDER[:10] + second[:10]),
            *second[10:],
            *ORDER[30:],
        ]

    async def test_the_deadline_is_for_all_windows(self, model_server: ModelServer) -> None:
        """What there was no time for is not asked, and counts as failed."""
        asking = ranker(model_server)
        model_server.does(oracle)
        await asking.rank("physicist", ITEMS)  # so that all is imported
        model_server.does(Answer(never=True))
        found = await asking.rank("physicist", ITEMS, deadline=3)
        assert found.order == tuple(range(40))
        assert (found.asked, found.failures) == (3, {"timeout": 3})
        assert len(model_server.asked) == 1

    async def test_equal_windows_are_asked_once(
        self, model_server: ModelServer, tmp_path: Path
    ) -> None:
        """At the same time as well as later; another group is another question."""
        model_server.does(oracle)
        asking = ranker(model_server, ReplyCache(tmp_path / "replies.sqlite"))
        alike = await asyncio.gather(*(asking.rank("physicist", ITEMS) for _ in range(4)))
        assert len(model_server.asked) == 3
        assert len({found.order for found in alike}) == 1
        assert sum((found.usage for found in alike), Usage()).model_calls == 3
        later = await asking.rank("physicist", ITEMS)
        assert later.order == alike[0].order
        assert later.usage.model_calls == 0
        assert later.usage.cached_calls == len(model_server.asked) == 3
        await asking.rank("physicist", ITEMS, "female")
        assert len(model_server.asked) == 6
        assert "female WikiProject" in model_server.asked[-1].body["messages"][0]["content"]


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
