"""Recorded runs: what is written, and how any file is shown or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.base.telemetry import record_to, span

Shown = Callable[..., str]


def a_span(**changes: Any) -> str:
    plain = {"name": "fairqr.begin", "span": "a1", "parent": None, "start": 1.0}
    plain |= {"milliseconds": 2.5, "status": "ok", "attributes": {}, "events": []}
    return json.dumps({**plain, **changes})


def divergence(value: Any, **more: str) -> dict[str, Any]:
    scored = {"name": "divergence", "score.value": value}
    scored |= {f"score.{key}" if key == "label" else key: it for key, it in more.items()}
    attributes = {f"gen_ai.evaluation.{key}": it for key, it in scored.items()}
    return {"name": "gen_ai.evaluation.result", "attributes": attributes}


def read_spans(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@pytest.fixture
def show(fairqr: Callable[..., Any], file: Path, monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Shows the file, once it has these lines, and returns what is printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def shown(*lines: str, end: str = "\n") -> str:
        if lines:
            file.write_text("\n".join(lines) + end, encoding="utf-8")
        code, stdout, _ = fairqr("trace", "show", str(file))
        assert code == 0
        return str(stdout)

    return shown


def test_steps_stand_in_order_of_time_with_what_they_say(show: Shown) -> None:
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


def test_a_killed_run_is_shown_as_far_as_it_got(show: Shown, file: Path) -> None:
    """A last line that is cut off is left out, and half a character at the end is no damage."""
    text = show(a_span(name="one", parent="never written"), a_span()[:40], end="")
    assert [line.split() for line in text.splitlines()[1:]] == [["0.00", "2.5", "one"]]
    file.write_bytes(a_span(name="one").encode() + b'\n{"name": "\xc3')
    assert "one" in show()


@pytest.mark.parametrize("value", [None, {}, 10**400, ["=", "a"]])
def test_attributes_may_hold_anything(value: Any, show: Shown) -> None:
    events = [divergence(value, label=value)]
    assert "fairqr.begin" in show(a_span(attributes={"k": value}, events=events))


def test_a_terminal_is_not_steered(show: Shown, file: Path) -> None:
    """Line ends of Unicode, markup and halves of pairs in a text break no line either."""
    odd = "a\u2028b\x85c \x1b[31mred [bold]d[/] \ud800"
    with record_to(file, content=True), span("run") as step:
        step.content("fairqr.query", odd)
    (found,) = read_spans(file)
    assert found["attributes"]["fairqr.query"] == odd
    shown = show()
    assert "\x1b[31m" not in shown
    assert "[bold]d[/]" in shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1 is not a span of a run; name a file that"),
        (f"{a_span()}\n{{half\n{a_span()}\n".encode(), "line 2 is not a span"),
        (a_span(events=[{"name": "x"}]).encode() + b"\n", "line 1 is not a span"),
        (bytes(range(256)), "line 1 is not a span"),
        (None, "No such file or directory; check the path"),
    ],
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
            (found,) = read_spans(file)
            assert (found["name"], found["attributes"]) == ("inner", {"n": 1})
            raise ValueError("private")

    with pytest.raises(ValueError, match="private"):
        failing()
    assert read_spans(file)[1]["status"] == "ValueError"
    assert "private" not in file.read_text()


def test_an_earlier_record_is_replaced_by_the_first_span_or_gone_on_with(
    file: Path, tmp_path: Path
) -> None:
    """A run that is resumed goes on after the last whole line."""
    with record_to(file):
        pass
    assert not file.exists()
    file.write_text(f'{a_span()}\n{{"name": "ha')
    with record_to(file, more=True), span("rest"):
        pass
    assert [found["name"] for found in read_spans(file)] == ["fairqr.begin", "rest"]
    with record_to(file):
        assert len(read_spans(file)) == 2
        with span("run"):
            pass
    assert [found["name"] for found in read_spans(file)] == ["run"]
    # A place that cannot be written is known before the run begins.
    with pytest.raises(InputError, match="cannot be written: Is a directory"), record_to(tmp_path):
        pass
