"""The standard layout: what is read, what is left out, and what is refused by which sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.base.errors import CorpusError, FairqrError
from fairqr.evaluation.collections.collection import About, Topic
from fairqr.evaluation.collections.finding import find_collection
from tests.unit.evaluation.collections.official import lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection of three documents and two topics."""
    folder = tmp_path / "people"
    genders = {"1": "female", "2": "male", "3": None}
    documents = ({"id": id_, "title": id_, "gender": it} for id_, it in genders.items())
    lines(folder / "documents.jsonl", documents)
    schema = "attributes: {gender: {field: gender, groups: [female, male]}}"
    (folder / "schema.yaml").write_text(schema)
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
    first, second = collection.topics
    assert (first, second) == (
        Topic("7", "mathematician", ("logic", "algebra")),
        Topic("t2", "boxer"),
    )
    assert [first.text(), first.text(1), first.text(0)] == [
        "mathematician logic algebra",
        "mathematician logic",
        "mathematician",
    ]
    # Document 99 is not in the corpus, and stays; topic x is no topic, and does not.
    assert collection.qrels == {"7": {"1": 2, "2": 0, "99": 1}}
    assert collection.relevant("7") == collection.relevant_documents() == ["1", "99"]
    assert [d.id for d in collection.corpus.documents()] == ["1", "2", "3"]
    about = About(title="People", target="trec2022", documents=3)
    about.write(folder)
    assert (collection.about, find_collection(folder).about) == (About(), about)


def test_several_sets_of_judgements(folder: Path) -> None:
    """Each has a name, and with one file of topics it has the topics that it judges."""
    (folder / "qrels.txt").rename(folder / "qrels-train.txt")
    assert find_collection(folder).split == "train"
    (folder / "qrels-eval.txt").write_text("t2 0 2 1\n")

    def titles(split: str | None) -> list[str]:
        return [topic.title for topic in find_collection(folder, split).topics]

    assert (titles("train"), titles("eval")) == (["mathematician"], ["boxer"])
    own = [{"id": "t2", "title": "own"}, {"id": 9, "title": "n"}]
    lines(folder / "topics-eval.jsonl", own)
    assert titles("eval") == ["own", "n"]
    for split, words in ((None, "several sets of judgements"), ("test", "no judgements 'test'")):
        with pytest.raises(CorpusError, match=f"{words}; there are eval, train"):
            find_collection(folder, split)


BAD = [
    ("topics.jsonl", "{", "line 1: Invalid JSON"),
    ("topics.jsonl", '{"id": "a b", "title": "x"}', "line 1: its id: String should match"),
    ("topics.jsonl", '{"id": 7, "title": "x"}\n' * 2, "two topics with the id '7'"),
    ("topics.jsonl", "\n\n", "topics.jsonl are empty; each line is a topic"),
    ("qrels.txt", "7 0 1 1\n7 0 1\n", "qrels.txt, line 2: it has 3 fields instead of the 4"),
    ("qrels.txt", "7 0 1 x\n", "qrels.txt, line 1: its grade 'x' is not a whole number"),
    ("qrels.txt", "7 0 1 1\n7 0 1 0\n", "line 2: the document '1' is judged twice"),
    ("qrels.txt", "7 0 1 0\nx 0 1 1\n", "has no relevant document for any topic"),
    ("qrels.txt", None, "it lacks qrels.txt; docs/how-to/bring"),
    ("collection.yaml", "titel: People\n", "collection.yaml is wrong at titel: Extra inputs"),
]


@pytest.mark.parametrize(("name", "content", "words"), BAD)
def test_a_bad_file_is_one_sentence(
    folder: Path, name: str, content: str | None, words: str
) -> None:
    (folder / name).write_text(content or "")
    if content is None:
        (folder / name).unlink()
    with pytest.raises(FairqrError) as caught:
        find_collection(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere", "", "a\0b", "x" * 5000])
def test_an_unknown_name_says_what_there_is(tmp_path: Path, name: str) -> None:
    with pytest.raises(FairqrError, match=r"There is no collection '.*'; there are notables\."):
        find_collection(name, data=tmp_path)


def test_a_path_is_a_folder_also_where_a_collection_has_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is a text that begins with a dot; the built-in collection has all its topics judged."""
    monkeypatch.chdir(folder.parent)
    folder.rename("notables")
    collection = find_collection("notables")
    assert len(collection.topics) == len(collection.qrels) == 57
    assert all(collection.relevant(topic.id) for topic in collection.topics)
    for name in ("./notables", Path("notables")):
        assert len(find_collection(name).topics) == 2
