"""LaMP: its files as questions, incremental reading, what is wrong in files, and its utilities."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import CorpusError, FairqrError, InputError
from fairqr.evaluation.lamp import metrics
from fairqr.evaluation.lamp.loading import KeptDocuments, load_lamp
from fairqr.evaluation.lamp.tasks import TASKS, lamp_task
from fairqr.evaluation.rag.collection import RagCollection, Utility
from tests.golden.reports import check_text

Data = dict[str, Any]
_READ = json.loads(Path(__file__).with_name("official.json").read_text())
OFFICIAL: dict[int, Data] = {int(number): task for number, task in _READ.items()}
"""By task an entry of it (``input`` and ``profile``), and its gold, query and document's text."""

ENTRIES = {n: {"input": it["input"], "profile": it["profile"]} for n, it in OFFICIAL.items()}


def write_set(
    folder: Path, questions: object, outputs: object, prefix: str = "", packed: bool = False
) -> Path:
    """Write questions and outputs, each as JSON or as it is where it is bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("questions", questions), ("outputs", outputs)):
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        path = folder / f"{prefix}{name}.json{'.gz' * packed}"
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def golds_of(task: str | None, golds: dict[str, Any]) -> Data:
    """Return a file of outputs."""
    listed = [{"id": id_, "output": output} for id_, output in golds.items()]
    return {"golds": listed} if task is None else {"task": task, "golds": listed}


def _five(id_: object, **more: Any) -> Data:
    return {"id": id_, **ENTRIES[5], **more}


def _load(folder: Path, entries: object, golds: object, **options: Any) -> RagCollection:
    if isinstance(golds, dict) and "golds" not in golds:
        golds = golds_of("LaMP_5", golds)
    return load_lamp(write_set(folder, entries, golds), **options)


@pytest.mark.parametrize("number", range(1, 8))
def test_each_task_is_read_as_it_is_defined(tmp_path: Path, number: int) -> None:
    entry, known, task = {"id": "01", **ENTRIES[number]}, OFFICIAL[number], TASKS[number - 1]
    outputs = golds_of(f"LaMP_{number}", {"01": known["gold"]})
    collection = load_lamp(write_set(tmp_path, [entry], outputs, packed=number % 2 == 0))
    (query,) = collection.queries
    (document,) = query.pool
    found = (query.id, query.question, query.query, query.golds, document.text)
    assert found == ("01", entry["input"], known["query"], (known["gold"],), known["text"])
    assert document.fields == {k: v for k, v in entry["profile"][0].items() if k != "id"}
    assert (collection.name, collection.prompt) == (f"LaMP-{number}", f"lamp{number}")
    assert task.utility(known["gold"], query.golds) == task.utility.greatest
    by = "Documents are useful by accuracy; answers are judged by 4 − |error|."
    assert (collection.left_out, collection.note) == ({}, by if number == 3 else "")


def test_ratings_are_useful_by_the_code_or_by_the_text(tmp_path: Path) -> None:
    """A rating that is nearer to the gold is better by error, and as wrong by accuracy."""
    entry = {"id": "1", **ENTRIES[3]}
    path = write_set(tmp_path, [entry], golds_of("LaMP_3", {"1": "5"}))
    by_code = load_lamp(path)
    by_text = load_lamp(path, rating_labels="error")
    for answer, right, near in (("5", 1.0, 4.0), ("4 stars", 0.0, 3.0), ("?", 0.0, 0.0)):
        assert by_code.label_utility is not None
        assert by_text.label_utility is not None
        assert by_code.label_utility(answer, ["5"]) == right
        assert by_text.label_utility(answer, ["5"]) == near
        assert by_code.utility(answer, ["5"]) == near


def test_duplicates_and_answers_stay_if_that_is_asked(tmp_path: Path) -> None:
    """The numbers that are left out are told; without the switches they are none."""
    five = _five("1")
    twin = {**five["profile"][0], "id": "twin"}
    abstract = five["input"].partition(":")[2].strip()
    answer = {"id": "answer", "title": "T", "abstract": abstract}
    entry = {**five, "profile": [*five["profile"], twin, answer]}
    path = write_set(tmp_path, [entry], golds_of("LaMP_5", {"1": "T"}))
    found = load_lamp(path)
    both = load_lamp(path, kept=KeptDocuments(duplicates=True, answers=True))
    assert len(both.queries[0].pool) == len(found.queries[0].pool) + 2
    assert "equal to an earlier one, left out: 1" in found.note
    assert "the question and its gold, left out: 1" in found.note
    assert both.note == ""


def test_a_set_has_a_task_and_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    for name in ("LaMP_5", "lamp-5", " LAMP 5 "):
        assert lamp_task(name) == (TASKS[4], "LaMP-5")
    assert lamp_task("LaMP_2M") == (TASKS[1], "LaMP-2")
    for wrong, words in (("LaMP_51", "no task of LaMP"), ("LaMP_2N", "an older task")):
        with pytest.raises(InputError, match=words):
            lamp_task(wrong)
    for name, task in (("LaMP_5_like", None), ("papers", "LaMP-5"), (None, "lamp5")):
        found = _load(tmp_path, [_five("1")], golds_of(name, {"1": "T"}), task=task)
        assert found.name == (name or "LaMP-5")
        assert found.prompt == "lamp5"
        assert ("shape of LaMP-5, which it is not" in found.note) == (name is not None)


def test_what_cannot_be_asked_is_left_out_and_counted(tmp_path: Path) -> None:
    """A document that is the question and its gold too, white space and case apart."""
    odd = json.loads(Path(__file__).with_name("left_out.json").read_text())
    found = _load(tmp_path, odd["entries"], odd["golds"])
    (query,) = found.queries
    told = {
        "left_out": found.left_out,
        "note": found.note,
        "pool": list(map(dataclasses.asdict, query.pool)),
    }
    check_text("lamp_left_out.json", json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def test_limits_are_no_part_of_the_fingerprint(tmp_path: Path) -> None:
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
    assert _load(tmp_path, entries, golds | {"3": "U"}).fingerprint != whole.fingerprint
    # No more of a file is read than is asked for.
    torn = json.dumps(entries).encode()[:-1]
    assert _load(tmp_path, torn, golds, limit=4).queries == whole.queries


def test_files_are_found_by_folder_and_by_name(tmp_path: Path) -> None:
    def write(prefix: str) -> None:
        entries = [_five("1", input=f"x: {prefix}")]
        write_set(tmp_path, entries, golds_of("LaMP_5", {"1": "T"}), prefix)

    write("train_")
    write("test_")
    with pytest.raises(CorpusError, match=r"has test_questions.json, train_questions.json; name"):
        load_lamp(tmp_path)
    write("dev_")
    for name, prefix in (("", "dev_"), ("test_questions.json", "test_")):
        assert load_lamp(tmp_path / name).queries[0].query == prefix
    theirs = tmp_path / "5_user_dev_inputs.json"  # as the authors of Fair RAG name them
    theirs.write_bytes((tmp_path / "test_questions.json").read_bytes())
    golds = tmp_path / "5_user_dev_outputs.json"
    golds.write_bytes((tmp_path / "test_outputs.json").read_bytes())
    assert load_lamp(theirs).queries[0].query == "test_"
    (tmp_path / "dev_outputs.json").unlink()
    with pytest.raises(CorpusError, match=r"no outputs beside it; put dev_outputs.json there"):
        load_lamp(tmp_path)
    with pytest.raises(CorpusError, match="no file of LaMP's questions"):
        load_lamp(tmp_path / "none")


def test_malformed_files_are_one_sentence(tmp_path: Path) -> None:
    for questions, outputs, what in (
        (b'[{"id": "1"}', {}, "input: Field required"),
        (b'[{"id": "\xff"}]', {}, "invalid bytes in UTF8"),
        (b"[", {}, "premature EOF"),
        ([], b'{"task": 5, "golds": []}', "Input should be a valid string"),
        ([], b"[1]", "'' is no task of LaMP"),
        ([_five("1")], {}, "no question of LaMP-5 that can be asked"),
    ):
        with pytest.raises(FairqrError, match=what) as caught:
            _load(tmp_path, questions, outputs)
        assert len(str(caught.value).splitlines()) == 1


LABELS = TASKS[1].labels
UTILITIES: list[Utility] = [*(it.utility for it in TASKS), metrics.ROUGE_1, metrics.NAMES_RELEVANT]
GOLDS = {"accuracy": "[1]", "4 − |error|": "3"}
PEOPLE = ["Leó Szilárd", "Marie Curie", "Jean-Paul Sartre", "…"]
named = partial(metrics.names_relevant, golds=PEOPLE)
tag = partial(metrics.tag_label, labels=LABELS)
READ: list[tuple[Callable[[str], object], object, list[str]]] = [
    (metrics.citation_label, "[1]", ["[1]", "(1)"]),
    (metrics.citation_label, "[2]", ["[ 2 ]", "2", "Reference 2.", "Reference [2], about 1 topic"]),
    (metrics.citation_label, None, ["[1] and not [2]", "1 or 2", "12", "1.2", "[3]", "first", ""]),
    (tag, "sci-fi", [" Sci-Fi."]),
    (tag, "dark comedy", ["The tag is “dark  comedy”."]),
    (tag, "based on a book", ["based on\na book"]),
    (tag, None, ["comedy, or dark comedy", "reaction", "drama", ""]),
    (metrics.rating_of, 4, ["4", "4.0", "4 stars"]),
    (metrics.rating_of, None, ["4/5", "1 to 2", "0", "6", "-3", "10", "nan", "1e0", "four"]),
    (named, 1, ["Leo Szilard", "LEÓ  SZILÁRD.", "Marie Curie and Nobody", "Jean Paul Sartre"]),
    (named, 0, ["Szilárd", "Leo Szilardo", "physicist", "…", ""]),
]


@pytest.mark.parametrize(("read", "expected", "answers"), READ)
def test_an_answer_is_read_as_stated(
    read: Callable[[str], object], expected: object, answers: list[str]
) -> None:
    assert {read(answer) for answer in answers} == {expected}


@pytest.mark.parametrize(("gold", "utility"), [("1", 0), ("2", 1), ("3", 2), ("4", 1), ("5", 0)])
def test_what_is_no_rating_counts_as_the_worse_end(gold: str, utility: float) -> None:
    """|5 − 1|, |5 − 2|, |5 − 3| = |1 − 3|, |1 − 4|, |1 − 5|, each taken from 4."""
    assert metrics.four_minus_error("good", [gold]) == utility
    assert utility == min(metrics.four_minus_error(str(it), [gold]) for it in range(1, 6))


@pytest.mark.parametrize("utility", UTILITIES, ids=lambda utility: utility.name)
@given(answer=st.text(max_size=30))
def test_utilities_stay_in_their_range_and_empty_is_0(utility: Utility, answer: str) -> None:
    gold = [GOLDS.get(utility.name, "a fair rank")]
    assert 0 <= utility(answer, gold) <= utility.greatest
    assert utility(" \n", gold) == 0
