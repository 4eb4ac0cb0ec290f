"""What questions are answered from: notable people, LaMP's files, and files of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import CorpusError, FairqrError, InputError, SchemaError
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.finding import find_rag_collection
from fairqr.retrieval.pools.retrievers import Bm25PoolRetriever
from fairqr.retrieval.sources.catalog import Catalog
from tests.unit.engines import ranked
from tests.unit.evaluation.lamp.official import ENTRIES, golds_of, write_set

SCHEMA = "attributes: {gender: {field: gender, groups: [female, male]}}"
LINE: dict[str, Any] = {
    "id": 1,
    "question": "Who counted?",
    "golds": ["Ada"],
    "pool": [
        {"id": "a", "title": "Ada", "text": "She counted.", "gender": "female"},
        {"id": "b", "text": "He counted too.", "gender": {"female": 1, "male": 3}},
        {"id": "c", "text": "Nobody did."},
    ],
}


@pytest.fixture(scope="module")
def notables() -> RagCollection:
    return find_rag_collection("notables")


def _write(folder: Path, *lines: object, name: str = "own.jsonl", schema: str = SCHEMA) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / name).write_text(text)
    if schema:
        (folder / "schema.yaml").write_text(schema)
    return folder / name


def test_notables_are_asked_by_topic(notables: RagCollection) -> None:
    collection = find_collection("notables")
    assert [query.question for query in notables.queries] == [t.title for t in collection.topics]
    assert notables.left_out == {}
    assert (notables.task.prompt, notables.task.utility.name) == ("names", "names a right one")
    for query in notables.queries:
        assert 17 <= len(query.pool) <= 25
        assert len({document.id for document in query.pool}) == len(query.pool)
        relevant = set(collection.relevant(query.id))
        assert len(query.golds) == len(relevant)
        for document in query.pool:
            assert set(document.fields) == {"title", "text"}
            named = notables.task.utility(f"It is {document.fields['title']}.", query.golds)
            assert named >= (document.id in relevant)


def test_the_groups_of_notables_are_shares(notables: RagCollection) -> None:
    assert notables.schema is not None
    assert list(notables.schema.attributes) == ["gender", "continent"]
    continents = set()
    for query in notables.queries:
        for document in query.pool:
            assert sum(document.groups["gender"].values()) == pytest.approx(1)
            continents |= set(document.groups["continent"])
            assert sum(document.groups["continent"].values()) in (0, 1)
    assert continents == set(notables.schema.attribute("continent").groups)


async def test_the_pools_of_notables_are_what_the_engine_finds_first_of_both_kinds(
    notables: RagCollection, tmp_path: Path
) -> None:
    """In the same order: the statistics are those of the whole corpus, ties go by id."""
    collection = find_collection("notables")
    engine = await Catalog(tmp_path / "indexes").resolve("notables")
    for query in notables.queries[::10]:
        ids = (await ranked(engine, query.query, 300)).ids
        relevant = set(collection.relevant(query.id))
        first = [
            *[id_ for id_ in ids if id_ in relevant][:13],
            *[id_ for id_ in ids if id_ not in relevant][:12],
        ]
        assert [document.id for document in query.pool] == sorted(first, key=ids.index)
    await engine.aclose()


@pytest.mark.parametrize("pool", [8, 25])
def test_the_pools_of_notables_are_mixed_by_the_judgements(pool: int) -> None:
    """Else the right answer stands in every document, and no relevance can be measured."""
    found = find_rag_collection("notables", pool=pool)
    collection = find_collection("notables")
    halves = 0
    for query in found.queries:
        judged = set(collection.relevant(query.id))
        relevant = sum(document.id in judged for document in query.pool)
        assert 0 < relevant < len(query.pool)
        halves += (relevant, len(query.pool)) == ((pool + 1) // 2, pool)
    assert (len(found.queries), halves) == (57, 57 if pool == 8 else 52)
    for said in ("made with the judgements", "cannot be compared with search"):
        assert said in found.note


async def test_pools_of_notables_have_useful_documents_and_others(
    notables: RagCollection,
) -> None:
    """Else nothing could be measured; and retrieval over the pool puts useful ones first."""
    mixed, better = 0, 0.0
    for query in notables.queries:
        useful = [
            notables.task.utility(document.fields["title"], query.golds) for document in query.pool
        ]
        mixed += 0 < sum(useful) < len(useful)
        scores = await Bm25PoolRetriever().scores(query.query, [d.text for d in query.pool])
        order = (-scores).argsort(kind="stable")
        better += sum(useful[place] for place in order[:5]) / 5 - sum(useful) / len(useful)
    assert mixed >= 40
    assert better > 0


def test_notables_can_be_small(notables: RagCollection) -> None:
    small = find_rag_collection("notables", limit=3, pool=4)
    assert [query.id for query in small.queries] == [query.id for query in notables.queries[:3]]
    for few, many in zip(small.queries, notables.queries[:3], strict=True):
        # In the same order, so that labels of the larger pools have all that is asked.
        assert list(few.pool) == [document for document in many.pool if document in few.pool]
        assert len(few.pool) == 4
    assert small.fingerprint == notables.fingerprint
    for wrong in ({"limit": 0}, {"pool": 0}):
        with pytest.raises(InputError, match="must be 1 or more"):
            find_rag_collection("notables", **wrong)
    with pytest.raises(InputError, match="leave the task out"):
        find_rag_collection("notables", task="LaMP-5")


def test_lamp_is_found_by_folder(tmp_path: Path) -> None:
    entry = {"id": "1", **ENTRIES[7]}
    write_set(tmp_path, [entry], golds_of("LaMP_7", {"1": "Wet"}), "dev_")
    for path in (tmp_path, str(tmp_path), tmp_path / "dev_questions.json"):
        assert find_rag_collection(path).name == "LaMP-7"
    with pytest.raises(InputError, match="is LaMP-7, not LaMP-5"):
        find_rag_collection(tmp_path, task="LaMP-5")


def test_questions_of_ones_own(tmp_path: Path) -> None:
    second = {**LINE, "id": "2", "query": "counted", "pool": LINE["pool"][:1]}
    path = _write(tmp_path, LINE, second)
    found = find_rag_collection(path)
    first = found.queries[0]
    assert (found.name, found.title, found.note, found.left_out) == ("own", "own", "", {})
    assert (found.task.prompt, found.task.utility.name) == ("answer", "ROUGE-L")
    assert (first.id, first.question, first.query, first.golds) == (
        "1",
        "Who counted?",
        "Who counted?",
        ("Ada",),
    )
    assert found.queries[1].query == "counted"
    assert [document.text for document in first.pool] == [
        "Ada\nShe counted.",
        "He counted too.",
        "Nobody did.",
    ]
    assert [document.groups for document in first.pool] == [
        {"gender": {"female": 1.0}},
        {"gender": {"female": 0.25, "male": 0.75}},
        {"gender": {}},
    ]
    assert first.pool[1].fields == {"title": "", "text": "He counted too."}
    small = find_rag_collection(path, limit=1, pool=2)
    assert [len(query.pool) for query in small.queries] == [2]
    assert small.fingerprint == found.fingerprint


def test_the_metric_is_named_beside_the_file_or_when_it_is_read(tmp_path: Path) -> None:
    path = _write(tmp_path, LINE, schema="")
    found = find_rag_collection(path)
    assert found.schema is None
    assert found.queries[0].pool[0].groups == {}
    (tmp_path / "own.yaml").write_text("title: People who count\nmetric: names\nnote: A few.\n")
    about = find_rag_collection(path)
    assert (about.title, about.note) == ("People who count", "A few.")
    assert about.task.utility("I think Ada.", ["ada"]) == 1
    assert about.fingerprint != found.fingerprint
    assert find_rag_collection(path, task="rouge-1").task.utility.name == "ROUGE-1"
    with pytest.raises(InputError, match="no metric 'bleu'; choose one of rouge-l"):
        find_rag_collection(path, task="bleu")
    for wrong, what in (("metrics: x", "metrics: Extra"), ("{", "not valid YAML"), ("- a", "own")):
        (tmp_path / "own.yaml").write_text(wrong)
        with pytest.raises(CorpusError, match=what):
            find_rag_collection(path)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "it is not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "the line: Input should be"),
        ({**LINE, "id": " "}, "id: String should have"),
        ({**LINE, "question": ""}, "question: String"),
        ({**LINE, "golds": []}, "golds: Tuple should have at least 1"),
        ({**LINE, "golds": ["a", " "]}, r"golds.1: String"),
        ({**LINE, "pool": []}, "pool: Tuple should have at least 1"),
        ({**LINE, "pool": [{"text": "a"}]}, "document 1 of the pool: it has no id"),
        (
            {**LINE, "pool": [{"id": "a"}, {"id": "b", "text": 1}]},
            "document 2 of the pool: its text",
        ),
        (
            {**LINE, "pool": LINE["pool"][:1] * 2},
            "document 2 of the pool: its id 'a' appears",
        ),
        ({**LINE, "pool": [{"id": "a", "text": "t", "gender": "x"}]}, "gender is 'x', which is"),
        (LINE, "the id '1' appears twice"),
        ({**LINE, "question": "a \ud800"}, "half a surrogate pair"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: object, what: str) -> None:
    with pytest.raises(CorpusError, match=what) as caught:
        find_rag_collection(_write(tmp_path, LINE, "", line))
    assert "line 3" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_documents_of_ones_own_without_text_are_left_out_and_counted(tmp_path: Path) -> None:
    """As in LaMP's profiles; the others of the pool come up, and a question without any is left."""
    blank = [{"id": "x"}, {"id": "x", "title": " ", "text": None}]
    lines = (
        {**LINE, "pool": [*blank, *LINE["pool"]]},
        {**LINE, "id": "2", "pool": blank[:1]},
    )
    found = find_rag_collection(_write(tmp_path, *lines), pool=2)
    assert [[document.id for document in query.pool] for query in found.queries] == [["a", "b"]]
    assert found.note == "Of each pool the first 2. Documents without text, left out: 3."
    assert found.left_out == {"no document of its pool can be used": 1}
    with pytest.raises(CorpusError, match=r"No document in .* has a title or a text"):
        find_rag_collection(_write(tmp_path, lines[1]))


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("x")
    for name, error, what in (
        ("", CorpusError, "There is no collection of questions ''"),
        ("none", CorpusError, "no collection of questions 'none'; name notables"),
        (tmp_path, CorpusError, "no collection of questions"),
        (tmp_path / "own.txt", CorpusError, "no collection of questions"),
        (tmp_path / "none.jsonl", CorpusError, "cannot be read"),
        (_write(tmp_path, "", name="blank.jsonl", schema=""), CorpusError, "is empty"),
        ("x" * 5000, FairqrError, "cannot be read|no collection"),
        ("x" * 5000 + ".jsonl", FairqrError, "cannot be read"),
    ):
        with pytest.raises(error, match=what) as caught:
            find_rag_collection(name)
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(SchemaError, match="is wrong at attributes"):
        find_rag_collection(_write(tmp_path, LINE, schema="attributes: 1"))
