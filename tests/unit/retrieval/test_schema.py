"""Schemas, labels and the lines of a corpus."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import CorpusError, SchemaError, UnknownAttributeError
from fairqr.retrieval.sources.corpus import check_corpus, find_corpus
from fairqr.retrieval.sources.documents import parse_document
from fairqr.retrieval.sources.schema import Attribute, Schema, load_schema

GENDER = Attribute(name="gender", field="g", groups=("female", "male"))
WITH_UNKNOWN = GENDER.model_copy(update={"unknown": "group"})
SCHEMA = Schema(attributes={"gender": GENDER})


@pytest.mark.promise("labels")
def test_each_way_to_write_a_label() -> None:
    """Each way to write a label gives the shares that the page says."""
    for label, expected in (
        ("female", (1, 0)),
        (["female", "male"], (0.5, 0.5)),
        (["male", "male", "female", "male"], (0.5, 0.5)),
        ({"female": 1, "male": 3}, (0.25, 0.75)),
        ({"female": 1, "unknown": 1}, (0.5, 0)),
        (None, (0, 0)),
        ("", (0, 0)),
        ([], (0, 0)),
        ({"female": 0}, (0, 0)),
        ("unknown", (0, 0)),
    ):
        assert GENDER.membership(label) == expected
        assert WITH_UNKNOWN.membership(label) == (*expected, 1 - sum(expected))


@pytest.mark.parametrize(
    "label",
    ["women", ["female", 3], {"female": -1}, {"female": "1"}, {"female": True}, 3, {"x": 1}],
)
def test_a_label_that_names_no_group_is_refused(label: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        GENDER.membership(label)


GROUPS = (
    "at attributes.g: groups must be a list of names, a mapping from each name to its values or "
    "its range, or 'any' if each value is a group."
)
WRONG_ATTRIBUTES = {
    "groups: [a]": "at attributes.g: an attribute needs at least two groups",
    "groups: [a, a]": "named twice",
    'groups: [a, " "]': "needs a name",
    "groups: [a, unknown]": "reserved",
    "groups: [a, b], labels: x.csv": "an attribute needs either a field",
    "groups: [a, b], population: {a: 1, c: 0}": "'c'",
    "groups: [a, b], population: {a: 0.9}": "sum to 1",
    "groups: {a: {lt: 1}, b: {gte: 1940-01-01}}": "b.range.gte: Input should be a valid",
    "groups: {a: {lt: 1}, b: {}}": "b.range: a range needs",
    "groups: {a: {lt: 1, lte: 2}, b: {gt: 2}}": "one lower bound and one upper bound",
    "groups: {a: {gte: 1}, b: {lte: 1}}": "overlap",
    "groups: {a: [F], b: [F]}": "the value 'F' is in both",
    "groups: {a: [1], b: }": "b.values: Value should have at least 1 item",
    "open: true": "at attributes.g: there is no entry 'open'; if each value is a group, write "
    "groups: any.",
    **dict.fromkeys(["groups: anything", "groups: 5", "groups: "], GROUPS),
    "groups: any, population: {a: 1}": "'groups: any' takes neither a population",
    "groups: any, unknown: group": "'groups: any' needs 'unknown: exclude'",
}


def test_a_wrong_schema_is_refused_and_the_place_named(tmp_path: Path) -> None:
    for text, named in (
        *((f"attributes: {{g: {{field: f, {it}}}}}", why) for it, why in WRONG_ATTRIBUTES.items()),
        ("attributes:", "at attributes: Dictionary should have at least 1 item"),
        ("attributes: [", "line"),
        ("just a text", "wrong"),
        ("attributes: {'a b': {field: g, groups: [a, b]}}", "a b"),
    ):
        path = tmp_path / "schema.yaml"
        path.write_text(text)
        with pytest.raises(SchemaError) as caught:
            load_schema(path)
        assert named in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_schema_is_read_back_as_it_was_written() -> None:
    """Each value may be a group, or the groups are listed, perhaps with their values."""
    written: tuple[Any, ...] = ("any", ["a", "b"], {"a": ["x", "y"], "b": {"gte": 5}})
    for groups in written:
        attribute = Attribute.model_validate({"name": "g", "field": "f", "groups": groups})
        assert attribute.open == (groups == "any")
        kept = attribute.model_dump(mode="json")
        assert kept["groups"] == ("any" if groups == "any" else ["a", "b"])
        assert "open" not in kept
        assert Attribute.model_validate(kept) == attribute
        assert Attribute.model_validate_json(attribute.model_dump_json()) == attribute


NEW = (date(1980, 1, 1), "1980-01-01T10:00:00Z", 1980)
OLD = (datetime(1979, 12, 31, 23), "1979-12-31", "1979")


def test_a_date_counts_by_its_year() -> None:
    groups = {"old": {"lt": 1980}, "new": {"gte": 1980}}
    era = Attribute.model_validate({"name": "era", "field": "born", "groups": groups})
    for expected, values in {
        "new": NEW,
        "old": OLD,
        None: (True, "long ago", 315_532_800_000),
    }.items():
        assert {era.group_of(value) for value in values} == {expected}


def test_true_and_false_are_booleans_and_other_words_are_texts(tmp_path: Path) -> None:
    """YAML 1.1 would read NO, the country, and on, the group, as booleans."""
    (tmp_path / "schema.yaml").write_text(
        "attributes:\n"
        "  alive: {field: alive, groups: {yes: true, no: [false]}}\n"
        "  land: {field: land, groups: {on: [NO, SE], off: [IT]}, population: {on: 1}}\n"
    )
    schema = load_schema(tmp_path / "schema.yaml")
    alive, land = schema.attribute("alive"), schema.attribute("land")
    assert [alive.group_of(value) for value in (True, "false", "no")] == ["yes", "no", None]
    assert [land.group_of(value) for value in ("NO", False)] == ["on", None]


@pytest.mark.parametrize(
    ("groups", "labels", "refused"),
    [
        ("[true, false]", [True, "true", "True"], "maybe"),
        ("[1, 2]", [1, "1", 1.0], 3),
        ("[1.5, 2]", [1.5, "1.5"], True),
        ("[1940-01-01, later]", ["1940-01-01", date(1940, 1, 1)], False),
        ("{true: [1, yes], false: [0]}", [True, 1, "yes"], None),
    ],
)
def test_groups_may_be_written_as_booleans_and_numbers(
    tmp_path: Path, groups: str, labels: list[object], refused: object
) -> None:
    """They are the texts that the documents' values become."""
    first = groups.strip("[{").partition(":" if "{" in groups else ",")[0]
    (tmp_path / "schema.yaml").write_text(
        f"attributes:\n  a: {{field: a, groups: {groups}, population: {{{first}: 1}}}}\n"
    )
    attribute = load_schema(tmp_path / "schema.yaml").attribute("a")
    assert attribute.groups[0] == first
    assert attribute.population == {first: 1}
    assert {attribute.membership(label) for label in labels} == {(1.0, 0.0)}
    if refused is not None:
        shown = {True: "true", False: "false", 3: "3", "maybe": "'maybe'"}[refused]
        with pytest.raises(ValueError, match=f"a is {shown}, which is not one of {first}, "):
            attribute.membership(refused)


def test_a_group_without_a_name_of_one_word_is_refused(tmp_path: Path) -> None:
    for groups in ("[a, {b: c}]", "[a, [b]]", "[a, null]"):
        (tmp_path / "schema.yaml").write_text(f"attributes:\n  a: {{field: a, groups: {groups}}}\n")
        with pytest.raises(SchemaError, match=r"groups\.1: Input should be a valid string"):
            load_schema(tmp_path / "schema.yaml")


def test_a_line_that_is_no_document_is_refused() -> None:
    for line, named in (
        ("{", "JSON"),
        ('{"title": "x"}', "no id"),
        ('{"id": true, "title": "x"}', "no id"),
        ('{"id": "1"}', "neither title nor text"),
        ('{"id": "1", "text": 3}', "text is not text"),
        ('{"id": "1", "text": "x", "g": "boy"}', "'boy'"),
        ('{"id": "1", "text": "\\ud800"}', "surrogate"),
        ('{"id": "' + "x" * 600 + '", "text": "x"}', "longer"),
        ("[" * 100_000, "JSON"),
    ):
        with pytest.raises(ValueError, match=named):
            parse_document(line, SCHEMA)


@pytest.fixture
def corpus_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "schema.yaml").write_text(
        "attributes: {gender: {field: g, groups: [female, male]}, origin: {labels: origins.csv}}"
    )
    (tmp_path / "origins.csv").write_text("id,group\n1,here\n3,there\nnobody,there\n")
    path = tmp_path / "people.jsonl"
    path.write_text(
        """{"id": 1, "title": "one", "g": "female"}

{"id": "2", "title": "two", "g": "boy"}
{
{"id": "1", "title": "again"}
{"id": "3", "title": "three"}"""
    )
    return path


async def test_a_check_names_every_wrong_line(
    corpus_path: Path,
) -> None:
    report = await check_corpus(find_corpus(corpus_path))
    assert [line for line, _ in report.problems] == [3, 4, 5]
    assert report.documents == 2
    assert [*report.shares["gender"].values()] == [0.5, 0.0]
    assert report.schema.attribute("origin").groups == ("here", "there")
    assert report.shares["origin"] == {"here": 0.5, "there": 0.5}
    with pytest.raises(UnknownAttributeError, match=r"'age'.*gender"):
        report.schema.attribute("age")


def test_a_corpus_needs_a_file_and_a_schema(tmp_path: Path, corpus_path: Path) -> None:
    with pytest.raises(CorpusError, match="no corpus"):
        find_corpus(tmp_path / "nowhere.jsonl")
    (tmp_path / "schema.yaml").unlink()
    with pytest.raises(SchemaError, match=r"people\.schema\.yaml"):
        find_corpus(corpus_path)
    with pytest.raises(CorpusError, match=r"documents\.jsonl"):
        find_corpus(tmp_path)
