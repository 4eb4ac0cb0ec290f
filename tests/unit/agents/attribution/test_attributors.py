"""Attributors by their names, by shared words, with kept verdicts; and pairs to check them on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.attribution.attributor import AttributorName, CachedAttributor, Entailment, Pair
from fairqr.agents.attribution.opening import ATTRIBUTORS, open_attributor
from fairqr.agents.attribution.overlap import OverlapAttributor
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, ModelUnavailableError

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("overlap", "overlap"),
        ("transformers", "transformers:FacebookAI/roberta-large-mnli"),
        ("transformers:org/m", "transformers:org/m"),
        ("llm", "llm:local:smollm2-135m"),
        ("llm:openai:gpt-4o", "llm:openai:gpt-4o"),
    ],
)
def test_each_kind_is_opened_by_its_name(written: str, name: str) -> None:
    """Its full name stands in results; nothing is loaded yet."""
    assert open_attributor(written).name == name
    assert open_attributor(f"{written}?threshold=0.25").name == f"{name}?threshold=0.25"
    # A chat model that is there is used unless another is named.
    chat_model = name.replace("local:smollm2-135m", "openai:mine")
    assert open_attributor(written, chat=ChatModel("openai:mine")).name == chat_model


@pytest.mark.parametrize(
    ("written", "words"),
    [
        *((name, ", ".join(map(re.escape, ATTRIBUTORS))) for name in ("", "nli:a/b", "overlap:x")),
        ("overlap?limit=3", "'limit=3' is not an option of the attributor 'overlap'"),
        *((f"overlap?threshold={it}", "wrong at threshold") for it in ("half", "1.5", "nan")),
        ("llm:nonsense", "provider:model"),
    ],
)
def test_wrong_names_are_refused(written: str, words: str) -> None:
    """In one sentence, with the choices."""
    with pytest.raises((InputError, ModelUnavailableError), match=words):
        open_attributor(written)


@pytest.mark.parametrize(
    ("premise", "hypothesis", "share"),
    [
        ("Marie Curie won the prize in physics.", "Marie Curie, chemist", 2 / 3),
        ("The studies were long.", "A long study", 1.0),
        ("Cats sleep.", "The cat's sleep is over them", 1.0),
        ("They gave it a 5 of 5", "5", 1.0),
        ("to be", "to be or not to be", 0.5),  # of the stop words, if there is nothing else
    ],
)
async def test_the_share_of_content_words(premise: str, hypothesis: str, share: float) -> None:
    """Case, stop words and plurals do not count; at the threshold a document is used."""
    for threshold, used in ((share, True), (share + 0.01, False)):
        judge = OverlapAttributor(AttributorName(kind="overlap", threshold=min(1, threshold)))
        (verdict,) = await judge.judge([Pair(premise, hypothesis)])
        assert verdict.score == pytest.approx(share)
        assert verdict.attributed is (used or share == 1)


@given(st.text(), st.text())
async def test_any_text_is_judged_or_has_no_words(premise: str, hypothesis: str) -> None:
    """No text raises; a text always holds itself; more text never lowers the score."""
    judge = OverlapAttributor(AttributorName(kind="overlap"))
    pairs = [
        (premise, hypothesis),
        (hypothesis, hypothesis),
        (f"{premise} {hypothesis}", hypothesis),
    ]
    alone, itself, longer = await judge.judge([Pair(*it) for it in pairs])
    assert itself.status in ("ok", "empty_answer")
    if itself.status == "ok":
        assert (itself.score, longer.score) == (1.0, 1.0)
    if alone.status == "ok":
        assert alone.score is not None
        assert 0 <= alone.score <= 1


A, B, SLOW = Pair("red", "red"), Pair("red", "blue"), Pair("slow", "red")


class Counting(CachedAttributor):
    """Says whether two texts are the same, too late of some, and notes what it was asked."""

    def __init__(self, cache: ReplyCache | None = None) -> None:
        super().__init__(AttributorName(kind="overlap"), cache)
        self.identity = "counting"
        self.asked: list[Pair] = []

    async def start(self) -> None:
        """Nothing is needed."""

    async def judge_new(self, pairs: Sequence[Pair]) -> list[Entailment]:
        self.asked += pairs
        return [
            Entailment("timeout", message="Too late.")
            if pair == SLOW
            else Entailment("ok", pair.premise == pair.hypothesis, 0.5, usage=Usage(1, 0, 20, 1))
            for pair in pairs
        ]


async def test_equal_pairs_are_judged_once(
    cache: ReplyCache,
) -> None:
    """The cost stands with the first; what is kept costs nothing, and what failed may heal."""
    inner = Counting()
    verdicts = await inner.judge([A, B, A, B, A])
    assert inner.asked == [A, B]
    assert [verdict.attributed for verdict in verdicts] == [True, False, True, False, True]
    assert [verdict.usage.model_calls for verdict in verdicts] == [1, 1, 0, 0, 0]
    *first, _ = await Counting(cache).judge([A, B, SLOW])
    inner = Counting(cache)
    again = await inner.judge([B, A, SLOW, Pair("new", "new")])
    assert inner.asked == [SLOW, Pair("new", "new")]
    assert [verdict.status for verdict in again[2:]] == ["timeout", "ok"]
    assert again[:2] == [replace(verdict, usage=Usage()) for verdict in first[::-1]]
    assert b"blue" not in cache.path.read_bytes(), "nothing of a document or an answer is kept"
