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
Capsys = pytest.CaptureFixture[str]
HOSTILE = "\x1b[2J[red]Ma\rrie\u202e[/red]"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def result(samples: int = 1, title: str = "Marie Curie", **changes: Any) -> AnswerResult:
    """A recorded result with one ranking of three documents, of which the first was used."""
    ranking = []
    for id_, place in zip("abc", GOLDEN["ranking"], strict=False):
        figures = {"exposure": float(id_ != "c"), "attributed": float(id_ == "a")}
        name = title if id_ == "a" else f"Person {id_}"
        ranking.append({**place, "id": id_, "title": name, **figures})
    answer = {"samples": samples, "status": "ok", "text": title, "ids": ["a", "b"]}
    recorded = {
        **GOLDEN,
        "question": "Who found radium?",
        "usage": dict.fromkeys(USAGE, 0),
        "answers": [{**answer, "used": [True, None]}],
        "distribution": [{"text": title, "samples": samples, "rankings": 1}],
        "ranking": ranking,
        "groups": [{**GOLDEN["groups"][0], "unknown": 0.125}],
        "counts": {**GOLDEN["counts"], "samples": samples, "answered": samples},
    }
    return AnswerResult.model_validate({**recorded, **changes})


PASSAGES = {"a": "A physicist and\x1b a chemist.", "c": "It was not read."}


def test_one_answer_stands_below_who_is_read(capsys: Capsys) -> None:
    say(answer_lines(result(), None, PASSAGES, verbose=False))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "female: 0% of what was read and 0% of what was used; the target is 27%."
    assert lines[lines.index("Who found radium?") + 1] == "Marie Curie"


def test_what_was_read_is_marked_as_used_or_not_judged(capsys: Capsys) -> None:
    say(answer_lines(result(), None, PASSAGES, verbose=False))
    lines = capsys.readouterr().out.splitlines()
    (used,) = [line for line in lines if line.lstrip().startswith("1 ")]
    (not_judged,) = [line for line in lines if line.lstrip().startswith("2 ")]

    assert "A physicist and" in lines[lines.index(used) + 1]
    assert "✓" in used
    assert "?" in not_judged


def test_what_was_not_read_is_not_shown(capsys: Capsys) -> None:
    say(answer_lines(result(), None, PASSAGES, verbose=False))
    text = capsys.readouterr().out
    assert "It was not read" not in text
    assert "Person c" not in text


def test_what_was_not_judged_is_not_called_unused(capsys: Capsys) -> None:
    (group,) = result().groups
    groups = [share.model_copy(update={"attributed": None}) for share in group.groups]
    unjudged = group.model_copy(update={"groups": groups})
    say(answer_lines(result(attributor=None, groups=[unjudged]), None, {}, verbose=False))

    assert "used" not in capsys.readouterr().out


def test_several_samples_are_shown_as_a_distribution(capsys: Capsys) -> None:
    say(answer_lines(result(4), None, {"a": "A physicist.", "b": "A chemist."}, verbose=False))
    text = capsys.readouterr().out
    parts = ("4 of 4", "Marie Curie", "exposure", "attributed", "12.5%", "A chemist.")

    assert text.startswith("female: 0% of what was read")
    assert [part for part in parts if part not in text] == []
    assert "1 document in no sample" in text


def test_samples_that_were_not_judged_say_so(capsys: Capsys) -> None:
    say(answer_lines(result(4, attribution_rate=None), None, {}, verbose=False))
    assert "not judged" in capsys.readouterr().out


@pytest.mark.parametrize("verbose", [False, True], ids=["short", "verbose"])
def test_the_rounds_stand_above_the_answer(capsys: Capsys, *, verbose: bool) -> None:
    say(answer_lines(result(), searched([{}, {"id": "b"}]), {}, verbose=verbose))
    lines = [line.lstrip() for line in capsys.readouterr().out.splitlines()]
    positions = []
    for begin in ("female: 0%", "Cost", "round", "1 ", "Ended:", "Who found"):
        positions.append(next(row for row, line in enumerate(lines) if line.startswith(begin)))

    assert positions == sorted(positions)


class Answering:
    """Answers in pieces, and breaks off."""

    async def stream(self, query: str, context: object) -> AsyncIterator[object]:
        for text in ("one\n", f"{HOSTILE}\n"):
            yield AIMessageChunk(text)
        raise ModelError("failed", "It broke off.")


@pytest.mark.promise("command")
async def test_an_answer_cannot_steer_the_terminal(capsys: Capsys) -> None:
    """An answer that a model writes cannot steer the terminal: its escape sequences and markup are
    shown, not obeyed.
    """
    answering: Any = Answering()
    with pytest.raises(ModelError):
        await follow(answering, "Who?", AnswerContext(), RunSettings(), quiet=False, model="")

    printed = capsys.readouterr().out
    assert printed.startswith("one\n [2J[red]Ma rie")
    assert not {"\x1b", "\u202e", "\r"} & {*printed}


@pytest.mark.promise("command")
@pytest.mark.parametrize("samples", [1, 4])
def test_a_title_of_an_answer_cannot_steer_the_terminal(capsys: Capsys, samples: int) -> None:
    """Titles and passages that an answer is from cannot steer the terminal either."""
    say(answer_lines(result(samples, HOSTILE), None, {"a": HOSTILE}, verbose=True))
    printed = capsys.readouterr().out
    assert not {"\x1b", "\u202e", "\r"} & {*printed}
    assert "[red]Ma rie" in printed
