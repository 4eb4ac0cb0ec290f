"""Checking attributors: the figures, what is concluded from them, and what is remembered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairqr.agents.attribution.attributor import Entailment, Pair
from fairqr.agents.attribution.checking import (
    AttributorCheck,
    LabelledPair,
    check_attributor,
    identity_of,
    remember,
    unchecked_warning,
)
from fairqr.agents.attribution.opening import open_attributor
from fairqr.base.errors import ModelError

pytestmark = pytest.mark.usefixtures("clean_environment")


class Saying:
    """Judges each pair as its premise says: used, unused or broken; the hypothesis is the score."""

    name = "saying"

    async def start(self) -> None:
        """Nothing is needed."""

    async def judge(self, pairs: Sequence[Pair]) -> list[Entailment]:
        return [
            Entailment("timeout")
            if pair.premise == "broken"
            else Entailment(
                "ok", pair.premise == "used", float(pair.hypothesis) if pair.hypothesis else None
            )
            for pair in pairs
        ]


def labelled(said: str, entailed: bool, score: str = "") -> LabelledPair:
    return LabelledPair(premise=said, hypothesis=score, entailed=entailed)


async def checked(*pairs: LabelledPair) -> AttributorCheck:
    return await check_attributor(Saying(), pairs, source="here")


USED = labelled("used", True, "0.9")
RIGHT = [USED, labelled("unused", False, "0.1")]
WRONG = [labelled("used", False, "0.9"), labelled("unused", True, "0.1")]


async def test_counts_are_over_what_was_judged() -> None:
    """Failures are counted apart, and never as a vote."""
    check = await checked(
        USED,
        labelled("used", False, "0.6"),
        labelled("unused", False, "0.2"),
        labelled("unused", True, "0.4"),
        labelled("unused", False, "0.4"),
        labelled("broken", True),
        labelled("broken", False),
    )
    assert (check.pairs, check.judged, check.failures) == (7, 5, {"timeout": 2})
    assert check.accuracy == pytest.approx(3 / 5)
    assert check.majority == pytest.approx(3 / 5)
    assert list(check.confusion.values()) == [1, 1, 1, 2]
    interval = 0.1466, 0.9473  # Clopper-Pearson
    assert (check.low, check.high) == pytest.approx(interval, abs=1e-4)
    assert check.finding == "unclear"
    with pytest.raises(ModelError, match=r"saying judged none of 1 pairs \(timeout\), so nothing"):
        await checked(labelled("broken", True))


@pytest.mark.promise("agents")
@pytest.mark.parametrize(
    ("pairs", "finding", "said"),
    [
        (RIGHT * 40 + WRONG * 5, "better", "right on 88.9% of 90 pairs"),
        (RIGHT * 27 + WRONG * 23, "chance", "a coin, so do not use it to judge as it is."),
        # Too few, or of one class.
        (RIGHT * 14, "unclear", ": that says nothing yet; use at least 30 pairs, of both kinds."),
        ([USED] * 100, "unclear", ": that says nothing yet; use at least 30 pairs, of both kinds."),
    ],
)
async def test_a_check_counts_wrong_verdicts(
    pairs: list[LabelledPair], finding: str, said: str
) -> None:
    """A check of a judge finds how often its verdicts are wrong.

    A good judge's whole interval is above what the commoner answer alone reaches.
    """
    check = await checked(*pairs)
    assert check.finding == finding
    assert said in check.sentence


async def test_a_check_is_remembered_by_the_full_name(clean_environment: Path) -> None:
    """Another name is another attributor, and a file of another version is no check."""
    other = Saying()
    other.name = "a/b: ../c"
    remember(await checked(*RIGHT * 40))
    assert "was never checked" in (unchecked_warning(other) or "")
    remember(await check_attributor(other, RIGHT * 40, source="here"))
    assert unchecked_warning(other) is unchecked_warning(Saying()) is None
    assert {path.name for path in clean_environment.iterdir()} == {"data"}
    for path in (clean_environment / "data" / "attributors").iterdir():
        path.write_text('{"attributor": "saying"}')
    assert "was never checked" in (unchecked_warning(other) or "")


@pytest.mark.promise("agents")
async def test_an_unchecked_judge_is_warned_of() -> None:
    """A judge that was not checked is warned of.

    One never checked, and one that was found no judge; none that was found good.
    """
    asked = "was never checked .* fairqr attribution check notables --attributor 'saying'"
    assert re.search(asked, unchecked_warning(Saying()) or "")
    remember(await checked(*RIGHT * 5))
    assert "says nothing yet" in (unchecked_warning(Saying()) or "")
    remember(await checked(*WRONG * 40))
    assert "no better than a coin" in (unchecked_warning(Saying()) or "")
    remember(await checked(*RIGHT * 40))
    assert unchecked_warning(Saying()) is None


async def test_a_check_is_of_a_server() -> None:
    """The same name at another server is another model; what it told is not shown."""
    urls = ("http://user:secret@127.0.0.1:1/v1", "http://127.0.0.1:2/v1")
    one, two = (open_attributor("llm:openai:fake", base_url=url) for url in urls)
    good = await checked(*RIGHT * 40)
    assert identity_of(one) != identity_of(two)
    assert "secret" not in (identity_of(one) or "")
    renamed = {"attributor": one.name, "identity": identity_of(one)}
    remember(good.model_copy(update=renamed))
    assert unchecked_warning(one) is None
    assert "was never checked as it is now" in (unchecked_warning(two) or "")
    remember(good.model_copy(update={**renamed, "identity": identity_of(two)}))
    assert unchecked_warning(one) is unchecked_warning(two) is None
