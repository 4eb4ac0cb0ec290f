"""What a search shows: a terminal that documents cannot steer, at any width."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from fairqr.cli.output import say
from fairqr.cli.render import result_lines
from fairqr.graph.search.result import SearchResult
from tests.golden import record

GOLDEN = json.loads(Path(record.__file__).with_name("searches.json").read_text(encoding="utf-8"))
USAGE = ("model_calls", "cached_calls", "prompt_tokens", "completion_tokens", "milliseconds")
PLACE = {"rank": 1, "id": "a", "title": "Marie", "score": 1.0, "groups": {"gender": {"female": 1}}}
ODD = ["$x^$", "_hidden", "$\\frac{$", "物理学", "\x1b[2J\x00", "long " * 20]


def result(places: list[dict[str, Any]], **changes: Any) -> SearchResult:
    """A recorded result with other documents, once in the plain ranking and each in the fair one.

    Args:
        places: What they have, where it is not what :data:`PLACE` has.
        changes: Of the result.
    """
    recorded = {**GOLDEN["fair-qr-gender"], "usage": dict.fromkeys(USAGE, 0)}
    ranking = [{**PLACE, **place} for place in places]
    baseline = {**recorded["baseline"], "ranking": ranking[:1]}
    changed = {**recorded, "ranking": ranking, "baseline": baseline, **changes}
    return SearchResult.model_validate(changed)


@pytest.fixture(params=[40, 80, 200])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How wide the terminal is."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    found: int = request.param
    return found


def test_a_title_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, markup and overrides of direction are shown, not obeyed."""
    found = result([{"title": "\x1b[2J[red]Ma\nrie\u202e[/red]"}], explanation=["fe\x1bmale: 12%."])
    say(result_lines(found, {}))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[red]Ma rie" in shown
    assert "male: 12%." in shown


def test_a_result_shows_how_its_text_begins(
    capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """Under its title, in both rankings, in one line, and without control codes."""
    found = result([{}])
    say(result_lines(found, {"a": "\x1b[2JShe found radium and 鐳 " * 20}))
    shown = capsys.readouterr().out
    _, below = shown.split("\n1 Marie", 1)
    _, first, end, *_ = below.splitlines()
    assert "\x1b" not in shown
    assert first.count("[2JShe") >= 2 or columns < 60
    assert first.count("…") == 2
    assert end.startswith("found by bm25")


def test_long_names_of_groups_break_no_line(
    capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """They are cut, as bars are, but no figure; wide characters are counted by their cells."""
    exposure = {"field": {name: 1 / len(ODD) for name in ODD}}
    measured = {"exposure": exposure, "divergences": {"field": 0.1}}
    first = {**GOLDEN["fair-qr-gender"]["iterations"][0], **measured}
    found = result([{}], target=exposure, **measured, iterations=[first], best_iteration=0)
    say(result_lines(found, {}))
    bars = [line for line in capsys.readouterr().out.splitlines() if " target " in line]
    bars = [line for line in bars if "┃" in line]
    assert len(bars) == 2 * len(ODD)
    assert len({cell_len(line) for line in bars}) == 1
    assert all(line.endswith("%") for line in bars)
    assert cell_len(bars[0]) <= columns
    assert any("…" in line for line in bars)


def test_ranks_moves_and_a_part_of_each_label_are_shown(
    capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """Whatever the width; what is too long ends with an ellipsis."""
    groups = {"place": {"North America": 1.0}, "gender": {"female": 1.0}}
    more = {"title": "物理学 " * 20, "groups": groups}
    say(result_lines(result([{"rank": n, "id": str(n), **more} for n in range(1, 121)]), {}))
    (last,) = [it for it in capsys.readouterr().out.splitlines() if it.startswith("120 ")]
    assert last.rstrip().endswith("new")
    assert "…" in last
    assert columns < 80 or ", f" in last
