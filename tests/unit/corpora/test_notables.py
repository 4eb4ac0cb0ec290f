"""The corpus `notables`: how it is built from the facts, and what the shipped files promise."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from notables import build, grammar
from notables.texts import OCCUPATIONS

from fairqr.agents.attribution.checking import LabelledPair
from fairqr.retrieval.sources.corpus import BUILT_IN

SHIPPED = BUILT_IN["notables"]

# Two physicists, a ruler of whom little is known, and one whose label is left out.
TABLE = """\
en_curid|name|numlangs|birthcity|birthstate|countryCode|birthyear|gender|occupation|industry|domain\
|TotalPageViews|PageViewsEnglish
1|Ada Example|40|Vienna||AT|1901|Female|PHYSICIST|NATURAL SCIENCES|SCIENCE & TECHNOLOGY|2000000|500
2|Bert Example|30|Vienna||AT|1905|Male|PHYSICIST|NATURAL SCIENCES|SCIENCE & TECHNOLOGY|300000|100000
30|Old Ruler|26|Other||UNK|Unknown|Male|POLITICIAN|GOVERNMENT|INSTITUTIONS|200000|100000
4|Left Out|26|Rome||IT|1950|Male|EXTREMIST|OUTLAWS|PUBLIC FIGURE|200000|1000
""".replace("|", "\t")


def read_lines(path: Path) -> pd.DataFrame:
    """Return the objects of a file of JSON lines."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return pd.DataFrame(map(json.loads, text.splitlines())).astype(object)


@pytest.fixture(scope="module")
def documents() -> pd.DataFrame:
    """All shipped documents."""
    return read_lines(SHIPPED / build.DOCUMENTS)


@pytest.fixture(scope="module")
def judged(documents: pd.DataFrame) -> pd.DataFrame:
    """All judgements, with the documents that they are on."""
    columns = {"topic": str, "zero": int, "id": str, "grade": int}
    path = SHIPPED / build.QRELS
    found = pd.read_csv(path, sep=" ", names=[*columns], dtype=columns)
    assert not found.duplicated().any()
    assert ({*found["zero"]}, {*found["grade"]}) == ({0}, {1})
    return found.merge(documents, on="id", validate="many_to_one")


def test_the_same_facts_give_the_same_bytes(tmp_path: Path) -> None:
    table = tmp_path / "facts.tsv"
    table.write_text(TABLE)
    assert build.build(table, tmp_path / "one") == build.build(table, tmp_path / "two") == 3
    for name in build.FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    ruler = read_lines(tmp_path / "one" / build.DOCUMENTS).set_index("id").loc["30"]
    assert ruler[["birth_year", "country", "continent"]].isna().all()
    assert not re.search("born|Unknown|Other ", ruler["text"])
    qrels = (tmp_path / "one" / build.QRELS).read_text().splitlines()
    assert {it for it in qrels if it.startswith("t01")} == {"t01 0 1 1", "t01 0 2 1"}


def test_the_vocabulary_names_no_gender() -> None:
    """Gender words come from one rule for all, so no occupation brings its own."""
    gendered = re.compile(r"\b(she|he|her|his|him|wom[ae]n|m[ae]n|female|male|king|queen)\b")
    for key, occupation in OCCUPATIONS.items():
        assert not gendered.search(repr(occupation)), key
        assert len(occupation["words"]) >= 4, key


def test_texts_are_unique_and_read_well(documents: pd.DataFrame) -> None:
    """No double spaces, doubled stops or words for a missing value; "a" and "an" where they fit."""
    assert len(documents) > 11_000
    assert documents["id"].is_unique
    assert documents["text"].is_unique
    seam = r"[{}]|\s\s|\.\.| [.,]|,,|\bNone\b|\bUnknown\b|\bthe the\b|\bin in\b|[^.?!]$"
    assert not documents["text"].str.contains(seam).any()
    # Articles inside of names are not ours, such as that of Frankfurt an der Oder.
    for said, word in re.findall(
        r"(?:^|[.,] |\b[a-z]+ )([Aa]n?) (?!der\b)(\w+)", "\n".join(documents["text"]), re.M
    ):
        assert grammar.with_article(word) == f"{said.lower()} {word}"


def test_gender_is_worded_alike_for_women_and_men(documents: pd.DataFrame) -> None:
    """Pronouns agree; explicit words are in a third of the texts, the shares within 3 points."""
    texts = documents.groupby("gender")["text"]
    for gender, wrong in {"female": r"\b(?:he|him|his)\b", "male": r"\b(?:she|her)\b"}.items():
        assert not texts.get_group(gender).str.contains(wrong).any()
    explicit = r"(?i)\b(?:wom[ae]n|m[ae]n|female|male)\b"
    shares = [texts.get_group(it).str.contains(explicit).mean() for it in ("female", "male")]
    assert 0.28 <= min(shares) <= max(shares) <= min(min(shares) + 0.03, 0.4)


def test_the_schema_covers_all_groups_and_its_shares_sum_to_one(documents: pd.DataFrame) -> None:
    schema: dict[str, Any] = yaml.safe_load((SHIPPED / "schema.yaml").read_text())
    for attribute in schema["attributes"].values():
        values = {*documents[attribute["field"]].dropna()}
        assert values == {*attribute["groups"]} == {*attribute["population"]}
        assert sum(attribute["population"].values()) == pytest.approx(1.0, abs=1e-9)
        assert attribute["unknown"] == "exclude"


def test_each_topic_has_enough_relevant_people_of_both_genders(judged: pd.DataFrame) -> None:
    """The shipped topics are those of the table that builds them."""
    topics = read_lines(SHIPPED / build.TOPICS_FILE)
    assert len(topics) >= 40
    assert topics["title"].is_unique
    assert topics["title"].to_list() == [it["title"] for it in build.TOPICS]
    of_topic = judged.groupby("topic")["gender"]
    assert {*topics["id"]} == {*of_topic.groups}
    assert of_topic.size().min() >= 20
    assert (of_topic.nunique() == 2).all()


def test_pairs_for_judges_agree_with_the_facts(documents: pd.DataFrame) -> None:
    """True sentences are facts of the person; the others exchange one part of them."""
    about = documents.set_index("text")
    lines = (SHIPPED / "pairs.jsonl").read_text().splitlines()
    pairs = [*map(LabelledPair.model_validate_json, lines)]
    assert [pair.entailed for pair in pairs] == [True, False] * 100
    assert len({pair.premise for pair in pairs}) == 200
    for pair in pairs:
        person = about.loc[pair.premise]
        name, said = re.split(r" (?=was born in |is known as )", pair.hypothesis.rstrip("."))
        fact = person["country" if "born" in said else "occupation"]
        assert (name == person["title"] and said.endswith(fact)) == pair.entailed
        assert fact in pair.premise
