"""What questions are answered from: notable people, and files of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import CorpusError, InputError, SchemaError
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.finding import find_rag_collection
from tests.unit.evaluation.experiments.small import write_collection

SCHEMA = "attributes: {gender: {field: gender, groups: [female, male]}}"
POOL: list[dict[str, Any]] = [
    {"id": "a", "title": "Ada", "text": "She counted.", "gender": "female"},
    {"id": "b", "text": "He counted too.", "gender": {"female": 1, "male": 3}},
    {"id": "c", "text": "Nobody did."},
]
LINE: dict[str, Any] = {"id": 1, "question": "Who counted?", "golds": ["Ada"], "pool": POOL}


@pytest.fixture(scope="module")
def notables() -> RagCollection:
    return find_rag_collection("notables")


def _write(folder: Path, *lines: object) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "own.jsonl").write_text(text)
    (folder / "schema.yaml").write_text(SCHEMA)
    return folder / "own.jsonl"


def test_notables_are_asked_by_topic(notables: RagCollection) -> None:
    collection = find_collection("notables")
    assert [query.question for query in notables.queries] == [t.title for t in collection.topics]
    assert notables.schema is not None
    assert list(notables.schema.attributes) == ["gender", "continent"]
    for query in notables.queries:
        assert 17 <= len({document.id for document in query.pool}) == len(query.pool) <= 25
        relevant = set(collection.relevant(query.id))
        assert len(query.golds) == len(relevant)
        for document in query.pool:
            named = notables.utility(f"It is {document.fields['title']}.", query.golds)
            assert named >= (document.id in relevant)
            assert sum(document.groups["gender"].values()) == pytest.approx(1)
            assert sum(document.groups["continent"].values()) in (0, 1)
    small = find_rag_collection("notables", limit=3, pool=4)
    assert small.fingerprint == notables.fingerprint
    for small_query, whole_query in zip(small.queries, notables.queries[:3], strict=True):
        # In the same order, so that labels of the larger pools have all that is asked.
        assert list(small_query.pool) == [
            document for document in whole_query.pool if document in small_query.pool
        ]
        judged = [
            document.id in collection.relevant(small_query.id) for document in small_query.pool
        ]
        assert (small_query.id, sorted(judged)) == (whole_query.id, [False, False, True, True])


def test_any_collection_with_topics_is_asked_by_them(tmp_path: Path) -> None:
    """By documents that are no people either."""
    written = write_collection(tmp_path / "crew")
    collection = find_rag_collection(tmp_path / "crew", pool=6)
    assert [query.question for query in collection.queries] == [
        topic.title for topic in written.topics
    ]
    assert collection.name == "crew"
    for query in collection.queries:
        relevant = [document.id in written.relevant(query.id) for document in query.pool]
        assert 0 < sum(relevant) <= len(relevant) <= 6


def test_questions_of_ones_own(tmp_path: Path) -> None:
    path = _write(tmp_path, LINE, {**LINE, "id": "2", "query": "counted", "pool": POOL[:1]})
    collection = find_rag_collection(path)
    first, second = collection.queries
    assert (collection.name, collection.prompt, collection.utility.name) == (
        "own",
        "answer",
        "ROUGE-L",
    )
    assert (first.id, first.query, first.golds) == ("1", "Who counted?", ("Ada",))
    assert second.query == "counted"
    texts = ["Ada\nShe counted.", "He counted too.", "Nobody did."]
    assert [document.text for document in first.pool] == texts
    assert first.pool[1].fields == {"title": "", "text": "He counted too."}
    shares = [[*document.groups["gender"].values()] for document in first.pool]
    assert shares == [[1, 0], [0.25, 0.75], [0, 0]]
    small = find_rag_collection(path, limit=1, pool=2)
    assert [len(query.pool) for query in small.queries] == [2]
    assert small.fingerprint == collection.fingerprint
    by_name = find_rag_collection(path, task="names")
    assert by_name.utility("I think Ada.", ["ada"]) == 1
    assert by_name.fingerprint != collection.fingerprint
    with pytest.raises(InputError, match="no metric 'bleu'; name rouge-l"):
        find_rag_collection(path, task="bleu")
    (tmp_path / "schema.yaml").write_text("attributes: 1")
    with pytest.raises(SchemaError, match="is wrong at attributes"):
        find_rag_collection(path)
    (tmp_path / "schema.yaml").unlink()
    assert find_rag_collection(path).schema is None


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        pytest.param("{", "Invalid JSON", id="no JSON"),
        pytest.param({**LINE, "golds": ["a", " "]}, r"golds.1: String", id="an empty gold"),
        pytest.param({**LINE, "pool": [{"text": "a"}]}, "it has no id", id="no id"),
        pytest.param(
            {**LINE, "pool": POOL[:1] * 2},
            "two documents of its pool have the same id",
            id="an id twice in a pool",
        ),
        pytest.param(
            {**LINE, "pool": [{"id": "a", "text": "t", "gender": "x"}]},
            "gender is 'x', which is",
            id="an unknown group",
        ),
        pytest.param(LINE, "the id '1' appears twice", id="an id twice"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: Any, sentence: str) -> None:
    with pytest.raises(CorpusError, match=f"line 3.*{sentence}") as caught:
        find_rag_collection(_write(tmp_path, LINE, "", line))

    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("", "There is no collection ''"), ("none.jsonl", "cannot be read")],
    ids=["no name", "no file"],
)
def test_an_unknown_collection_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(CorpusError, match=f"^[^\n]*{sentence}[^\n]*$"):
        find_rag_collection(name)
