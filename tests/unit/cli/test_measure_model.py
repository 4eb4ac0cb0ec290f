"""The command ``fairqr models measure``: what it finds, keeps and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOPICS = ("baking", "sailing", "weaving", "mining", "fishing", "printing", "singing", "riding")
SCHEMA = (
    "attributes: {gender: {field: gender, groups: [female, male],"
    " population: {female: 0.5, male: 0.5}}}"
)


def documents_of(topic: str) -> list[dict[str, str]]:
    """Return documents of women, who have a word of their own, and of men in turns."""
    documents = []
    for number in range(8):
        is_female = number % 2 == 0
        gender = "female" if is_female else "male"
        word = f"{topic}craft" if is_female else topic
        fields = {"id": f"{topic}{number}", "title": f"{word} {number}", "gender": gender}
        documents.append(fields)
    return documents


def reply_of(topic: str) -> dict[str, Any]:
    """Return what a model replies, whose words find the women."""
    female = {"keywords": [f"{topic}craft"], "phrases": [f"{topic}craft woman"]}
    male = {"keywords": [f"{topic}man"], "phrases": [f"{topic} man"]}
    groups = {"gender=female": female, "gender=male": male}
    return {"topic": [f"{topic}craft"], "groups": groups}


def write_objects(path: Path, objects: list[dict[str, str]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in objects))


@pytest.fixture(autouse=True)
def collection(fairqr: Callable[..., Any]) -> Path:
    """A collection in which a model's words find the women, whom the query does not find."""
    folder = Path("crafts")
    folder.mkdir()
    documents = []
    judgements = []
    for topic in TOPICS:
        of_topic = documents_of(topic)
        documents += of_topic
        judgements += [f"{topic} 0 {document['id']} 1\n" for document in of_topic]
    write_objects(folder / "documents.jsonl", documents)
    write_objects(folder / "topics.jsonl", [{"id": topic, "title": topic} for topic in TOPICS])
    (folder / "qrels.txt").write_text("".join(judgements))
    (folder / "schema.yaml").write_text(SCHEMA)
    Path("replies.json").write_text(json.dumps({topic: reply_of(topic) for topic in TOPICS}))
    return folder


MEASURE = ("models", "measure", "recorded:replies.json", "--collection", "./crafts")


def test_it_says_what_a_model_brings_and_keeps_it(fairqr: Callable[..., Any]) -> None:
    code, stdout, stderr = fairqr(*MEASURE, "--json")
    assert code == 0, stderr

    profile = json.loads(stdout)
    assert profile["gain"]["value"] > 10
    assert profile["share"] > 0
    assert (profile["fitted"], profile["topics"]) == (4, 4)
    assert sum(profile["weights"].values()) > 0
    assert profile["weights"]["queries"] == 0, "the file has none"
    assert profile["cost"]["calls"] == 3
    assert Path(profile["kept"]).parent == Path("data", "profiles").absolute()


def test_a_measured_model_is_asked_and_another_file_is_not_it(fairqr: Callable[..., Any]) -> None:
    fairqr(*MEASURE)
    search = ("search", "baking", "--corpus", "crafts", "--attribute", "gender", "--json")
    result = json.loads(fairqr(*search, "--model", "recorded:replies.json").stdout)

    assert result["model"] == "recorded:replies.json"
    assert not any("Nobody measured" in sentence for sentence in result["explanation"])

    Path("other").mkdir()
    replies = json.loads(Path("replies.json").read_text())
    replies["baking"]["topic"] = ["zebra"]
    Path("other", "replies.json").write_text(json.dumps(replies))
    other = ("--model", "recorded:other/replies.json", "--set", "ask=always")
    result = json.loads(fairqr(*search, *other).stdout)

    assert any("Nobody measured" in sentence for sentence in result["explanation"])


def write_useless_replies() -> None:
    replies = json.loads(Path("replies.json").read_text())
    useless = {"keywords": ["nothing"]}
    for entry in replies.values():
        entry["topic"] = ["nothing"]
        entry["groups"] = {"gender=female": useless, "gender=male": useless}
    Path("useless.json").write_text(json.dumps(replies))


def test_words_that_help_nobody_do_not_count(fairqr: Callable[..., Any]) -> None:
    write_useless_replies()
    code, stdout, stderr = fairqr(
        "models", "measure", "recorded:useless.json", "--collection", "./crafts"
    )
    assert code == 0, stderr
    assert "topic 0, queries 0, passage 0, group 0" in stdout
    assert "ask=auto will not ask it" in stdout


def test_a_quick_measurement_says_how_unsure_it_is(fairqr: Callable[..., Any]) -> None:
    text = fairqr(*MEASURE, "--quick").stdout
    assert "This is a first, unsure answer from 3 topics" in " ".join(text.split())


def test_a_quick_measurement_switches_no_model_off_by_chance(fairqr: Callable[..., Any]) -> None:
    """Three topics without a gain tell nothing, so the words count as they did before."""
    write_useless_replies()
    command = ("models", "measure", "recorded:useless.json", "--collection", "./crafts")
    text = " ".join(fairqr(*command, "--quick").stdout.split())

    assert "topic 0.125, queries 0, passage 0, group 0.125" in text
    assert "too few topics to tell" in text


def test_an_unmeasured_model_counts_little_and_that_is_said(fairqr: Callable[..., Any]) -> None:
    fairqr("models", "measure", "feedback", "--collection", "./crafts")  # indexes the documents
    search = ("search", "baking", "--corpus", "crafts", "--model", "recorded:replies.json")
    always = ("--attribute", "gender", "--set", "ask=always", "--json")
    result = json.loads(fairqr(*search, *always).stdout)
    sentence = (
        "Nobody measured what the words of recorded:replies.json bring, so they count little; "
        "'fairqr models measure recorded:FILE --quick' does, with twenty questions."
    )

    assert sentence in result["explanation"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("feedback", "--collection", "nowhere"), "There is no collection 'nowhere'"),
        (("causal:smollm2-135m",), "can rank, but not refine queries"),
        (("recorded:missing.json",), "cannot be read"),
        (("openai:test", "--base-url", "http://127.0.0.1:9/v1"), "127.0.0.1:9"),
        (("feedback", "--attribute", "age"), "age"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    fairqr: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    usual = () if "--collection" in arguments else ("--collection", "./crafts")
    code, stdout, stderr = fairqr("models", "measure", *arguments, *usual)

    assert (code, stdout) == (2, "")

    last = stderr.splitlines()[-1]
    assert last.startswith("fairqr: ")
    assert complaint in last


def test_a_collection_without_judgements_is_refused(fairqr: Callable[..., Any]) -> None:
    Path("crafts", "qrels.txt").unlink()
    refused = fairqr("models", "measure", "feedback", "--collection", "./crafts").complaint()
    assert "it lacks qrels.txt" in refused
