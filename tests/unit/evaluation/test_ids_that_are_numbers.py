"""An id that is a whole number meets itself: pandas writes 1 as ``1.0`` where a cell is empty."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pandas
import pytest

import fairqr
from fairqr.evaluation.collections.collection import load_collection
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.run import open_run
from fairqr.retrieval.sources.documents import in_known_forms, known_form, other_form
from fairqr.retrieval.sources.label_files import open_label_store
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Attribute
from fairqr.retrieval.sources.source import RunSource

RUN = {"1": {"1": 3.0, "2": 2.0, "3": 1.0}, "2": {"3": 2.0, "1": 1.0}}
QRELS = {"1": {"2": 1, "1": 0}, "2": {"3": 1}}
GROUPS = {"1": "F", "2": "M", "3": "F"}
MEASURES = "nDCG@3,AWRF@3"
TARGET = "relevance:0.5,uniform:0.5"
SEX: dict[str, Any] = {"groups": ["F", "M"]}


def with_zeros(values: Any) -> Any:
    """The ids of a dict, and of those inside, as ``1.0``."""
    if not isinstance(values, dict):
        return values
    return {f"{id_}.0": with_zeros(value) for id_, value in values.items()}


def measured(run: Any, qrels: Any, groups: Any) -> list[float | None]:
    found = fairqr.evaluate(run, qrels, MEASURES, groups=groups, target=TARGET)
    return [it.mean for it in found.results.values()]


def a_run(folder: Path, run: Any, name: str = "a.run") -> Path:
    lines = [
        f"{query} Q0 {id_} {rank} {score} ours\n"
        for query, ranked in run.items()
        for rank, (id_, score) in enumerate(ranked.items(), start=1)
    ]
    (folder / name).write_text("".join(lines))
    return folder / name


def judgements(folder: Path, qrels: Any, name: str = "qrels.txt") -> Path:
    lines = [f"{q} 0 {d} {grade}\n" for q, own in qrels.items() for d, grade in own.items()]
    (folder / name).write_text("".join(lines))
    return folder / name


def test_only_whole_numbers_have_another_form() -> None:
    assert [*map(other_form, ("1", "1.0", "007", "007.0"))] == ["1.0", "1", "007.0", "007"]
    assert {*map(other_form, ("", ".0", "1.5", "1.00", "v1.0", "a", "²", "1.0.0", "-1"))} == {None}
    assert known_form("1.0", {"1"}) == known_form("1", {"1"}) == "1"
    assert known_form("1.0", {"2"}) == "1.0"


def test_ids_that_differ_where_they_are_used_stay_apart() -> None:
    """Sections of a text may be 1 and 1.0; each has its own value."""
    both = {"1": "a", "1.0": "b"}
    assert in_known_forms(both, {"1", "1.0"}) == both
    assert in_known_forms(both, {"1"}) == both
    assert in_known_forms({"1.0": "b"}, {"1"}) == {"1": "b"}


@pytest.mark.parametrize("run", [RUN, with_zeros(RUN)])
@pytest.mark.parametrize("qrels", [QRELS, with_zeros(QRELS)])
@pytest.mark.parametrize("groups", [GROUPS, with_zeros(GROUPS)])
def test_runs_judgements_and_groups_meet(tmp_path: Path, run: Any, qrels: Any, groups: Any) -> None:
    expected = measured(RUN, QRELS, GROUPS)
    assert measured(run, qrels, groups) == expected
    in_files = a_run(tmp_path, run), judgements(tmp_path, qrels)
    assert measured(*in_files, groups) == expected
    path = tmp_path / "documents.jsonl"
    lines = [json.dumps({"id": id_, "title": "x", "sex": it}) for id_, it in groups.items()]
    path.write_text("\n".join(lines))
    schema = {"attributes": {"sex": {**SEX, "field": "sex"}}}
    (tmp_path / "schema.yaml").write_text(json.dumps(schema))
    assert measured(*in_files, path) == expected


def test_ids_of_data_frames_may_have_a_fraction_of_zero() -> None:
    rows = [(float(q), float(d), grade) for q, own in QRELS.items() for d, grade in own.items()]
    frame = pandas.DataFrame(rows, columns=["query_id", "doc_id", "relevance"])
    assert measured(RUN, frame, GROUPS) == measured(RUN, QRELS, GROUPS)


@pytest.mark.parametrize("of_file", ["1", "1.0"])
@pytest.mark.parametrize("asked", ["1", "1.0"])
def test_a_file_of_labels_finds_both_forms(tmp_path: Path, of_file: str, asked: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(f"id,group\n{of_file},F\n2,M\n")
    attribute = Attribute(name="sex", labels=str(path), groups=("F", "M"))
    store = open_label_store(path, attribute, tmp_path / "kept", None, threading.Event())
    assert store.memberships([asked, "2", "2.0", "3", "a"]).tolist() == [
        [1, 0],
        [0, 1],
        [0, 1],
        [0, 0],
        [0, 0],
    ]


def test_a_file_of_labels_with_both_forms_keeps_them_apart(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("id,group\n1,F\n1.0,M\n")
    attribute = Attribute(name="sex", labels=str(path), groups=("F", "M"))
    store = open_label_store(path, attribute, tmp_path / "kept", None, threading.Event())
    assert store.memberships(["1", "1.0"]).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("run", [RUN, with_zeros(RUN)])
@pytest.mark.parametrize("others", ["{}", "{}.0"])
async def test_a_run_as_an_engine_meets_its_labels(tmp_path: Path, run: Any, others: str) -> None:
    a_run(tmp_path, run)
    ids = [others.format(number) for number in (1, 2, 3)]
    (tmp_path / "topics.csv").write_text(f"id,text\n{ids[0]},river\n{ids[1]},sea\n")
    lines = [json.dumps({"id": id_, "title": f"Title {id_[0]}"}) for id_ in ids]
    (tmp_path / "documents.jsonl").write_text("\n".join(lines))
    (tmp_path / "labels.csv").write_text(f"id,group\n{ids[0]},F\n{ids[1]},M\n{ids[2]},F\n")
    described = {"name": "x", "runs": "a.run", "topics": "topics.csv", "folder": tmp_path}
    source = RunSource.model_validate(
        {
            **described,
            "documents": "documents.jsonl",
            "attributes": {"sex": {**SEX, "labels": "labels.csv"}},
        }
    )
    labels = await LabelReader.open(source.attributes, tmp_path, store=tmp_path / "store")
    engine = await open_run(source, labels)
    (hits,) = await engine.search([Query("river", 3)])
    assert hits.ids == list(next(iter(run.values())))
    assert hits.memberships["sex"].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert [it.title for it in await engine.documents(hits.ids)] == [
        "Title 1",
        "Title 2",
        "Title 3",
    ]


def test_the_judgements_of_a_collection_meet_its_topics(tmp_path: Path) -> None:
    (tmp_path / "topics.jsonl").write_text('{"id": 1, "title": "x"}\n{"id": 2, "title": "y"}\n')
    (tmp_path / "documents.jsonl").write_text('{"id": "1", "title": "x", "sex": "F"}\n')
    schema = {"attributes": {"sex": {**SEX, "field": "sex"}}}
    (tmp_path / "schema.yaml").write_text(json.dumps(schema))
    judgements(tmp_path, {f"{query}.0": own for query, own in QRELS.items()})
    assert load_collection(tmp_path).qrels == QRELS
