"""Attribution by shared words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.attribution.attributor import AttributorName, Pair
from fairqr.agents.attribution.overlap import OverlapAttributor


async def score(premise: str, hypothesis: str) -> float | None:
    (verdict,) = await OverlapAttributor(AttributorName(kind="overlap")).judge(
        [Pair(premise, hypothesis)]
    )
    return verdict.score


class TestOverlap:
    @pytest.mark.parametrize(
        ("premise", "hypothesis", "share"),
        [
            ("Marie Curie won the prize in physics.", "marie curie", 1.0),
            ("Marie Curie won the prize in physics.", "Marie Curie, chemist", 2 / 3),
            ("The studies were long.", "A long study", 1.0),
            ("Cats sleep.", "The cat's sleep is over them", 1.0),
            ("Nothing alike here", "quantum gravity", 0.0),
            ("They gave it a 5 of 5", "5", 1.0),
            ("to be", "to be or not to be", 0.5),  # of the stop words, if there is nothing else
        ],
    )
    async def test_the_share_of_content_words(
        self, premise: str, hypothesis: str, share: float
    ) -> None:
        """Case, stop words and plurals do not count."""
        assert await score(premise, hypothesis) == pytest.approx(share)

    async def test_what_it_cannot_see(self) -> None:
        """Its docstring says so: negation is invisible, and so is a paraphrase."""
        assert await score("The film is good.", "The film is not good.") == 1.0
        assert await score("The physician was born in Rome.", "A doctor from Italy") == 0.0

    async def test_the_threshold_decides(self) -> None:
        """At the threshold a document counts as used."""
        pair = Pair("red green", "red blue")
        for threshold, used in ((0.5, True), (0.51, False)):
            judge = OverlapAttributor(AttributorName(kind="overlap", threshold=threshold))
            (verdict,) = await judge.judge([pair])
            assert verdict.attributed is used

    async def test_nothing_to_judge(self) -> None:
        """Neither an answer nor a document without a word is judged."""
        pairs = [Pair("a text", " …! "), Pair("", "an answer"), Pair("\n", "")]
        verdicts = await OverlapAttributor(AttributorName(kind="overlap")).judge(pairs)
        statuses = [verdict.status for verdict in verdicts]
        assert statuses == ["empty_answer", "empty_document", "empty_answer"]

    @given(st.text(), st.text())
    async def test_any_text_is_judged_or_has_no_words(self, premise: str, hypothesis: str) -> None:
        """No text raises; a text always holds itself; more text never lowers the score."""
        judge = OverlapAttributor(AttributorName(kind="overlap"))
        alone, itself, longer = await judge.judge(
            [
                Pair(premise, hypothesis),
                Pair(hypothesis, hypothesis),
                Pair(f"{premise} {hypothesis}", hypothesis),
            ]
        )
        assert itself.status in ("ok", "empty_answer")
        if itself.status == "ok":
            assert (itself.score, longer.score) == (1.0, 1.0)
        if alone.status == "ok":
            assert alone.score is not None
            assert 0 <= alone.score <= 1
