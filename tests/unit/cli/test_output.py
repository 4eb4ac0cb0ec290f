"""What a search shows: a terminal that documents cannot steer, at any width."""

from __future__ import annotations

import pytest

from fairqr.cli.output import say
from fairqr.cli.render import result_lines
from fairqr.graph.search.result import SearchResult

EXPOSURE = {"gender": {"female": 0.25, "male": 0.75}}


def result(title: str = "Marie Curie", divergence: float | None = 0.1) -> SearchResult:
    place = {"rank": 1, "id": "a", "title": title, "score": 1.0}
    ranking = [{**place, "groups": {"gender": {"female": 1.0}}}]
    measured = {"exposure": EXPOSURE, "divergence": divergence}
    measured |= {"divergences": {"gender": divergence}}
    asked = {"query": "<b>physicist</b>", "corpus": "people", "method": "fairqr"}
    asked |= {"model": "openai:fake", "stop_reason": "converged"}
    usage = dict.fromkeys(("model_calls", "cached_calls", "prompt_tokens", "completion_tokens"), 0)
    return SearchResult.model_validate(
        {
            **asked,
            **measured,
            "prompt": None,
            "attributes": ["gender"],
            "target": {"gender": {"female": 0.5, "male": 0.5}},
            "iterations": [{"index": 0, "queries": ["physicist"], "refinements": [], **measured}],
            "best_iteration": 0,
            "ranking": ranking,
            "unknown": {"gender": 0.0},
            "baseline": {"ranking": ranking, **measured},
            "usage": {**usage, "milliseconds": 1.0},
        }
    )


def show(found: SearchResult, passages: dict[str, str]) -> None:
    say(result_lines(found, passages))


def test_a_title_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, markup and overrides of direction in a title are shown, not obeyed."""
    show(result("\x1b[2J[red]Ma\nrie\u202e[/red]"), {})
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[red]Ma rie" in shown


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_result_shows_how_its_text_begins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Under its title, in both rankings, in one line, and without control codes."""
    monkeypatch.setenv("COLUMNS", str(columns))
    show(result(), {"a": "\x1b[2JShe found radium and 鐳 " * 20})
    shown = capsys.readouterr().out
    _, below = shown.split("\n1 Marie", 1)
    _, first, end, *_ = below.splitlines()
    assert "\x1b" not in shown
    assert first.count("[2JShe found") >= 2
    assert first.count("…") == 2
    assert end.startswith("found by bm25")


def test_what_is_missing_is_said_or_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A title, labels, a divergence; and an explanation cannot steer the terminal."""
    plain = result(title="", divergence=None)
    place = plain.ranking[0].model_copy(update={"id": "doc-42"})
    changes = {
        "ranking": [place],
        "unknown": {"gender": 0.125},
        "explanation": ["fe\x1bmale: 12%."],
    }
    baseline = plain.baseline.model_copy(update={"ranking": [place]})
    show(plain.model_copy(update={**changes, "baseline": baseline}), {})
    shown = capsys.readouterr().out
    assert shown.count("doc-42") == 2
    assert "12.5% of the exposure has no label for 'gender'" in shown
    assert "male: 12%." in shown
    assert "\x1b" not in shown


def grouped(names: list[str]) -> SearchResult:
    """A result with these groups."""
    exposure = {"field": {name: 1 / len(names) for name in names}}
    plain = result()
    measured = {"exposure": exposure, "divergences": {"field": 0.1}}
    return plain.model_copy(
        update={
            "target": exposure,
            "exposure": exposure,
            "iterations": [plain.iterations[0].model_copy(update=measured)],
        }
    )


ODD = ["$x^$", "_hidden", "$\\frac{$", "物理学", "\x1b[2J\x00", "long " * 20]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_long_names_of_groups_break_no_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """They are cut, as bars are, but no figure; wide characters are counted by their cells."""
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", str(columns))
    show(grouped(ODD), {})
    bars = [
        line for line in capsys.readouterr().out.splitlines() if " target " in line and "┃" in line
    ]
    assert len(bars) == 2 * len(ODD)
    assert len({cell_len(line) for line in bars}) == 1
    assert all(line.endswith("%") for line in bars)
    assert cell_len(bars[0]) <= columns
    assert any("…" in line for line in bars)
    assert not any("\x1b" in line for line in bars)


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_ranks_moves_and_a_part_of_each_label_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Whatever the width; what is too long ends with an ellipsis."""
    monkeypatch.setenv("COLUMNS", str(columns))
    plain = result()
    groups = {"place": {"North America": 1.0}, "gender": {"female": 1.0}}
    ranking = [
        plain.ranking[0].model_copy(
            update={"rank": rank, "id": str(rank), "title": "物理学 " * 20, "groups": groups}
        )
        for rank in range(1, 121)
    ]
    show(plain.model_copy(update={"ranking": ranking}), {})
    lines = capsys.readouterr().out.splitlines()
    (last,) = [line for line in lines if line.startswith("120 ")]
    assert last.rstrip().endswith("new")
    assert "…" in last
    assert columns < 80 or ", f" in last
