"""What a search shows: a terminal that documents cannot steer, at any width."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fairqr.cli.output import say
from fairqr.cli.render import result_lines
from fairqr.graph.search.explanation import explain
from fairqr.graph.search.result import SearchResult
from tests.golden import record

Capsys = pytest.CaptureFixture[str]
GOLDEN = json.loads(Path(record.__file__).with_name("searches.json").read_text(encoding="utf-8"))
USAGE = ("model_calls", "cached_calls", "prompt_tokens", "completion_tokens", "milliseconds")
PLACE = {"rank": 1, "id": "a", "title": "Marie", "score": 1.0, "groups": {"gender": {"female": 1}}}
ODD = ["$x^$", "_hidden", "$\\frac{$", "物理学", "\x1b[2J\x00", "long " * 20]


def result(places: list[dict[str, Any]], **changes: Any) -> SearchResult:
    """A recorded result with other documents, once in the baseline and each in the fair ranking.

    Args:
        places: What they have, where it is not what :data:`PLACE` has.
        changes: Of the result.
    """
    recorded = {**GOLDEN["fair-qr-gender"], "usage": dict.fromkeys(USAGE, 0), **changes}
    ranking = [{**PLACE, **place} for place in places]
    baseline = {**recorded["baseline"], "ranking": ranking[:1]}
    return SearchResult.model_validate({**recorded, "ranking": ranking, "baseline": baseline})


@pytest.fixture(params=[0, 40, 60, 80, 200])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How wide the terminal is; one that says 0 does not know."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    found: int = request.param or 80
    return found


def test_a_title_cannot_steer_the_terminal(capsys: Capsys) -> None:
    """Escape sequences, markup and overrides of direction are shown, not obeyed."""
    found = result([{"title": "\x1b[2J[red]Ma\nrie\u202e[/red]"}], explanation=["fe\x1bmale: 12%."])
    say(result_lines(found, {}, verbose=True))
    shown = capsys.readouterr().out
    assert not {"\x1b", "\u202e"} & {*shown}
    assert "[red]Ma rie" in shown
    assert "male: 12%." in shown


def test_a_result_shows_how_its_text_begins(capsys: Capsys, columns: int) -> None:
    """Under its title, in both rankings, in one line, and without control codes."""
    found = result([{}])
    say(result_lines(found, {"a": "\x1b[2JShe found radium and 鐳 " * 20}, verbose=True))
    shown = capsys.readouterr().out
    _, below = shown.split("\n1 Marie", 1)
    _, first, end, *_ = below.splitlines()
    assert "\x1b" not in shown
    assert first.count("[2JShe") >= 2 or columns < 60
    assert first.count("…") == 2
    assert end.startswith("'physicist' in notables")


def test_long_names_of_groups_break_no_line(capsys: Capsys, columns: int) -> None:
    """They are cut, as bars and titles are, but no figure; wide characters are counted by cells."""
    exposure = {"field": {name: 1 / len(ODD) for name in ODD}}
    told = {"exposure": exposure, "divergence": 0.1, "divergences": {"field": 0.1}}
    more: dict[str, Any] = {"baseline": told, "target": exposure, "unknown": {"field": 0.0}}
    groups = {"place": {"North America": 1.0}, "gender": {"female": 1.0}}
    places = [{"title": "物理学 " * 20, "groups": groups, "rank": n} for n in range(1, 121)]
    say(result_lines(result(places, **told, **more, iterations=[]), {}))
    shown = capsys.readouterr().out.splitlines()
    bars = [line for line in shown if "┃" in line]
    assert len(bars) == len(ODD)
    assert len({cell_len(line) for line in bars}) == 1
    assert all(line.endswith("%") for line in bars)
    assert cell_len(bars[0]) <= columns
    assert any("…" in line for line in bars)
    (last,) = [line for line in shown if line.startswith("120 ")]
    assert "…" in last
    assert columns < 80 or ", f" in last


@pytest.mark.parametrize("name", GOLDEN)
def test_who_is_seen_comes_first(capsys: Capsys, columns: int, name: str) -> None:
    """By the group that lacks most, in the figures of ``--json``; the rounds have a line each."""
    ids = [{"id": id_} for id_, *_ in GOLDEN[name]["ranking"]]
    found = result(ids[:1] if name == "baseline" else ids, **GOLDEN[name])
    say(result_lines(found, {}))
    shown = capsys.readouterr().out
    assert all(cell_len(line) <= columns for line in shown.splitlines())
    lists = (found.baseline.exposure, found.target, found.exposure)
    before, wanted, after = (next(iter(each.values())) for each in lists)
    group = max(wanted, key=lambda it: wanted[it] - before[it])
    figures = [f"{it[group]:.0%}" for it in (before, wanted, after)][
        : 2 if name == "baseline" else 3
    ]
    # At 40 columns the sentence has several lines.
    assert re.findall(r"^.*?(?=:)|\d+%", shown.partition("\n  ")[0]) == [group, *figures]
    assert ("No model was needed." in " ".join(shown.split())) == (found.model is None)
    assert (f"{found.best_iteration} kept" in shown) == bool(found.model)
    asked = shown.partition("\nround ")[2].partition("\nEnded: ")[0].splitlines()
    told = [str(it.index) for it in found.iterations] if found.model else []
    assert [line.split()[0] for line in asked[-len(told) :]] == told


def test_all_else_is_verbose(capsys: Capsys) -> None:
    """What was left out is there; no tokens are told where no model was asked."""
    asked = dict.fromkeys(USAGE, 7)
    why = ["The target: half of it.", "Two points were withheld by the ranking."]
    found = result([{}], explanation=why, usage=asked)
    say(result_lines(found, {}, verbose=True))
    shown = " ".join(capsys.readouterr().out.split())
    parts = ["method fair-qr", "7 + 7 tokens", "scripted was asked", "Retriever bm25"]
    parts.append("withheld by the ranking")
    for it in found.iterations:
        parts += [f"{it.divergence:.4f}", *(f"{x:.1%}" for x in it.exposure["gender"].values())]
        parts += [word for each in it.refinements for word in each.keywords]
    assert [part for part in parts if part not in shown] == []
    say(result_lines(result([{}]), {}, verbose=True))
    assert "tokens" not in capsys.readouterr().out
    changes = {"target": found.baseline.exposure, "relevance": 0.5, "usage": asked}
    changes["explanation"] = why
    say(result_lines(result([{}], **{**GOLDEN["default-gender"], **changes}), {}))
    shown = capsys.readouterr().out
    assert shown.startswith("gender: no group is a point or more below")
    before = GOLDEN["default-gender"]["baseline"]["objective"]["relevance"]
    assert f"Cost: expected relevance {before:.2f} → " in shown
    assert "The target: half of it." in shown
    assert not any(part in shown for part in ("withheld", "tokens", "method"))


@pytest.mark.parametrize(
    ("share", "told", "style"),
    [(0.27, "Fair order: 27%", "green"), (0.6, "Fair order: 60%, 33 points too much", "yellow")],
)
def test_more_than_the_target_is_no_success(
    capsys: Capsys, share: float, told: str, style: str
) -> None:
    exposure = {"gender": {"female": share, "male": 1 - share}}
    target = {"gender": {"female": 0.27, "male": 0.73}}
    places = [{}, {"id": "b", "rank": 2}]
    found = result(places, exposure=exposure, target=target, expected_relevance=0.06)
    say(result_lines(found, {}, verbose=False))
    shown = " ".join(capsys.readouterr().out.split())
    assert told in shown
    assert "relevance by rank" in shown
    assert "→ 0.06" in shown
    bars = next(it for it in result_lines(found, {}, verbose=False) if isinstance(it, Table))
    cells = [cell for column in bars.columns for cell in column.cells if isinstance(cell, Text)]
    styles = {str(cell.style) for cell in cells if cell.plain == f"{share:.0%}"}
    assert styles - {"dim"} == {style}, "the target's own column is dim"


def test_what_models_did_is_told_as_it_was(capsys: Capsys) -> None:
    """That none was needed only where documents were enough; that one refined only if it did."""
    baseline, loop = GOLDEN["baseline"], GOLDEN["fair-qr-gender"]
    gaps = {name: {"gender": {"female": 0.2}} for name in ("unattainable", "ranking")}
    failed = [{**it, "refinements": []} for it in loop["iterations"]]
    for found, said in (
        (result([{}], **baseline), "No model was needed."),
        (result([{}], **{**baseline, "gaps": gaps}), "No model was asked."),
        (result([{}], **{**loop, "best_iteration": 1}), "Refined by scripted."),
        (result([{}], **loop), "scripted was asked in vain."),
        (result([{}], **{**loop, "iterations": failed}), "scripted was asked in vain."),
    ):
        say(result_lines(found, {}))
        shown = " ".join(capsys.readouterr().out.split())
        assert said in shown
        assert ("Re-ranked by the original query" in shown) == said.startswith("Refined")


TOPIC = {
    "words": ["physics", "quantum", "relativity", "particle"],
    "queries": ["who studies matter"],
    "passage": "Ada studied the atom.",
    "left_out": [{"text": "physicist", "reason": "repeats the query"}],
}
WOMEN = {
    "attribute": "gender",
    "group": "female",
    "keywords": ["she"],
    "names": ["Lise Meitner", "Marie Curie", "Emmy Noether", "Laura Bassi"],
    "left_out": [{"text": "", "reason": "9 names were too many"}],
}


def with_words(**evidence: float) -> SearchResult:
    """A result in which words of a large model counted for a document that rose."""
    recorded = GOLDEN["default-gender"]
    first = recorded["iterations"][0]
    refined = {**first, "index": 1, "queries": ["physicist she"], "topic": TOPIC}
    refined["refinements"] = [WOMEN]
    places = [{}, {"id": "b", "title": "Lise", "rank": 1, "evidence": evidence}]
    rounds = {"iterations": [first, refined], "best_iteration": 1, "model": "large"}
    return result(places, **{**recorded, **rounds})


def test_a_round_has_a_line_with_the_first_words_that_it_adds(capsys: Capsys, columns: int) -> None:
    """Names come first, since they say most; what of the reply was not used is for --verbose."""
    say(result_lines(with_words(query=0.4, topic=0.5, named=0.95), {}))
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("1 kept")]
    assert cell_len(line) <= columns
    if columns == 200:
        words = "topic: physics, quantum, relativity …; female: Lise Meitner, Marie Curie, Emmy"
        assert words in line
    assert "repeats the query" not in shown
    (risen,) = [line for line in shown.splitlines() if "Lise" in line and "new" in line]
    assert risen.split()[-1] == "name" or columns < 60


def test_what_the_query_says_itself_is_not_put_down_to_the_model(capsys: Capsys) -> None:
    say(result_lines(with_words(query=0.9, topic=0.5), {}))
    shown = capsys.readouterr().out
    (risen,) = [line for line in shown.splitlines() if "Lise" in line and "new" in line]
    assert risen.split()[-1] == "new"


def test_verbose_says_what_was_left_out_and_what_speaks_for_a_document(capsys: Capsys) -> None:
    say(result_lines(with_words(query=0.4, topic=0.5, named=0.95), {}, verbose=True))
    shown = " ".join(capsys.readouterr().out.split())
    assert "topic, left out: 'physicist' repeats the query" in shown
    assert "female, left out: 9 names were too many" in shown
    assert "names: Lise Meitner, Marie Curie, Emmy Noether, Laura Bassi" in shown
    assert "topic, other queries: who studies matter" in shown
    assert "searched: physicist she" in shown
    assert "query topic name" in shown
    assert "0.40 0.50 0.95" in shown


@pytest.mark.parametrize(
    ("retriever", "said"),
    [
        ("bm25", "Found by words alone."),
        ("dense:minilm", "searches now use words and vectors by default"),
        ("dense:openai:small", "Found by vectors of openai:small alone."),
        ("hybrid:minilm", "since vectors of minilm are stored for this index"),
        ("hybrid-pool:minilm", "no vectors are stored, so minilm reads texts"),
        ("my engine", "Found by my engine."),
    ],
)
def test_the_screen_says_what_found_the_documents_and_why(
    capsys: Capsys, retriever: str, said: str
) -> None:
    say(result_lines(result([{}], retriever=retriever), {}))
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("origin", "says"),
    [
        ("half what the results have, half the population in your source", True),
        ("the shares that you gave", False),
    ],
)
def test_a_target_that_an_audit_cannot_have_says_what_an_audit_aims_at(
    origin: str, says: bool
) -> None:
    first, *_ = explain(result([{}], target_origin={"gender": origin}))
    assert first.startswith(f"The target: {origin}.")
    assert ("An audit aims at what the relevant documents have." in first) == says
