"""LaMP's files as questions: every task, incremental reading, and what is wrong in files."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import CorpusError, FairqrError, InputError
from fairqr.evaluation.lamp.loading import load_lamp
from fairqr.evaluation.lamp.tasks import TASKS, lamp_task
from fairqr.evaluation.rag.collection import RagCollection
from tests.unit.evaluation.lamp.official import (
    ENTRIES,
    OFFICIAL,
    Data,
    golds_of,
    write_set,
)

LIKE = Path(__file__).parents[5] / "shared" / "data" / "lamp5_like"


def _five(id_: str, **more: Any) -> Data:
    return {"id": id_, **ENTRIES[5], **more}


def _load(folder: Path, entries: object, golds: object, **options: Any) -> RagCollection:
    if isinstance(golds, dict) and "golds" not in golds:
        golds = golds_of("LaMP_5", golds)
    return load_lamp(write_set(folder, entries, golds), **options)


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("packed", [False, True])
def test_each_task_is_read_as_it_is_defined(tmp_path: Path, number: int, packed: bool) -> None:
    entry, known, task = {"id": "01", **ENTRIES[number]}, OFFICIAL[number], TASKS[number - 1]
    outputs = golds_of(f"LaMP_{number}", {"01": known["gold"]})
    collection = load_lamp(write_set(tmp_path, [entry], outputs, packed=packed))
    (query,) = collection.queries
    (document,) = query.pool
    found = (query.id, query.question, query.query, query.golds, document.text)
    assert found == ("01", entry["input"], known["query"], (known["gold"],), known["text"])
    assert document.fields == {k: v for k, v in entry["profile"][0].items() if k != "id"}
    assert (collection.name, collection.task.name) == (f"LaMP-{number}", f"LaMP-{number}")
    assert collection.task.prompt == f"lamp{number}"
    assert collection.task.utility == task.utility
    assert task.utility(known["gold"], query.golds) == task.utility.greatest
    assert (collection.schema, collection.left_out, collection.note) == (None, {}, "")
    assert "{answer}" in collection.task.hypothesis


def test_names_of_tasks() -> None:
    for name in ("LaMP_5", "lamp-5", "LaMP5", " LAMP 5 "):
        task, called = lamp_task(name)
        assert (task.number, called) == (5, "LaMP-5")
    assert lamp_task("LaMP_2M")[1] == "LaMP-2"
    assert lamp_task("LaMP_5_like") == (TASKS[4], "LaMP_5_like")
    for wrong in ("LaMP_8", "LaMP_51", "lamp", "", "news"):
        with pytest.raises(InputError, match="no task of LaMP; name one of LaMP-1"):
            lamp_task(wrong)
    with pytest.raises(InputError, match="an older task"):
        lamp_task("LaMP_2N")


def test_a_set_of_that_shape_keeps_its_name(tmp_path: Path) -> None:
    found = _load(tmp_path, [_five("1")], golds_of("LaMP_5_like", {"1": "T"}))
    assert found.name == found.task.name == "LaMP_5_like"
    assert "LaMP-5:" not in found.title
    assert "shape of LaMP-5, which it is not" in found.note
    own = _load(tmp_path, [_five("1")], golds_of("papers", {"1": "T"}), task="LaMP-5")
    assert own.name == own.task.name == "papers"
    assert own.task.prompt == "lamp5"


def test_the_task_has_to_be_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'' is no task of LaMP"):
        _load(tmp_path, [_five("1")], golds_of(None, {"1": "T"}))
    for outputs in (golds_of(None, {"1": "T"}), {**golds_of(None, {"1": "T"}), "task": None}):
        assert _load(tmp_path, [_five("1")], outputs, task="lamp5").name == "LaMP-5"
    profile = [{"id": "1", "score": "5"}]
    with pytest.raises(CorpusError, match="1 of them: no document of its profile can be used"):
        _load(
            tmp_path, [_five("1", input="article: x", profile=profile)], {"1": "T"}, task="LaMP-4"
        )


def test_what_cannot_be_asked_is_left_out_and_counted(tmp_path: Path) -> None:
    document = ENTRIES[5]["profile"][0]
    entries = [
        _five("good"),
        _five("good"),
        _five("no output"),
        _five("blank output"),
        _five("no profile", profile=[]),
        _five("null profile", profile=None),
        _five("no text", profile=[{"id": "1", "title": " ", "abstract": None}]),
        _five("no query", input="Generate a title"),
        _five(7, profile=[document, document, {"id": "2"}, {"id": 3, "abstract": "A \ud800"}]),
    ]
    ids = [entry["id"] for entry in entries if entry["id"] != "no output"]
    golds = {str(id_): " " if id_ == "blank output" else "T" for id_ in ids}
    found = _load(tmp_path, entries, golds)
    assert [query.id for query in found.queries] == ["good", "7"]
    assert found.left_out == {
        "its id appears twice": 1,
        "it has no output": 1,
        "its output is no answer to this task": 1,
        "it has no profile": 2,
        "no document of its profile can be used": 1,
        "its input has nothing after ':'": 1,
    }
    assert [document.id for document in found.queries[1].pool] == ["50", "3"]
    assert found.queries[1].pool[1].fields == {"title": "", "abstract": "A ?"}
    assert "without text, left out: 2" in found.note
    assert "id stood already, left out: 1" in found.note


def test_a_document_that_is_the_question_and_its_gold_is_left_out(tmp_path: Path) -> None:
    """White space and case apart; one that has only the text, or only the gold, stays."""
    text = ENTRIES[5]["input"].partition(":")[2]
    profile = [
        {"id": "answer", "title": " merit  OR not", "abstract": f"{text}\n"},
        {"id": "same title", "title": "Merit or not", "abstract": "Of something else."},
        {"id": "same text", "title": "Another title", "abstract": text},
        {"id": "twin", "title": "Another title", "abstract": text, "date": "1"},
    ]
    found = _load(tmp_path, [_five("1", profile=profile)], {"1": "Merit or not"})
    assert [document.id for document in found.queries[0].pool] == ["same title", "same text"]
    assert "the question and its gold, left out: 1." in found.note
    assert "Documents that are equal to an earlier one, left out: 1." in found.note
    capped = _load(tmp_path, [_five("1", profile=profile)], {"1": "Merit or not"}, pool=1)
    assert [document.id for document in capped.queries[0].pool] == ["same title"]
    with pytest.raises(CorpusError, match="1 of them: no document of its profile can be used"):
        _load(tmp_path, [_five("1", profile=profile[:1])], {"1": "Merit or not"})


def test_limits_are_those_of_the_front_and_no_part_of_the_fingerprint(tmp_path: Path) -> None:
    profile = [{"id": str(i), "title": f"T{i}", "abstract": ""} for i in range(5)]
    entries = [_five(str(i), profile=profile) for i in range(4)]
    golds = {str(i): "T" for i in range(4)}
    whole = _load(tmp_path, entries, golds)
    small = _load(tmp_path, entries, golds, limit=2, pool=3)
    assert [query.id for query in small.queries] == ["0", "1"]
    assert [document.id for document in small.queries[0].pool] == ["0", "1", "2"]
    assert small.fingerprint == whole.fingerprint
    assert "the first 3 documents" in small.note
    assert dataclasses.replace(small.queries[1], pool=whole.queries[1].pool) == whole.queries[1]
    changed = _load(tmp_path, entries, golds | {"3": "U"})
    assert changed.fingerprint != whole.fingerprint


def test_files_are_found_by_folder_and_by_name(tmp_path: Path) -> None:
    outputs = golds_of("LaMP_5", {"1": "T"})
    write_set(tmp_path / "several", [_five("1")], outputs, "train_")
    assert load_lamp(tmp_path / "several").name == "LaMP-5"
    write_set(tmp_path / "several", [_five("1", input="x: train")], outputs, "test_")
    with pytest.raises(
        CorpusError, match=r"has test_questions.json, train_questions.json; name a folder"
    ):
        load_lamp(tmp_path / "several")
    chosen = load_lamp(tmp_path / "several" / "test_questions.json")
    assert chosen.queries[0].query == "train"
    write_set(tmp_path / "several", [_five("1", input="x: dev")], outputs, "dev_")
    assert load_lamp(tmp_path / "several").queries[0].query == "dev"
    (tmp_path / "several" / "dev_outputs.json").unlink()
    with pytest.raises(CorpusError, match=r"no outputs beside it; put dev_outputs.json there"):
        load_lamp(tmp_path / "several")
    (tmp_path / "empty").mkdir()
    for missing in ("empty", "none"):
        with pytest.raises(CorpusError, match="no file of LaMP's questions"):
            load_lamp(tmp_path / missing)


WHOLE = json.dumps([_five("1"), _five("2")]).encode()
GOLD = b'{"task": "LaMP_5", "golds": ['


@pytest.mark.parametrize(
    ("questions", "outputs", "what"),
    [
        (b"", {"1": "T"}, "premature EOF"),
        (WHOLE[:-1], {"1": "T"}, "premature EOF"),
        (b'[{"id": "1"}]', {"1": "T"}, "input: Field required"),
        (b'[{"id": "\xff"}]', {"1": "T"}, "invalid bytes in UTF8"),
        (WHOLE, b"[1]", "is no task of LaMP"),
        (WHOLE, GOLD + b'{"id": "1"}]}', "output: Field required"),
        (WHOLE, b'{"task": "LaMP_5"}', "no question of LaMP-5 that can be asked"),
        (WHOLE, b'{"task": 5, "golds": []}', "Input should be a valid string"),
    ],
)
def test_malformed_files_are_one_sentence(
    tmp_path: Path, questions: bytes, outputs: object, what: str
) -> None:
    with pytest.raises(FairqrError, match=what) as caught:
        _load(tmp_path, questions, outputs)
    assert len(str(caught.value).splitlines()) == 1


def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    """Of 24 MB of questions and 9 MB of outputs, less than 3 MB are held for ten questions."""
    entry = json.dumps(_five("0", profile=[{"id": "1", "title": "T", "abstract": "x " * 500}]))
    gold = json.dumps({"id": "0", "output": "a title of some words " * 20})
    count = 20_000
    with (tmp_path / "questions.json").open("w") as file:
        file.write("[" + entry)
        for number in range(1, count):
            file.write("," + entry.replace('"0"', f'"{number}"', 1))
        file.write("]")
    with (tmp_path / "outputs.json").open("w") as file:
        file.write('{"golds": [' + gold)
        for number in range(1, count):
            file.write("," + gold.replace('"0"', f'"{number}"', 1))
        file.write('], "task": "LaMP_5"}')
    load_lamp(tmp_path, limit=1)  # what is imported and compiled once does not count
    tracemalloc.start()
    found = load_lamp(tmp_path, limit=10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.queries) == 10
    assert peak < 3_000_000
