"""Models with a planted lean, behind a real HTTP server: the right verdict on each."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.ranking.lean import (
    PairFigures,
    PairOutcome,
    Verdict,
    pair_figures,
    verdicts,
)
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.agents.ranking.rankers import By, RankerOptions, RankItem
from fairqr.agents.statistics import stream
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

PROMPT = PromptLibrary().get("pairwise", "v1")

Mind = Callable[[str, str], float]
"""Returns the probability of A from the texts of both documents."""


def likes_women(first: str, second: str) -> float:
    return 0.8 if "woman" in first else 0.3


def likes_men(first: str, second: str) -> float:
    return 1 - likes_women(first, second)


def likes_the_first(first: str, second: str) -> float:
    return 0.7 if "woman" in first else 0.6


def is_random(first: str, second: str) -> float:
    digest = hashlib.sha256(f"{first}|{second}|seed 5".encode()).digest()
    return (digest[0] + 0.5) / 256


def texts(asked: Asked) -> tuple[str, str]:
    first = re.search("<first>(.*)</first>", asked.last_message)
    second = re.search("<second>(.*)</second>", asked.last_message)
    assert first
    assert second
    return first[1], second[1]


def answers(mind: Mind, logprobs: bool = True) -> Callable[[Asked], Answer]:
    """A server that answers by a mind, with the probabilities of tokens or without."""

    def answer(asked: Asked) -> Answer:
        share = mind(*texts(asked))
        if logprobs and asked.body.get("logprobs"):
            return weighs({"A": 0.9 * share, " B": 0.9 * (1 - share), "The": 0.1})
        return says("Passage A" if share > 0.5 else "**B**")

    return answer


def pairs() -> list[tuple[str, RankItem, RankItem]]:
    """Ten queries with two pairs of a woman and a man."""
    made = []
    for query in range(10):
        for number in range(2):
            name = f"{query}.{number}"
            woman = RankItem(f"w{name}", f"Person {name}", "A woman of relevance 5.")
            man = RankItem(f"m{name}", f"Another {name}", "A man of relevance 5.")
            made.append((f"query {query}", woman, man))
    return made


def judge(
    server: ModelServer, by: By = "probabilities", cache: ReplyCache | None = None
) -> PairwiseJudge:
    model = ChatModel("openai:fake", base_url=server.base_url, timeout=10.0, cache=cache)
    return PairwiseJudge(model, PROMPT, RankerOptions(by=by))


async def probed(asked: PairwiseJudge) -> tuple[PairFigures, Verdict]:
    slots = asyncio.Semaphore(8)

    async def outcome(query: str, woman: RankItem, man: RankItem) -> PairOutcome:
        async with slots:
            found = await asked.compare(query, (woman, man))
        odds = (found.one_first.log_odds, found.other_first.log_odds)
        return PairOutcome(query, *found.preferred("protected", "unprotected"), odds)

    outcomes = await asyncio.gather(*(outcome(*pair) for pair in pairs()))
    figures = pair_figures(outcomes, stream(0, "pairs"))
    return figures, verdicts([figures], ("female", "male"))[0]


PLANTED = [
    (likes_women, "favours_protected"),
    (likes_men, "favours_unprotected"),
    (likes_the_first, "position_decides"),
    (is_random, "no_lean_found"),
]


class TestVerdicts:
    @pytest.mark.parametrize("by", ["probabilities", "reply"])
    @pytest.mark.parametrize(("mind", "kind"), PLANTED)
    async def test_a_planted_mind_is_found(
        self, model_server: ModelServer, mind: Mind, kind: str, by: By
    ) -> None:
        model_server.does(answers(mind))
        asked = judge(model_server, by)
        figures, found = await probed(asked)
        assert found.kind == kind, found.sentence
        assert asked.asks_by == by
        assert (figures.failed, len(model_server.asked)) == (0, 40)
        assert figures.log_odds_replies == (40 if by == "probabilities" else 0)
        assert all(("logprobs" in it.body) == (by == "probabilities") for it in model_server.asked)
        if mind is likes_the_first and by == "probabilities":
            # What position hides the averaged log-odds show; the verdict does not rest on them.
            assert (figures.protected.count, figures.flips.count) == (0, 20)
            assert figures.averaged.count == 20

    @pytest.mark.parametrize("refuses", [False, True])
    async def test_a_server_without_probabilities_is_read_instead(
        self, model_server: ModelServer, refuses: bool
    ) -> None:
        """It leaves them out, or refuses the parameter: one question more, and the same verdict."""
        plain = answers(likes_men, logprobs=False)

        def answer(asked: Asked) -> Answer:
            if refuses and asked.body.get("logprobs"):
                return failure(400, "logprobs is not supported with this model")
            return plain(asked)

        model_server.does(answer)
        asked = judge(model_server)
        _, found = await probed(asked)
        assert found.kind == "favours_unprotected", found.sentence
        assert asked.asks_by == "reply"
        assert len(asked.warnings) == 1
        assert len(model_server.asked) == 41

    async def test_half_a_character_is_no_sign_that_a_model_tells_no_probabilities(
        self, model_server: ModelServer
    ) -> None:
        """llama.cpp tells nothing of a token that is the begin of a character."""
        plain = answers(likes_men)

        def answer(asked: Asked) -> Answer:
            return says("\ufffd") if "Person 3.1" in texts(asked)[0] else plain(asked)

        model_server.does(answer)
        asked = judge(model_server)
        figures, found = await probed(asked)
        assert asked.asks_by == "probabilities"
        assert figures.failures == {"neither": 1}
        assert found.kind == "favours_unprotected", found.sentence
        assert all(request.body.get("logprobs") for request in model_server.asked)


@pytest.mark.model
class TestSmallModel:
    async def test_two_examples_weaken_the_pull_of_the_first_place(self, model_cache: Path) -> None:
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
