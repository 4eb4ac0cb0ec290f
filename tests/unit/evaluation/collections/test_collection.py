"""The standard layout: what is read, what is left out, and what is refused by which sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairqr.base.errors import CorpusError, FairqrError
from fairqr.evaluation.collections.collection import About, Topic
from fairqr.evaluation.collections.finding import find_collection

SCHEMA = """attributes:
  gender:
    field: gender
    groups: [female, male]
    population: {female: 0.5, male: 0.5}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection of three documents and two topics."""
    folder = tmp_path / "people"
    folder.mkdir()
    documents = [
        {"id": "1", "title": "Ada", "gender": "female"},
        {"id": "2", "title": "Ben", "gender": "male"},
        {"id": "3", "title": "Chris", "gender": None},
    ]
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / "topics.jsonl").write_text(
        '{"id": 7, "title": " mathematician ", "keywords": ["logic", " algebra", " "]}\n'
        '{"id": "t2", "title": "boxer", "keywords": null, "description": "is not read"}\n'
    )
    (folder / "qrels.txt").write_text("7 0 1 2\n7 0 2 0\n7 0 99 1\nx 0 1 1\n")
    return folder


def test_a_folder_is_a_collection(folder: Path) -> None:
    """Topics in order, judgements by topic, and the conventions on what does not fit."""
    collection = find_collection(folder)
    assert (collection.name, collection.title, collection.split) == ("people", "people", None)
    assert collection.topics == (
        Topic("7", "mathematician", ("logic", "algebra")),
        Topic("t2", "boxer"),
    )
    # Document 99 is not in the corpus, and stays; topic x is no topic, and does not.
    assert collection.qrels == {"7": {"1": 2, "2": 0, "99": 1}}
    assert collection.ignored_judgements == 1
    assert collection.relevant("7") == ["1", "99"]
    assert collection.relevant_documents() == ["1", "99"]
    assert [d.id for d in collection.corpus.documents()] == ["1", "2", "3"]
    assert collection.about == About()


def test_the_query_is_the_title_and_some_keywords() -> None:
    """The first ones; none where none are asked for."""
    topic = Topic("1", "farming", tuple("abcdefghijkl"))
    assert topic.text() == "farming a b c d e f g h i j"
    assert topic.text(2) == "farming a b"
    assert topic.text(0) == "farming"


def test_several_sets_of_judgements(folder: Path) -> None:
    """Each has a name, and with one file of topics it has the topics that it judges."""
    (folder / "qrels.txt").rename(folder / "qrels-train.txt")
    assert find_collection(folder).split == "train"
    (folder / "qrels-eval.txt").write_text("t2 0 2 1\n")
    with pytest.raises(CorpusError, match=r"several sets of judgements; there are eval, train"):
        find_collection(folder)
    assert [topic.id for topic in find_collection(folder, "train").topics] == ["7"]
    assert [topic.id for topic in find_collection(folder, "eval").topics] == ["t2"]
    (folder / "topics-eval.jsonl").write_text(
        '{"id": "t2", "title": "own"}\n{"id": 9, "title": "n"}'
    )
    assert [topic.title for topic in find_collection(folder, "eval").topics] == ["own", "n"]
    with pytest.raises(CorpusError, match=r"has no judgements 'test'; there are eval, train"):
        find_collection(folder, "test")
    (folder / "topics.jsonl").unlink()
    with pytest.raises(CorpusError, match=r"topics\.jsonl cannot be read"):
        find_collection(folder, "train")


def test_what_is_said_of_a_collection(folder: Path) -> None:
    """It can be written and read; what is misspelt is refused."""
    about = About(title="People", target="trec2022", documents=3)
    about.write(folder)
    assert find_collection(folder).about == about
    (folder / "collection.yaml").write_text("titel: People\n")
    with pytest.raises(CorpusError, match=r"collection\.yaml is wrong at titel: Extra inputs"):
        find_collection(folder)


BAD = [
    ("topics.jsonl", "{", "line 1: Invalid JSON"),
    ("topics.jsonl", '{"id": "a b", "title": "x"}', "line 1: its id: String should match"),
    ("topics.jsonl", '{"id": 7, "title": "x"}\n' * 2, "two topics with the id '7'"),
    ("topics.jsonl", "\n\n", "topics.jsonl are empty; each line is a topic"),
    ("qrels.txt", "7 0 1 1\n7 0 1\n", "qrels.txt, line 2: it has 3 fields instead of the 4"),
    ("qrels.txt", "7 0 1 x\n", "qrels.txt, line 1: its grade 'x' is not a whole number"),
    ("qrels.txt", "7 0 1 1\n7 0 1 0\n", "line 2: the document '1' is judged twice"),
    ("qrels.txt", "7 0 1 0\nx 0 1 1\n", "has no relevant document for any topic"),
]


@pytest.mark.parametrize(("name", "content", "words"), BAD)
def test_a_bad_file_is_one_sentence(folder: Path, name: str, content: str, words: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(FairqrError) as caught:
        find_collection(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_lacks_something_says_what(folder: Path) -> None:
    (folder / "qrels.txt").unlink()
    (folder / "schema.yaml").unlink()
    with pytest.raises(CorpusError, match=r"it lacks schema\.yaml, qrels\.txt; docs/how-to/bring"):
        find_collection(folder)


@pytest.mark.parametrize("name", ["nowhere", "", "a\0b", "x" * 5000, "a.jsonl"])
def test_an_unknown_name_says_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(FairqrError, match=r"There is no collection '.*'; there are notables\."):
        find_collection(name, data=tmp_path)


def test_the_built_in_collection() -> None:
    """By its name, with all its topics judged."""
    collection = find_collection("notables")
    assert len(collection.topics) == 57
    assert all(collection.relevant(topic.id) for topic in collection.topics)
    assert sum(map(len, collection.qrels.values())) == 10_769


def test_a_path_is_a_folder_also_where_a_collection_has_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is a text that begins with a dot."""
    monkeypatch.chdir(folder.parent)
    folder.rename("notables")
    assert len(find_collection("notables").topics) == 57
    assert len(find_collection("./notables").topics) == 2
    assert len(find_collection(Path("notables")).topics) == 2
