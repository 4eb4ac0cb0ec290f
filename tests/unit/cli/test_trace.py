"""Recorded runs: what is written, and how any file is shown or refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairqr.base.errors import InputError
from fairqr.base.telemetry import record_to, span
from fairqr.cli.main import app
from fairqr.cli.trace import find_trace, read_spans


def a_span(**changes: Any) -> str:
    plain = {
        "name": "fairqr.begin",
        "span": "a1",
        "parent": None,
        "start": 1.0,
        "milliseconds": 2.5,
        "status": "ok",
        "attributes": {},
        "events": [],
    }
    return json.dumps({**plain, **changes})


def divergence(value: Any, **more: str) -> dict[str, Any]:
    scored = {"name": "divergence", "score.value": value}
    scored |= {f"score.{key}" if key == "label" else key: it for key, it in more.items()}
    attributes = {f"gen_ai.evaluation.{key}": it for key, it in scored.items()}
    return {"name": "gen_ai.evaluation.result", "attributes": attributes}


def shown(file: Path, *lines: str, end: str = "\n") -> str:
    file.write_text("\n".join(lines) + end, encoding="utf-8")
    result = CliRunner().invoke(app, ["trace", "show", str(file)], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return str(result.stdout)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


class TestShowing:
    def test_steps_stand_in_order_of_time_with_what_they_say(self, file: Path) -> None:
        events = [divergence(0.123456, label="above_threshold", explanation="a has 1 %.")]
        text = shown(
            file,
            a_span(name="later", span="d", parent="a", start=4, status="TimeoutError"),
            a_span(name="refine", span="b", parent="a", start=2, events=events),
            a_span(name="run", span="a", start=1, attributes={"fairqr.k": 20}),
        )
        lines = [line.split() for line in text.splitlines()[1:]]
        assert [line[:3] for line in lines] == [
            ["0.00", "2.5", "run"],
            ["1.00", "2.5", "refine"],
            ["3.00", "2.5", "later"],
        ]
        assert lines[0][3:] == ["k:", "20"]
        assert " ".join(lines[1]).endswith("divergence 0.1235 above_threshold a has 1 %.")
        assert lines[2][3] == "TimeoutError"

    def test_a_killed_run_is_shown_as_far_as_it_got(self, file: Path) -> None:
        """A last line that is cut off is left out."""
        text = shown(file, a_span(name="one", parent="never written"), a_span()[:40], end="")
        assert [line.split() for line in text.splitlines()[1:]] == [["0.00", "2.5", "one"]]

    def test_a_line_cut_within_a_character(self, file: Path) -> None:
        """Half a character at the end is no damage."""
        file.write_bytes(a_span(name="one").encode() + b'\n{"name": "\xc3')
        assert [found["name"] for found in read_spans(file)] == ["one"]

    def test_texts_may_hold_anything(self, file: Path) -> None:
        """Line ends of Unicode, markup and halves of pairs in a text break no line."""
        odd = "a\u2028b\x85c [bold]d[/] \ud800"
        with record_to(file, content=True), span("run") as step:
            step.content("fairqr.query", odd)
        (found,) = read_spans(file)
        assert found["attributes"]["fairqr.query"] == odd
        assert "[bold]d[/]" in shown(file, a_span(attributes={"query": odd[:-1]}))


class TestRefusing:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", "is empty; record one with"),
            ("hello\n", "line 1 is not a span of a run; name a file that"),
            ('{"other": 1}\n', "line 1 is not a span"),
            (a_span() + "\n{half\n" + a_span() + "\n", "line 2 is not a span"),
            (a_span() + "\n{half\n", "line 2 is not a span"),
            (a_span(events=[{"name": "x"}]) + "\n", "line 1 is not a span"),
            ("[" * 100_000 + "\n", "line 1 is not a span"),
        ],
    )
    def test_a_foreign_file_is_named_by_line(self, file: Path, content: str, words: str) -> None:
        """Whatever it is, one sentence says that it is no recorded run."""
        file.write_text(content)
        with pytest.raises(InputError, match=words) as caught:
            read_spans(file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
        """A binary file, a folder and a missing file."""
        (tmp_path / "binary").write_bytes(bytes(range(256)))
        with pytest.raises(InputError, match="line 1 is not a span"):
            read_spans(tmp_path / "binary")
        with pytest.raises(InputError, match="cannot be read: Is a directory"):
            read_spans(tmp_path)
        with pytest.raises(InputError, match="cannot be read: No such file"):
            read_spans(tmp_path / "none")


class TestRecording:
    def test_each_span_is_on_disk_when_it_ends(self, file: Path) -> None:
        """A run that is killed leaves what it finished."""
        with record_to(file), span("run"):
            with span("inner") as inner:
                inner.set("n", 1)
                inner.event("happened", why="because")
                inner.content("text", "secret")
            (found,) = read_spans(file)
            assert (found["name"], found["attributes"]) == ("inner", {"n": 1})
        inner_span, run_span = read_spans(file)
        assert inner_span["parent"] == run_span["span"]

    def test_an_error_is_recorded_by_its_class(self, file: Path) -> None:
        """Messages may hold content; the class does not."""
        with pytest.raises(ValueError, match="private"), record_to(file), span("run"):
            raise ValueError("private")
        assert read_spans(file)[0]["status"] == "ValueError"
        assert "private" not in file.read_text()

    def test_an_earlier_record_is_replaced_by_the_first_span(self, file: Path) -> None:
        """Until there is something new, the old one stays."""
        file.write_text("old\n")
        with record_to(file):
            assert file.read_text() == "old\n"
            with span("run"):
                pass
        assert len(read_spans(file)) == 1

    def test_a_record_is_gone_on_with_after_its_last_whole_line(self, file: Path) -> None:
        """A run that was killed, and resumed."""
        file.write_text(f'{a_span()}\n{{"name": "ha')
        with record_to(file, more=True), span("rest"):
            pass
        assert [found["name"] for found in read_spans(file)] == ["fairqr.begin", "rest"]

    def test_nothing_recorded_leaves_no_file(self, file: Path) -> None:
        """A search that was refused at once leaves no empty file."""
        with record_to(file):
            pass
        assert not file.exists()

    def test_a_full_disk_does_not_end_the_run(self) -> None:
        """The failure is kept for whoever started the recording."""
        if not Path("/dev/full").exists():
            pytest.skip("needs a device that is always full")
        with record_to(Path("/dev/full")) as recorder, span("run"):
            pass
        assert recorder.failure == "No space left on device"

    def test_a_place_that_cannot_be_written_is_an_input_error(self, tmp_path: Path) -> None:
        """It is known before the run begins."""
        with (
            pytest.raises(InputError, match="cannot be written: Is a directory"),
            record_to(tmp_path),
        ):
            pass


def a_run(before: float = 0.5, query: str | None = None) -> list[str]:
    """A recorded search, as the graph records it."""
    content = {"fairqr.query": query} if query else {}
    asked = {"fairqr.method": "fairqr", "fairqr.attributes": ["gender"], "fairqr.k": 20}
    ended = {
        "fairqr.models": ["refiner=openai:fake"],
        "fairqr.prompts": [f"refine=v2 {'0' * 64}"],
        **{"fairqr.model_calls": 3, "fairqr.cached_calls": 1},
        **{"fairqr.input_tokens": 300, "fairqr.output_tokens": 30},
        "fairqr.baseline_divergence": before,
    }
    at: list[dict[str, Any]] = [
        {"name": "fairqr.begin", "attributes": content},
        {"name": "fairqr.measure", "events": [divergence(before)]},
        {"name": "fairqr.choose_group", "attributes": {"fairqr.groups": ["gender=female"]}},
        {"name": "fairqr.refine", "attributes": {"fairqr.refinements": ["gender=female ok"]}},
        {"name": "fairqr.rerank", "attributes": ended, "events": [divergence(0.1)]},
    ]
    lines = [a_span(parent="r", start=number, **span) for number, span in enumerate(at)]
    root = a_span(name="invoke_workflow fairqr", span="r", start=0, attributes=asked)
    return [*lines, root]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs: a whole one, one that was killed, and what is none."""
    for number, (name, lines) in enumerate(
        {"whole": a_run(), "killed": a_run(query="who")[:3], "none": ["hello"]}.items()
    ):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("\n".join(lines) + "\n")
        os.utime(file, (number, number))
    (tmp_path / "other.txt").write_text("")
    return tmp_path


def ran(*arguments: str | Path, **environment: str) -> str:
    command = ["trace", *map(str, arguments)]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200", **environment})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return str(result.stdout)


class TestListing:
    def test_runs_are_listed_the_newest_first(self, folder: Path) -> None:
        """One that was killed, and a file that is none, stand in the list and say so."""
        none, killed, whole = json.loads(ran("list", "--folder", folder, "--json"))
        assert none == {"name": "none", "status": "unreadable"}
        assert (killed["status"], killed["query"]) == ("unfinished", "who")
        assert (whole["status"], whole["query"]) == ("ok", None)
        _, *rows = ran("list", FAIRQR_TRACE_DIR=str(folder)).splitlines()
        assert [line.split()[:2] for line in rows] == [
            ["none", "unreadable"],
            ["killed", "unfinished"],
            ["whole", "ok"],
        ]
        assert "… and 2 older" in ran("list", "--folder", folder, "--limit", "1")

    def test_a_folder_without_runs(self, tmp_path: Path) -> None:
        assert ran("list", "--folder", tmp_path).startswith("No run is recorded in")
        with pytest.raises(InputError, match="cannot be read: No such file"):
            ran("list", "--folder", tmp_path / "none")
        with pytest.raises(InputError, match="No folder of traces is configured"):
            ran("list", FAIRQR_TRACE_DIR="")

    @pytest.mark.parametrize("value", [None, True, [], {}, "x", 10**400, [1], ["=", "a"]])
    def test_attributes_may_hold_anything(self, value: Any, folder: Path) -> None:
        """Whoever wrote the file, its run is listed and shown, and the JSON is sound."""
        attributes = {
            "fairqr.query": value,
            **{f"fairqr.{key}": value for key in ("method", "attributes", "target", "k", "groups")},
            **{f"fairqr.{key}": value for key in ("models", "prompts", "model_calls", "corpus")},
            **{f"fairqr.{key}": value for key in ("input_tokens", "best_iteration", "keywords.a")},
            **{f"gen_ai.{key}": value for key in ("request.model", "usage.input_tokens")},
        }
        events = [divergence(value), {"name": "x", "attributes": {"value": value}}]
        events[0]["attributes"]["gen_ai.evaluation.explanation"] = value
        lines = [
            a_span(name=json.loads(line)["name"], attributes=attributes, events=events)
            for line in a_run()
        ]
        (folder / "odd.jsonl").write_text("\n".join(lines) + "\n")
        assert len(json.loads(ran("list", "--folder", folder, "--json"))) == 4
        ran("list", "--folder", folder)
        ran("show", "odd", "--folder", folder)

    def test_a_run_that_was_gone_on_with_ended_as_it_did_then(self, folder: Path) -> None:
        run = {"name": "invoke_workflow fairqr", "attributes": {"fairqr.thread": "t"}}
        stopped = a_span(**run, status="CancelledError")
        run["attributes"] = {"fairqr.thread": "t", "fairqr.resumed": True}
        (folder / "resumed.jsonl").write_text(f"{stopped}\n{a_span(**run, start=2.0)}\n")
        found = json.loads(ran("list", "--folder", folder, "--json"))
        assert [it["status"] for it in found if it["name"] == "resumed"] == ["ok"]

    def test_a_terminal_is_not_steered(self, folder: Path) -> None:
        (folder / "bad.jsonl").write_text("\n".join(a_run(query="\x1b[31mred")) + "\n")
        for arguments in (["show", "bad"], ["list"]):
            assert "\x1b[31m" not in ran(*arguments, "--folder", folder)


@pytest.mark.parametrize("name", ["lost", "..", "a\nb", "a\0b", "", "x" * 300])
def test_a_run_is_found_by_its_name(name: str, folder: Path) -> None:
    for known in ("whole", "whole.jsonl"):
        assert find_trace(known, folder) == folder / "whole.jsonl"
    with pytest.raises(InputError, match="There is no trace") as caught:
        find_trace(name, folder)
    assert str(caught.value).isprintable()
