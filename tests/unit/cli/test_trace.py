"""Recorded runs: what is written, and how any file is shown or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.base.telemetry import record_to, span

Show = Callable[..., str]


def a_span(**changes: Any) -> str:
    fields: dict[str, Any] = {
        "name": "fairqr.begin",
        "span": "a1",
        "parent": None,
        "start": 1.0,
        "milliseconds": 2.5,
        "status": "ok",
        "attributes": {},
        "events": [],
    }
    return json.dumps({**fields, **changes})


def divergence(value: Any, label: Any, **attributes: str) -> dict[str, Any]:
    """Return the event of a divergence."""
    scored = {"name": "divergence", "score.value": value, "score.label": label, **attributes}
    named = {f"gen_ai.evaluation.{name}": attribute for name, attribute in scored.items()}
    return {"name": "gen_ai.evaluation.result", "attributes": named}


def read_spans(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@pytest.fixture
def show(fairqr: Callable[..., Any], file: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Shows the file, once it has these lines, and returns what is printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def show_lines(*lines: str, end: str = "\n") -> str:
        if lines:
            file.write_text("\n".join(lines) + end, encoding="utf-8")
        ended = fairqr("trace", "show", str(file))
        assert ended.code == 0
        return str(ended.stdout)

    return show_lines


def test_steps_stand_in_order_of_time_with_what_they_say(show: Show) -> None:
    events = [divergence(0.123456, label="above_threshold", explanation="a has 1 %.")]
    text = show(
        a_span(name="later", span="d", parent="a", start=4, status="TimeoutError"),
        a_span(name="refine", span="b", parent="a", start=2, events=events),
        a_span(name="run", span="a", start=1, attributes={"fairqr.k": 20}),
    )
    lines = [line.split() for line in text.splitlines()[1:]]
    steps = [["0.00", "2.5", "run"], ["1.00", "2.5", "refine"], ["3.00", "2.5", "later"]]

    assert [line[:3] for line in lines] == steps
    assert (lines[0][3:], lines[2][3]) == (["k:", "20"], "TimeoutError")
    assert " ".join(lines[1]).endswith("divergence 0.123456 above_threshold a has 1 %.")


def test_a_killed_run_is_shown_as_far_as_it_got(show: Show) -> None:
    """A last line that is cut off is left out."""
    text = show(a_span(name="one", parent="never written"), a_span()[:40], end="")
    assert [line.split() for line in text.splitlines()[1:]] == [["0.00", "2.5", "one"]]


def test_half_a_character_at_the_end_is_no_damage(show: Show, file: Path) -> None:
    file.write_bytes(a_span(name="one").encode() + b'\n{"name": "\xc3')
    assert "one" in show()


@pytest.mark.parametrize(
    "value", [None, {}, 10**400, ["=", "a"]], ids=["null", "object", "large", "list"]
)
def test_attributes_may_hold_anything(value: Any, show: Show) -> None:
    events = [divergence(value, label=value)]
    assert "fairqr.begin" in show(a_span(attributes={"k": value}, events=events))


@pytest.mark.promise("command")
def test_a_terminal_is_not_steered(show: Show, file: Path) -> None:
    """What a recorded run holds cannot steer the terminal on which it is shown.

    Line ends of Unicode, markup and halves of pairs in a text break no line either.
    """
    odd = "a\u2028b\x85c \x1b[31mred [bold]d[/] \ud800"
    with record_to(file, content=True), span("run") as step:
        step.content("fairqr.query", odd)

    (recorded,) = read_spans(file)
    assert recorded["attributes"]["fairqr.query"] == odd

    text = show()
    assert "\x1b[31m" not in text
    assert "[bold]d[/]" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1 is not a span of a run; name a file that"),
        (f"{a_span()}\n{{half\n{a_span()}\n".encode(), "line 2 is not a span"),
        (a_span(events=[{"name": "x"}]).encode() + b"\n", "line 1 is not a span"),
        (bytes(range(256)), "line 1 is not a span"),
        (None, "No such file or directory; check the path"),
    ],
    ids=["empty", "damaged line", "no span", "bytes", "no file"],
)
def test_what_is_no_recorded_run_is_one_sentence(
    fairqr: Callable[..., Any], file: Path, content: bytes | None, words: str
) -> None:
    if content is not None:
        file.write_bytes(content)
    complaint = fairqr("trace", "show", str(file)).complaint()
    assert words in complaint
    assert str(file) in complaint


def test_each_span_is_on_disk_when_it_ends_without_content(file: Path) -> None:
    """A run that is killed leaves what it finished; of an error, only its class."""

    def failing() -> None:
        with record_to(file), span("run"):
            with span("inner") as inner:
                inner.set("n", 1)
                inner.event("happened", why="because")
                inner.content("text", "private")
            (recorded,) = read_spans(file)
            assert recorded["name"] == "inner"
            assert recorded["attributes"] == {"n": 1}
            raise ValueError("private")

    with pytest.raises(ValueError, match="private"):
        failing()
    assert read_spans(file)[1]["status"] == "ValueError"
    assert "private" not in file.read_text()


def names_of(file: Path) -> list[str]:
    return [recorded["name"] for recorded in read_spans(file)]


def test_a_run_without_spans_writes_no_file(file: Path) -> None:
    with record_to(file):
        pass
    assert not file.exists()


def test_a_resumed_run_goes_on_after_the_last_whole_line(file: Path) -> None:
    file.write_text(f'{a_span()}\n{{"name": "ha')
    with record_to(file, more=True), span("rest"):
        pass
    assert names_of(file) == ["fairqr.begin", "rest"]


def test_an_earlier_record_is_replaced_by_the_first_span(file: Path) -> None:
    file.write_text(f"{a_span()}\n{a_span()}\n")
    with record_to(file):
        assert len(read_spans(file)) == 2

        with span("run"):
            pass

    assert names_of(file) == ["run"]


def test_a_place_that_cannot_be_written_is_known_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: Is a directory"), record_to(tmp_path):
        pass
