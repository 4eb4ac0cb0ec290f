"""The corpus `notables`: how it is built from the facts, and what the shipped files promise."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from notables import build, grammar
from notables.occupations import OCCUPATIONS
from notables.topics import TOPICS

from fairqr.agents.attribution.checking import read_pairs
from fairqr.retrieval.sources.corpus import BUILT_IN

SHIPPED = BUILT_IN["notables"]

COLUMNS = (
    *("en_curid", "name", "numlangs", "birthcity", "birthstate", "countryName", "countryCode"),
    *("continentName", "birthyear", "gender", "occupation", "industry", "domain"),
    *("TotalPageViews", "PageViewsEnglish"),
)

# Two physicists, a ruler of whom little is known, and one whose label is left out.
ROWS = (
    "1|Ada Example|40|Vienna||AUSTRIA|AT|Europe|1901|Female|PHYSICIST|NATURAL SCIENCES"
    "|SCIENCE & TECHNOLOGY|2000000|500000",
    "2|Bert Example|30|Vienna||AUSTRIA|AT|Europe|1905|Male|PHYSICIST|NATURAL SCIENCES"
    "|SCIENCE & TECHNOLOGY|300000|100000",
    "30|Old Ruler|26|Other||Unknown|UNK|Unknown|Unknown|Male|POLITICIAN|GOVERNMENT"
    "|INSTITUTIONS|200000|100000",
    "4|Left Out|26|Rome||ITALY|IT|Europe|1950|Male|EXTREMIST|OUTLAWS|PUBLIC FIGURE|200000|1000",
)

EXPLICIT = re.compile(r"\b(wom[ae]n|m[ae]n|female|male)\b", re.IGNORECASE)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of four people in the layout of the source."""
    path = tmp_path / "facts.tsv"
    lines = ["\t".join(COLUMNS), *(row.replace("|", "\t") for row in ROWS)]
    path.write_text("\r\n".join(lines) + "\r\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """All shipped documents."""
    with gzip.open(SHIPPED / "documents.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def qrels() -> dict[str, list[str]]:
    """The ids of the relevant documents, by topic."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in (SHIPPED / "qrels.txt").read_text(encoding="utf-8").splitlines():
        topic, zero, document, grade = line.split(" ")
        assert (zero, grade) == ("0", "1")
        found[topic].append(document)
    return found


@pytest.fixture(scope="module")
def topics() -> list[dict[str, str]]:
    """The shipped topics."""
    lines = (SHIPPED / "topics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def schema() -> dict[str, dict[str, Any]]:
    """The attributes of the shipped schema."""
    content = yaml.safe_load((SHIPPED / "schema.yaml").read_text(encoding="utf-8"))
    attributes: dict[str, dict[str, Any]] = content["attributes"]
    return attributes


# Building


def test_the_same_facts_give_the_same_bytes(table: Path, tmp_path: Path) -> None:
    """Two builds into different directories agree in every byte of every file."""
    assert build.build(table, tmp_path / "one") == build.build(table, tmp_path / "two") == 3
    for name in (build.DOCUMENTS, build.TOPICS_FILE, build.QRELS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_unknown_facts_become_null_and_stay_out_of_the_text(table: Path, tmp_path: Path) -> None:
    """Nobody's unknown birth is talked about; unknown values are null, not words."""
    build.build(table, tmp_path)
    with gzip.open(tmp_path / build.DOCUMENTS, "rt", encoding="utf-8") as lines:
        ruler = {row["id"]: row for row in map(json.loads, lines)}["30"]
    assert (ruler["birth_year"], ruler["country"], ruler["continent"]) == (None, None, None)
    assert "born" not in ruler["text"]
    assert "Unknown" not in ruler["text"]
    assert "Other " not in ruler["text"]


def test_relevance_follows_from_the_facts(table: Path, tmp_path: Path) -> None:
    """Both physicists are relevant to "physicist", and the ruler is not."""
    build.build(table, tmp_path)
    physicist = next(topic for topic in TOPICS if topic.title == "physicist")
    lines = (tmp_path / build.QRELS).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith(f"{physicist.id} ")] == [
        f"{physicist.id} 0 1 1",
        f"{physicist.id} 0 2 1",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\n1\t2\n", "has no column 'en_curid'"),
        (
            "\t".join(COLUMNS) + "\n" + ROWS[0].replace("|40|", "|many|").replace("|", "\t"),
            "Line 2",
        ),
        ("\t".join(COLUMNS) + ("\n" + ROWS[0].replace("|", "\t")) * 2, "occurs twice"),
    ],
)
def test_a_table_that_does_not_fit_ends_with_one_sentence_and_2(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong columns, wrong cells and doubled ids are named, and nothing is written."""
    wrong = tmp_path / "wrong.tsv"
    wrong.write_text(content, encoding="utf-8")
    assert build.main([str(wrong), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


# Cleaning and grammar


def test_the_vocabulary_names_no_gender() -> None:
    """Gender words come from one rule for all, so no occupation brings its own."""
    gendered = re.compile(r"\b(she|he|her|his|him|wom[ae]n|m[ae]n|female|male|king|queen)\b")
    for key, occupation in OCCUPATIONS.items():
        assert not gendered.search(repr(occupation)), key
        assert len(occupation.words) >= 4, key


# The shipped files


def test_ids_and_texts_are_unique(documents: list[dict[str, Any]]) -> None:
    """About 11,000 documents, no id twice, and no two that read the same."""
    assert len(documents) > 11_000
    assert len({document["id"] for document in documents}) == len(documents)
    assert len({document["text"] for document in documents}) == len(documents)


def test_texts_have_no_seams(documents: list[dict[str, Any]]) -> None:
    """No braces, double spaces, doubled stops or words that stand for a missing value."""
    seam = re.compile(r"[{}]|\s\s|\.\.| [.,]|,,|\bNone\b|\bUnknown\b|\bthe the\b|\bin in\b")
    for document in documents:
        found = seam.search(document["text"])
        assert not found, (document["title"], found)
        assert document["text"].endswith((".", "?", "!"))


def test_texts_use_the_right_article(documents: list[dict[str, Any]]) -> None:
    """No "a actor" and no "an physicist"; articles inside of names are not ours."""
    pattern = re.compile(r"(?:^|[.,] |\b[a-z]+ )([Aa]n?) ([\w]+)")
    for document in documents:
        for match in pattern.finditer(document["text"]):
            if match[2] != "der":  # Frankfurt an der Oder and its like
                assert match[1].lower() == grammar.article(match[2]), (document["title"], match[0])


def test_pronouns_agree_with_the_gender(documents: list[dict[str, Any]]) -> None:
    """No text about a woman says "he", and none about a man says "she"."""
    wrong = {"female": re.compile(r"\b(he|him|his)\b"), "male": re.compile(r"\b(she|her)\b")}
    for document in documents:
        assert not wrong[document["gender"]].search(document["text"]), document["title"]


def test_gender_is_worded_alike_for_women_and_men(documents: list[dict[str, Any]]) -> None:
    """Explicit words in a third of the texts of either gender, the shares within 3 points."""
    total = Counter(document["gender"] for document in documents)
    said = Counter(d["gender"] for d in documents if EXPLICIT.search(d["text"]))
    shares = {gender: said[gender] / total[gender] for gender in ("female", "male")}
    assert abs(shares["female"] - shares["male"]) <= 0.03
    assert all(0.28 <= share <= 0.40 for share in shares.values())


def test_the_schema_covers_all_groups_and_its_shares_sum_to_one(
    documents: list[dict[str, Any]], schema: dict[str, dict[str, Any]]
) -> None:
    """Each value in the documents is a group of the schema, and each group has a share."""
    for attribute in schema.values():
        values = {document[attribute["field"]] for document in documents} - {None}
        assert values == set(attribute["groups"]) == set(attribute["population"])
        assert sum(attribute["population"].values()) == pytest.approx(1.0, abs=1e-9)
        assert attribute["unknown"] == "exclude"


def test_topics_are_many_and_each_has_enough_relevant_people(
    topics: list[dict[str, str]], qrels: dict[str, list[str]]
) -> None:
    """At least 40 topics with distinct titles, each with at least 20 relevant documents."""
    assert len(topics) >= 40
    assert len({topic["id"] for topic in topics}) == len(topics)
    assert len({topic["title"] for topic in topics}) == len(topics)
    assert {topic["id"] for topic in topics} == set(qrels)
    assert all(len(ids) >= 20 for ids in qrels.values())


def test_every_topic_has_women_and_men_among_the_relevant(
    documents: list[dict[str, Any]], qrels: dict[str, list[str]]
) -> None:
    """No topic leaves a gender nothing to rank."""
    gender = {document["id"]: document["gender"] for document in documents}
    for topic, ids in qrels.items():
        assert {gender[id_] for id_ in ids} == {"female", "male"}, topic
        assert len(set(ids)) == len(ids), topic


def test_shipped_topics_are_those_of_the_code(topics: list[dict[str, str]]) -> None:
    """The files were built from the topics as they stand."""
    assert [(topic["id"], topic["title"]) for topic in topics] == [
        (topic.id, topic.title) for topic in TOPICS
    ]


def test_pairs_for_judges_agree_with_the_facts(documents: list[dict[str, Any]]) -> None:
    """True sentences are facts of the person; the others exchange one part of them."""
    about = {it["text"]: it for it in documents}
    pairs = read_pairs(BUILT_IN["notables"] / "pairs.jsonl")
    assert [pair.entailed for pair in pairs] == [True, False] * 100
    assert len({pair.premise for pair in pairs}) == 200
    for pair in pairs:
        person = about[pair.premise]
        name, said = re.split(r" (?=was born in |is known as )", pair.hypothesis.rstrip("."))
        fact = person["country" if "born" in said else "occupation"]
        states = name == person["title"] and said.endswith(fact)
        assert states == pair.entailed
        assert fact in pair.premise
