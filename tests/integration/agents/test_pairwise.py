"""Pairs over a real HTTP server that gives probabilities, gives none, or misbehaves."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.ranking.pairwise import PairComparison, PairwiseJudge
from fairqr.agents.ranking.rankers import By, RankerOptions, RankItem
from fairqr.prompts.library import PromptLibrary
from tests.integration.model_server import (
    Answer,
    Asked,
    ModelServer,
    clean_environment,
    failure,
    model_server,
    says,
    weighs,
)

__all__ = ["clean_environment", "model_server"]

pytestmark = pytest.mark.usefixtures("clean_environment")

PAIRS = [
    (
        RankItem(f"w{it}", f"Person {it}.", "A woman of relevance 5."),
        RankItem(f"m{it}", f"Another {it}.", "A man of relevance 5."),
    )
    for it in range(20)
]


def likes_men(asked: Asked) -> Answer:
    """A server with a lean, with the probabilities of tokens where they are asked for."""
    share = 0.2 if re.search("<first>.*woman.*</first>", asked.last_message) else 0.7
    if asked.body.get("logprobs"):
        return weighs({"A": 0.9 * share, " B": 0.9 * (1 - share), "The": 0.1})
    return says("Passage A" if share > 0.5 else "**B**")


async def compared(
    server: ModelServer, by: By = "probabilities"
) -> tuple[PairwiseJudge, list[PairComparison]]:
    model = ChatModel("openai:fake", base_url=server.base_url, timeout=10.0)
    judge = PairwiseJudge(model, PromptLibrary().get("pairwise", "v1"), RankerOptions(by=by))
    return judge, await asyncio.gather(*(judge.compare("physicist", pair) for pair in PAIRS))


@pytest.mark.parametrize("by", ["probabilities", "reply"])
async def test_the_better_one_wins_in_both_orders(model_server: ModelServer, by: By) -> None:
    model_server.does(likes_men)
    judge, found = await compared(model_server, by)
    assert {it.winner for it in found} == {"other"}
    assert (judge.asks_by, len(model_server.asked)) == (by, 40)
    assert all(("logprobs" in it.body) == (by == "probabilities") for it in model_server.asked)


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_server_without_probabilities_is_read_instead(
    model_server: ModelServer, refuses: bool
) -> None:
    """It leaves them out, or refuses the parameter: one question more, and the same winners."""

    def answer(asked: Asked) -> Answer:
        if refuses and asked.body.get("logprobs"):
            return failure(400, "logprobs is not supported with this model")
        asked.body.pop("logprobs", None)
        return likes_men(asked)

    model_server.does(answer)
    judge, found = await compared(model_server)
    assert {it.winner for it in found} == {"other"}
    assert (judge.asks_by, len(judge.warnings), len(model_server.asked)) == ("reply", 1, 41)


async def test_half_a_character_is_no_sign_that_a_model_tells_no_probabilities(
    model_server: ModelServer,
) -> None:
    """llama.cpp gives no probability of a token that is only part of a character."""

    def answer(asked: Asked) -> Answer:
        broken = re.search(r"<first>Person 3\.", asked.last_message)
        return says("\ufffd") if broken else likes_men(asked)

    model_server.does(answer)
    judge, found = await compared(model_server)
    assert judge.asks_by == "probabilities"
    assert [it.failure.status for it in found if it.failure] == ["neither"]
    assert all(request.body.get("logprobs") for request in model_server.asked)


@pytest.mark.model
async def test_two_examples_weaken_the_pull_of_the_first_place(model_cache: Path) -> None:
    """Without them the embedded model says A whatever it is asked."""
    model = ChatModel("local:smollm2-135m", timeout=120)
    means = {}
    for version in ("v1", "v2"):
        prompt = PromptLibrary().get("pairwise", version)
        asked = PairwiseJudge(model, prompt, RankerOptions(length=160))
        pair = (
            RankItem("1", "Tulips", "Flowers that gardeners plant in autumn."),
            RankItem("2", "Locomotives", "Engines that pull trains over rails."),
        )
        found = [await asked.compare(query, pair) for query in ("gardening", "railways")]
        replies = [each for pair in found for each in (pair.one_first, pair.other_first)]
        assert asked.asks_by == "probabilities"
        assert {each.status for each in replies} == {"ok"}
        means[version] = sum(each.log_odds or 0 for each in replies) / len(replies)
    assert means["v1"] > 1
    assert abs(means["v2"]) < means["v1"] / 2
