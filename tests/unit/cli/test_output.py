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
    width: int = request.param or 80
    return width


def printed(capsys: Capsys, result: SearchResult, **options: Any) -> str:
    """Print a result and return the text."""
    say(result_lines(result, {}, **options))
    return capsys.readouterr().out


def in_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.promise("command")
def test_a_title_cannot_steer_the_terminal(capsys: Capsys) -> None:
    """Titles of documents and names of groups cannot steer the terminal: escape sequences, markup
    and overrides of direction are shown, not obeyed.
    """
    hostile = [{"title": "\x1b[2J[red]Ma\nrie\u202e[/red]"}]
    shown = result(hostile, explanation=["fe\x1bmale: 12%."])
    text = printed(capsys, shown, verbose=True)

    assert not {"\x1b", "\u202e"} & {*text}
    assert "[red]Ma rie" in text
    assert "male: 12%." in text


def test_a_result_shows_how_its_text_begins(capsys: Capsys, columns: int) -> None:
    """Under its title, in both rankings, in one line, and without control codes."""
    texts = {"a": "\x1b[2JShe found radium and 鐳 " * 20}
    say(result_lines(result([{}]), texts, verbose=True))
    text = capsys.readouterr().out
    _, below = text.split("\n1 Marie", 1)
    _, first, end, *_ = below.splitlines()

    assert "\x1b" not in text
    assert first.count("[2JShe") >= 2 or columns < 60
    assert first.count("…") == 2
    assert end.startswith("'physicist' in notables")


@pytest.fixture
def lines_with_long_names(capsys: Capsys, columns: int) -> list[str]:
    """What is printed of groups and titles with long names."""
    exposure = {"field": {name: 1 / len(ODD) for name in ODD}}
    figures = {"exposure": exposure, "divergence": 0.1, "divergences": {"field": 0.1}}
    lists: dict[str, Any] = {"baseline": figures, "target": exposure, "unknown": {"field": 0.0}}
    groups = {"place": {"North America": 1.0}, "gender": {"female": 1.0}}
    place = {"title": "物理学 " * 20, "groups": groups}
    places = [{**place, "rank": rank} for rank in range(1, 121)]
    text = printed(capsys, result(places, **figures, **lists, iterations=[]))
    return text.splitlines()


def test_long_names_of_groups_break_no_line(lines_with_long_names: list[str], columns: int) -> None:
    """They are cut, as bars are, but no figure; wide characters are counted by cells."""
    bars = [line for line in lines_with_long_names if "┃" in line]
    assert len(bars) == len(ODD)
    assert len({cell_len(line) for line in bars}) == 1
    assert all(line.endswith("%") for line in bars)
    assert cell_len(bars[0]) <= columns
    assert any("…" in line for line in bars)


def test_long_titles_are_cut(lines_with_long_names: list[str], columns: int) -> None:
    (last,) = [line for line in lines_with_long_names if line.startswith("120 ")]
    assert "…" in last
    assert columns < 80 or ", f" in last


def recorded_result(name: str) -> SearchResult:
    """Return a recorded result; a baseline has one document."""
    ids = [{"id": id_} for id_, *_ in GOLDEN[name]["ranking"]]
    return result(ids[:1] if name == "baseline" else ids, **GOLDEN[name])


@pytest.mark.promise("command")
@pytest.mark.parametrize("name", GOLDEN)
def test_who_is_seen_comes_first(capsys: Capsys, columns: int, name: str) -> None:
    """What a search prints opens with the group that lacks most and who is seen, in the figures of
    `--json`, and fits a terminal of 40 columns.
    """
    recorded = recorded_result(name)
    text = printed(capsys, recorded)
    before, target, after = (
        next(iter(shares.values()))
        for shares in (recorded.baseline.exposure, recorded.target, recorded.exposure)
    )
    group = max(target, key=lambda name: target[name] - before[name])
    figures = [f"{before[group]:.0%}", f"{target[group]:.0%}"]
    if name != "baseline":
        figures.append(f"{after[group]:.0%}")

    # At 40 columns the sentence has several lines.
    assert re.findall(r"^.*?(?=:)|\d+%", text.partition("\n  ")[0]) == [group, *figures]
    assert all(cell_len(line) <= columns for line in text.splitlines())


@pytest.mark.promise("command")
@pytest.mark.parametrize("name", GOLDEN)
def test_each_round_has_a_line(capsys: Capsys, columns: int, name: str) -> None:
    """Each round of a search has a line, and the one that was kept is marked."""
    recorded = recorded_result(name)
    text = printed(capsys, recorded)
    assert ("No model was needed." in in_one_line(text)) == (recorded.model is None)
    assert (f"{recorded.best_iteration} kept" in text) == bool(recorded.model)

    if recorded.model:
        rounds = [str(round_.index) for round_ in recorded.iterations]
        lines = text.partition("\nround ")[2].partition("\nEnded: ")[0].splitlines()
        assert [line.split()[0] for line in lines[-len(rounds) :]] == rounds


SENTENCES = ["The target: half of it.", "Two points were withheld by the ranking."]
SEVEN_OF_EACH = dict.fromkeys(USAGE, 7)


@pytest.mark.promise("command")
def test_all_else_is_verbose(capsys: Capsys) -> None:
    """What a search leaves out of its short text stands in that of `--verbose`."""
    shown = result([{}], explanation=SENTENCES, usage=SEVEN_OF_EACH)
    text = in_one_line(printed(capsys, shown, verbose=True))
    parts = ["method fair-qr", "7 + 7 tokens", "scripted was asked", "Retriever bm25"]
    parts.append("withheld by the ranking")
    for round_ in shown.iterations:
        parts.append(f"{round_.divergence:.4f}")
        parts += [f"{share:.1%}" for share in round_.exposure["gender"].values()]
        for refinement in round_.refinements:
            parts += refinement.keywords

    assert [part for part in parts if part not in text] == []


def test_no_tokens_are_told_where_no_model_was_asked(capsys: Capsys) -> None:
    assert "tokens" not in printed(capsys, result([{}]), verbose=True)


def test_a_short_text_has_the_cost_and_the_target_alone(capsys: Capsys) -> None:
    recorded = GOLDEN["default-gender"]
    baseline = recorded["baseline"]
    changes = {**recorded, "relevance": 0.5, "usage": SEVEN_OF_EACH, "explanation": SENTENCES}
    text = printed(capsys, result([{}], **{**changes, "target": baseline["exposure"]}))

    assert text.startswith("gender: no group is a point or more below")

    before = baseline["objective"]["relevance"]
    assert f"Cost: expected relevance {before:.2f} → " in text
    assert "The target: half of it." in text
    assert [part for part in ("withheld", "tokens", "method") if part in text] == []


@pytest.mark.promise("graph")
@pytest.mark.parametrize(
    ("share", "sentence", "style"),
    [(0.27, "Fair order: 27%", "green"), (0.6, "Fair order: 60%, 33 points too much", "yellow")],
    ids=["on target", "too much"],
)
def test_more_than_the_target_is_no_success(
    capsys: Capsys, share: float, sentence: str, style: str
) -> None:
    """A group that has more than its target is no success, and the output says by how much."""
    exposure = {"gender": {"female": share, "male": 1 - share}}
    target = {"gender": {"female": 0.27, "male": 0.73}}
    places = [{}, {"id": "b", "rank": 2}]
    shown = result(places, exposure=exposure, target=target, expected_relevance=0.06)
    text = in_one_line(printed(capsys, shown, verbose=False))

    assert sentence in text
    assert "relevance by rank" in text
    assert "→ 0.06" in text

    lines = result_lines(shown, {}, verbose=False)
    bars, *_ = [line for line in lines if isinstance(line, Table)]
    cells = [cell for column in bars.columns for cell in column.cells if isinstance(cell, Text)]
    styles = {str(cell.style) for cell in cells if cell.plain == f"{share:.0%}"}

    assert styles - {"dim"} == {style}, "the target's own column is dim"


BASELINE = GOLDEN["baseline"]
LOOP = GOLDEN["fair-qr-gender"]
GAPS = {name: {"gender": {"female": 0.2}} for name in ("unattainable", "ranking")}
FAILED = [{**round_, "refinements": []} for round_ in LOOP["iterations"]]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (BASELINE, "No model was needed."),
        ({**BASELINE, "gaps": GAPS}, "No model was asked."),
        ({**LOOP, "best_iteration": 1}, "Refined by scripted."),
        (LOOP, "scripted was asked in vain."),
        ({**LOOP, "iterations": FAILED}, "scripted was asked in vain."),
    ],
    ids=["enough", "too few", "refined", "in vain", "no reply"],
)
def test_what_models_did_is_told_as_it_was(
    capsys: Capsys, changes: dict[str, Any], sentence: str
) -> None:
    """That none was needed only where documents were enough; that one refined only if it did."""
    text = in_one_line(printed(capsys, result([{}], **changes)))
    is_refined = sentence.startswith("Refined")
    assert sentence in text
    assert ("Re-ranked by the original query" in text) == is_refined


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
    refined = {
        **first,
        "index": 1,
        "queries": ["physicist she"],
        "topic": TOPIC,
        "refinements": [WOMEN],
    }
    places = [{}, {"id": "b", "title": "Lise", "rank": 1, "evidence": evidence}]
    rounds = {"iterations": [first, refined], "best_iteration": 1, "model": "large"}
    return result(places, **{**recorded, **rounds})


def risen_line(text: str) -> str:
    """Return the line of the document that rose."""
    (line,) = [line for line in text.splitlines() if "Lise" in line and "new" in line]
    return line


def test_a_round_shows_the_first_words_that_it_adds(capsys: Capsys, columns: int) -> None:
    """Names come first, since they say most; what of the reply was not used is for --verbose."""
    text = printed(capsys, with_words(query=0.4, topic=0.5, named=0.95))
    (line,) = [line for line in text.splitlines() if line.startswith("1 kept")]
    assert cell_len(line) <= columns

    if columns == 200:
        words = "topic: physics, quantum, relativity …; female: Lise Meitner, Marie Curie, Emmy"
        assert words in line
    assert "repeats the query" not in text


def test_a_document_that_rose_says_why(capsys: Capsys, columns: int) -> None:
    text = printed(capsys, with_words(query=0.4, topic=0.5, named=0.95))
    assert risen_line(text).split()[-1] == "name" or columns < 60


def test_words_of_the_query_are_not_put_down_to_the_model(capsys: Capsys) -> None:
    text = printed(capsys, with_words(query=0.9, topic=0.5))
    assert risen_line(text).split()[-1] == "new"


def test_verbose_says_what_was_left_out_of_a_reply(capsys: Capsys) -> None:
    words = with_words(query=0.4, topic=0.5, named=0.95)
    text = in_one_line(printed(capsys, words, verbose=True))
    assert "topic, left out: 'physicist' repeats the query" in text
    assert "female, left out: 9 names were too many" in text


def test_verbose_says_what_was_searched_and_what_counted(capsys: Capsys) -> None:
    words = with_words(query=0.4, topic=0.5, named=0.95)
    text = in_one_line(printed(capsys, words, verbose=True))
    assert "names: Lise Meitner, Marie Curie, Emmy Noether, Laura Bassi" in text
    assert "topic, other queries: who studies matter" in text
    assert "searched: physicist she" in text
    assert "query topic name" in text
    assert "0.40 0.50 0.95" in text


@pytest.mark.parametrize(
    ("retriever", "sentence"),
    [
        ("bm25", "Found by words alone."),
        ("dense:minilm", "searches now use words and vectors by default"),
        ("dense:openai:small", "Found by vectors of openai:small alone."),
        ("hybrid:minilm", "since vectors of minilm are stored for this index"),
        ("hybrid-pool:minilm", "no vectors are stored, so minilm reads texts"),
        ("my engine", "Found by my engine."),
    ],
)
def test_the_screen_says_what_found_the_documents(
    capsys: Capsys, retriever: str, sentence: str
) -> None:
    text = printed(capsys, result([{}], retriever=retriever))
    assert sentence in in_one_line(text)


@pytest.mark.parametrize(
    ("origin", "says"),
    [
        ("half what the results have, half the population in your source", True),
        ("the shares that you gave", False),
    ],
    ids=["of the results", "given"],
)
def test_a_target_no_audit_can_have_says_what_audits_aim_at(origin: str, says: bool) -> None:
    first, *_ = explain(result([{}], target_origin={"gender": origin}))
    assert first.startswith(f"The target: {origin}.")
    assert ("An audit aims at what the relevant documents have." in first) == says
