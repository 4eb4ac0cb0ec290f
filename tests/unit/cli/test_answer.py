"""What ``fairqr answer`` draws."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from fairqr.base.errors import ModelError
from fairqr.cli.answers import answer_lines
from fairqr.cli.common import RunSettings
from fairqr.cli.following import follow
from fairqr.cli.output import say
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.answer.result import AnswerResult
from tests.golden import record
from tests.unit.cli.test_output import USAGE
from tests.unit.cli.test_output import result as searched

GOLDEN = json.loads(Path(record.__file__).with_name("answers.json").read_text("utf-8"))["one"]
HOSTILE = "\x1b[2J[red]Ma\rrie\u202e[/red]"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def result(samples: int = 1, title: str = "Marie Curie", **changes: Any) -> AnswerResult:
    """A recorded result with one ranking of two documents, of which the first was used."""
    ranking = [
        {**place, "id": id_, "title": title if id_ == "a" else f"Person {id_}"}
        | {"exposure": float(id_ != "c"), "attributed": float(id_ == "a")}
        for id_, place in zip("abc", GOLDEN["ranking"], strict=False)
    ]
    told = {"samples": samples, "status": "ok", "text": title, "ids": ["a", "b"]}
    recorded = {
        **{**GOLDEN, "question": "Who found radium?", "usage": dict.fromkeys(USAGE, 0)},
        "answers": [{**told, "used": [True, None]}],
        "distribution": [{"text": title, "samples": samples, "rankings": 1}],
        "ranking": ranking,
        "groups": [{**GOLDEN["groups"][0], "unknown": 0.125}],
        "counts": {**GOLDEN["counts"], "samples": samples, "answered": samples},
    }
    return AnswerResult.model_validate({**recorded, **changes})


def test_one_answer_stands_below_who_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """What was not judged is not called unused, and what was not read is not shown."""
    passages = {"a": "A physicist and\x1b a chemist.", "c": "It was not read."}
    say(answer_lines(result(), None, passages, verbose=False))
    text = capsys.readouterr().out
    shown = text.splitlines()
    assert shown[0] == "female: 0% of what was read and 0% of what was used; the target is 27%."
    assert shown[shown.index("Who found radium?") + 1] == "Marie Curie"
    (first,) = [line for line in shown if line.lstrip().startswith("1 ")]
    (second,) = [line for line in shown if line.lstrip().startswith("2 ")]
    assert "A physicist and" in shown[shown.index(first) + 1]
    assert "✓" in first
    assert "?" in second
    assert not any(part in text for part in ("It was not read", "Person c"))
    (group,) = result().groups
    unused = [it.model_copy(update={"attributed": None}) for it in group.groups]
    unjudged = group.model_copy(update={"groups": unused})
    say(answer_lines(result(attributor=None, groups=[unjudged]), None, {}, verbose=False))
    assert "used" not in capsys.readouterr().out


def test_several_samples_are_shown_as_a_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    say(answer_lines(result(4), None, {"a": "A physicist.", "b": "A chemist."}, verbose=False))
    shown = capsys.readouterr().out
    assert shown.startswith("female: 0% of what was read")
    for part in ("4 of 4", "Marie Curie", "exposure", "attributed", "12.5%", "A chemist."):
        assert part in shown
    assert "1 document in no sample" in shown
    say(answer_lines(result(4, attribution_rate=None), None, {}, verbose=False))
    assert "not judged" in capsys.readouterr().out


def test_the_rounds_stand_above_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        say(answer_lines(result(), searched([{}, {"id": "b"}]), {}, verbose=verbose))
        shown = capsys.readouterr().out.splitlines()
        at = [
            next(place for place, line in enumerate(shown) if line.lstrip().startswith(begin))
            for begin in ("female: 0%", "Cost", "round", "1 ", "Ended:", "Who found")
        ]
        assert at == sorted(at)


class Answering:
    """Answers in pieces, and breaks off."""

    async def stream(self, query: str, context: object) -> AsyncIterator[object]:
        for text in ("one\n", f"{HOSTILE}\n"):
            yield AIMessageChunk(text)
        raise ModelError("failed", "It broke off.")


async def test_an_answer_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a model's text nor a title: escape sequences and markup are shown, not obeyed."""
    answering: Any = Answering()
    with pytest.raises(ModelError):
        await follow(answering, "Who?", AnswerContext(), RunSettings(), quiet=False, model="")
    begun = capsys.readouterr()
    assert begun.out.startswith("one\n [2J[red]Ma rie")
    assert not {"\x1b", "\u202e", "\r"} & {*begun.out}
    say(answer_lines(result(title=HOSTILE), None, {"a": HOSTILE}, verbose=True))
    say(answer_lines(result(4, HOSTILE), None, {"a": HOSTILE}, verbose=True))
    shown = capsys.readouterr().out
    assert not {"\x1b", "\u202e", "\r"} & {*shown}
    assert "[red]Ma rie" in shown
