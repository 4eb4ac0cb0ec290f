"""``fairqr attach`` and ``fairqr source``: what they print, register and refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr.retrieval.sources.catalog import Catalog

Fairqr = Callable[..., tuple[str, str]]

RUN = """name: exported
engine: run
runs: exported.run
documents: people.jsonl
attributes:
  gender: {field: sex, groups: {female: [F], male: [M]}, population: {female: 0.5, male: 0.5}}
"""
EMBEDDED = """name: embedded
engine: tantivy
documents: people.jsonl
attributes:
  gender: {field: sex, groups: {female: [F], male: [M]}}
"""


@pytest.fixture
def fairqr(fairqr: Callable[..., Any]) -> Fairqr:
    """Runs the command in a folder with two sources, and checks the code with which it ends."""
    people = [("1", "Ada", "F"), ("2", "Alan", "M"), ("3", "Grace", "F"), ("4", "Nobody", "X")]
    lines = [json.dumps({"id": id_, "title": name, "sex": sex}) for id_, name, sex in people]
    Path("people.jsonl").write_text("\n".join(lines) + "\n")
    ranked = "".join(f"q1 Q0 {id_} {id_} {5 - int(id_)} mine\n" for id_, _, _ in people)
    Path("exported.run").write_text(ranked)
    schema = {"attributes": {"gender": {"field": "sex", "groups": {"f": ["F", "X"], "m": ["M"]}}}}
    Path("people.schema.yaml").write_text(json.dumps(schema))
    Path("exported.source.yaml").write_text(RUN)
    Path("embedded.source.yaml").write_text(EMBEDDED)

    def call(*arguments: str, code: int = 0) -> tuple[str, str]:
        ended = fairqr(*arguments)
        assert ended.code == code, ended
        return ("", ended.complaint()) if code else ended[1:]

    return call


@pytest.mark.promise("engines")
def test_a_source_is_checked_and_registered(fairqr: Fairqr, tmp_path: Path) -> None:
    """Attaching a source checks it first: the check says how many documents have a group of each
    label, and then the source can be searched by its name.
    """
    stdout, _ = fairqr("attach", "exported.source.yaml")
    assert stdout.startswith("exported: run at ")
    assert "gender, from sex: 3 of 4 documents have a group (75.0%)" in stdout
    assert stdout.endswith("exported: attached; search it with --corpus exported\n")

    file = tmp_path / "exported.source.yaml"
    assert Catalog().sources() == {"exported": file}
    assert fairqr("source", "list")[0] == f"exported\trun\t{file}\n"


def test_a_source_is_checked_by_its_name_as_by_its_file(fairqr: Fairqr) -> None:
    fairqr("attach", "exported.source.yaml")
    by_name = fairqr("source", "check", "exported", "--json")[0]
    by_file = fairqr("source", "check", "exported.source.yaml", "--json")[0]

    assert by_name == by_file
    assert json.loads(by_name)["documents"] == 4


def test_a_source_is_removed_and_its_file_stays(fairqr: Fairqr) -> None:
    fairqr("attach", "exported.source.yaml")
    assert fairqr("source", "remove", "exported")[0] == "exported: no longer attached\n"
    assert Path("exported.source.yaml").exists()
    assert "exported" in fairqr("source", "remove", "exported", code=2)[1]


def test_an_embedded_source_is_indexed_and_checked(fairqr: Fairqr) -> None:
    report = json.loads(fairqr("source", "check", "embedded.source.yaml", "--json")[0])
    assert (report["documents"], report["attributes"][0]["labelled"]) == (4, 3)
    assert report["sample"][0]["groups"] == {"gender": {"female": 1.0}}
    assert Catalog().sources() == {}


def test_a_share_of_all_has_its_figure(fairqr: Fairqr) -> None:
    Path("ada.jsonl").write_text('{"id": "1", "title": "Ada", "sex": "F"}\n')
    Path("ada.schema.yaml").write_text(Path("people.schema.yaml").read_text())
    assert "gender: f 100.0%, m 0.0%, unknown 0.0%" in fairqr("corpus", "check", "ada.jsonl")[0]


def write_corpus(values: list[Any], attribute: str) -> None:
    """Write documents with these values of a field, and a schema with an attribute."""
    rows = [{"id": str(row), "title": "x", "a": value} for row, value in enumerate(values)]
    Path("c.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("c.schema.yaml").write_text(f"attributes:\n  a: {{field: a, {attribute}}}\n")


DATES = [-631152000000, 631152000000, 631152000000, 1950]
DECADES = "groups: {older: {lt: 1980}, younger: {gte: 1980}}"


@pytest.mark.promise("engines")
@pytest.mark.parametrize(
    ("groups", "values", "examples", "remedy"),
    [
        (
            DECADES,
            DATES,
            ["631152000000, -631152000000; "],
            "if they are dates, state their form under 'dates', such as epoch_millis.",
        ),
        (
            "groups: {a: [x], b: [y]}",
            [True, False, True, "x"],
            ["true, false; "],
            "list them under 'groups'",
        ),
        (
            "groups: {a: [x], b: [y]}",
            ["x", ["p", 5], None, "unknown"],
            ["p; ", "5; "],
            "list them",
        ),
        ("groups: {a: [x], b: [y]}", [*"abcdefg"], [", …; "], "list them"),
    ],
    ids=["dates", "booleans", "lists", "many"],
)
def test_a_check_of_a_file_shows_values_that_belong_to_no_group(
    fairqr: Fairqr, groups: str, values: list[Any], examples: list[str], remedy: str
) -> None:
    """A check lists the values that belong to no group, as they must be written in a schema, and
    says what to do.
    """
    write_corpus(values, groups)
    lines = fairqr("corpus", "check", "c.jsonl")[0].splitlines()
    (note,) = [line for line in lines if "no group" in line]

    assert note.startswith("note: Values of a that belong to no group and count as unknown: ")
    assert any(example in note for example in examples)
    assert remedy in note


def test_dates_whose_form_is_stated_belong_to_groups(fairqr: Fairqr) -> None:
    write_corpus(DATES, f"dates: epoch_millis, {DECADES}")
    report = json.loads(fairqr("corpus", "check", "c.jsonl", "--json")[0])
    assert report["shares"]["a"] == {"older": 0.5, "younger": 0.5}


def test_a_check_of_a_file_shows_values_of_a_file_of_labels(fairqr: Fairqr) -> None:
    Path("c.jsonl").write_text('{"id": "1", "title": "x"}\n')
    Path("labels.csv").write_text("id,a\n1,True\n2,q\n")
    groups = "{yes: [true], no: [false]}"
    Path("c.schema.yaml").write_text(
        f"attributes:\n  a: {{labels: labels.csv, groups: {groups}}}\n"
    )
    report = json.loads(fairqr("corpus", "check", "c.jsonl", "--json")[0])

    assert report["without_group"] == {"a": {"q": 1}}
    assert report["shares"]["a"] == {"yes": 1.0, "no": 0.0}


def test_the_check_of_a_source_shows_booleans_as_it_has_them(fairqr: Fairqr) -> None:
    rows = [{"id": str(row), "title": "x", "a": row % 2 == 0} for row in range(4)]
    Path("c.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("c.source.yaml").write_text(
        "name: c\nengine: tantivy\ndocuments: c.jsonl\n"
        "attributes:\n  a: {field: a, groups: {y: [true], n: [other]}}\n"
    )
    report = json.loads(fairqr("source", "check", "c.source.yaml", "--json")[0])

    assert [value["value"] for value in report["attributes"][0]["values"]] == ["false", "true"]


@pytest.mark.promise("engines")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["exported.source.yaml"], "exported.run"),
        ([], "needs a source file; name one"),
        (["--draft"], "--draft needs the index"),
        (["x.yaml", "--draft", "--index", "x"], "FILE cannot be combined with --draft"),
        (["x.yaml", "--url", "http://x"], "need --draft"),
    ],
    ids=["no run", "no file", "no index", "file and draft", "url alone"],
)
def test_what_is_wrong_registers_nothing(
    fairqr: Fairqr, arguments: list[str], sentence: str
) -> None:
    """A wrong source, or a wrong way to attach one, is one sentence that says what to do, and
    registers nothing.
    """
    Path("exported.run").unlink()
    assert sentence in fairqr("attach", *arguments, code=2)[1]
    assert Catalog().sources() == {}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("embedded", "belongs to the source"),
        ("notables", "a built-in corpus"),
        ("mine", "the name of an index"),
    ],
)
def test_a_name_that_is_taken_is_refused_before_the_check(
    fairqr: Fairqr, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    fairqr("attach", "embedded.source.yaml")
    fairqr("index", "create", "mine", "people.jsonl", "--schema", "people.schema.yaml")
    monkeypatch.setattr("fairqr.cli.sources._check", None)
    Path("other.source.yaml").write_text(EMBEDDED.replace("embedded", name))

    assert reason in fairqr("attach", "other.source.yaml", code=2)[1]
    assert list(Catalog().sources()) == ["embedded"]


def test_a_draft_replaces_no_file(fairqr: Fairqr) -> None:
    draft = ("attach", "--draft", "--url", "http://127.0.0.1:9", "--index", "x")
    sentence = fairqr(*draft, "-o", "exported.source.yaml", code=2)[1]
    assert "exported.source.yaml exists already; delete it, or name another file" in sentence
    assert Path("exported.source.yaml").read_text() == RUN


@pytest.mark.promise("command")
def test_a_file_cannot_steer_the_terminal(fairqr: Fairqr, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is printed to a terminal cannot steer it, and is piped byte by byte."""
    foreign = fairqr("experiment", "show", "lora")[0] + "# \u202e turned\n"
    Path("mine.yaml").write_text(foreign, encoding="utf-8")
    assert fairqr("experiment", "show", "mine.yaml")[0] == foreign

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert fairqr("experiment", "show", "mine.yaml")[0] == foreign.replace("\u202e", " ")


def test_a_source_whose_file_is_gone_is_listed_with_the_reason(fairqr: Fairqr) -> None:
    fairqr("attach", "exported.source.yaml")
    Path("exported.source.yaml").unlink()
    assert "exported.source.yaml" in fairqr("source", "list")[0]
    assert "fairqr source remove exported" in fairqr("source", "check", "exported", code=2)[1]
