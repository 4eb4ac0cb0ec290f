"""The call of researchers: every form of run, judgements and groups gives the same numbers."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ir_datasets
import ir_measures
import numpy as np
import pandas as pd
import pytest

import fairqr
from fairqr.base.errors import InputError
from fairqr.evaluation.qrels import write_qrels
from fairqr.retrieval.sources.corpus import Corpus

RUN: Mapping[str, Mapping[str, float]] = {
    "q1": {"f1": 4.0, "m1": 3.0, "m2": 2.5, "f2": 1.0},
    "q2": {"m1": 2.0, "m3": 1.0, "f3": 0.5},
}
QRELS: Mapping[str, Mapping[str, int]] = {"q1": {"f1": 2, "m1": 1, "f2": 0}, "q2": {"f3": 1}}
GROUPS = {"f1": "female", "f2": "female", "f3": "female", "m1": "male", "m2": "male", "m3": "male"}
TWO = {id_: {"gender": group, "first": id_[1] == "1"} for id_, group in GROUPS.items()}
MEASURES = "nDCG@20,AP,AWRF@2"
SCORED, JUDGED = (
    [(q, d, value) for q, own in given.items() for d, value in own.items()]
    for given in (RUN, QRELS)
)


def frame(rows: list[Any], names: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=names.split())


def values(run: Any = RUN, qrels: Any = QRELS, **options: Any) -> dict[str, dict[str, float]]:
    found = fairqr.evaluate(run, qrels, MEASURES, **{"groups": GROUPS, **options}).per_query
    return {text.replace("gender", "group"): own for text, own in found.items()}


@pytest.mark.promise("evaluation")
def test_runs_in_every_form_are_measured_alike(tmp_path: Path) -> None:
    """Runs give the same in every form."""
    expected = values()
    path = tmp_path / "ours.run"
    lines = [f"{q} Q0 {d} {rank} {score} ours\n" for rank, (q, d, score) in enumerate(SCORED)]
    path.write_text("".join(lines))
    for run in (
        {query: list(found) for query, found in RUN.items()},
        {query: dict(reversed(found.items())) for query, found in RUN.items()},
        frame(SCORED, "query_id doc_id score").sample(frac=1, random_state=0),
        frame(SCORED, "qid docno score"),
        [ir_measures.ScoredDoc(*row) for row in SCORED],
        [*frame(SCORED, "qid docno score").itertuples(index=False)],
        path,
        str(path),
    ):
        assert values(run) == expected


@pytest.mark.promise("evaluation")
def test_judgements_in_every_form_are_measured_alike(tmp_path: Path) -> None:
    """Judgements give the same in every form.

    Grades are whole numbers of any kind.
    """
    expected = values()
    path = tmp_path / "qrels.txt"
    write_qrels(path, QRELS)
    dataset = ir_datasets.create_dataset(qrels_trec=str(path))
    ir_datasets.registry.register("fairqr-test", dataset)
    for qrels in (
        frame(JUDGED, "query_id doc_id relevance"),
        frame(JUDGED, "qid docno label").assign(rel=9),
        frame(JUDGED, "qid docno rel").astype({"rel": np.float32}),
        frame(JUDGED, "qid docno rel").astype({"rel": np.float16}),
        [ir_measures.Qrel(*row) for row in JUDGED],
        [*frame(JUDGED, "qid docno label").itertuples(index=False)],
        {query: {d: np.int8(it) for d, it in own.items()} for query, own in QRELS.items()},
        {query: {d: float(it) for d, it in own.items()} for query, own in QRELS.items()},
        path,
        dataset,
        "fairqr-test",
    ):
        assert values(qrels=qrels) == expected


@pytest.mark.promise("evaluation")
def test_groups_in_every_form_are_measured_alike(people: Corpus) -> None:
    """Groups give the same in every form."""
    expected = values()
    labels = pd.DataFrame({"doc_id": list(GROUPS), "gender": list(GROUPS.values())})
    for groups in (
        {id_: [group] for id_, group in GROUPS.items()},
        {id_: {group} for id_, group in GROUPS.items()},
        {id_: np.array([group]) for id_, group in GROUPS.items()},
        {id_: {group: 1.0} for id_, group in GROUPS.items()},
        {id_: {"gender": group} for id_, group in GROUPS.items()},
        {id_: {"gender": {group: 2}} for id_, group in GROUPS.items()},
        labels,
    ):
        assert values(groups=groups) == expected
    # The corpus has a population, in which both are half.
    for corpus in (people, people.path):
        assert values(groups=corpus, attributes=["gender"]) == expected


def test_what_is_missing_is_no_group() -> None:
    """As pandas writes it: NaN in a dict, and any missing value in a data frame."""
    known = values(groups={"f1": "a", "m1": "b", "f3": "b", "m2": None})
    labels = pd.array(["a", "b", "b", pd.NA], dtype="string")
    rows = pd.DataFrame({"doc_id": ["f1", "m1", "f3", "m2"], "gender": labels})
    for groups in (
        {"f1": "a", "m1": "b", "f3": "b", "m2": float("nan")},
        {"f1": "a", "m1": ["b"], "f3": ["b", np.nan], "m2": [np.nan]},
        rows,
        rows.assign(gender=[1.0, 2.0, 2.0, np.nan]),
    ):
        assert values(groups=groups) == known


def test_equal_scores_stand_as_asked() -> None:
    """A file of the same run is ordered alike; elsewhere documents have no ranks."""
    tied = {"q1": {"m1": 1.0, "f1": 1.0, "x": 2.0}}
    for ties, first in (("rank", "f1"), ("id", "f1"), ("trec_eval", "m1")):
        found = fairqr.evaluate(tied, {"q1": {first: 1}}, "RR", ties=ties)
        assert found.mean == {"RR": 0.5}
        assert found.notes[-1].kind == "ties"


def test_who_gets_seen() -> None:
    """By hand: log2 weights of the first two ranks, and the shares of relevant documents."""
    female, _ = fairqr.evaluate(RUN, QRELS, "AWRF@2", groups=GROUPS).by_group
    assert female.exposure == pytest.approx(1 / (1 + 1 / np.log2(3)) / 2)
    assert female.relevant == pytest.approx((0.5 + 1) / 2)
    assert female.ratio == pytest.approx(female.exposure / female.relevant)
    assert (female.group, female.queries) == ("female", 2)
    assert female.low is None  # two queries are too few


def test_a_data_frame_has_a_row_for_each_query_and_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fairqr.evaluate(RUN, {**QRELS, "q3": {"f1": 1}}, MEASURES, groups=GROUPS, name="ours")
    table = found.to_frame()
    assert list(table.columns) == ["run", "query_id", "measure", "value", "reason"]
    assert len(table) == 9
    assert table.groupby("measure")["value"].mean().to_dict() == pytest.approx(found.mean)
    assert table[table.value.isna()]["reason"].tolist() == ["missing"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert values() == values({query: list(own) for query, own in RUN.items()})
    with pytest.raises(InputError, match=r"pip install 'fairqr\[evaluation\]'"):
        found.to_frame()


NUMBER = "Each score for 'q' must be a finite number"
GRADE = "'q' must be a whole number of at most"
TWICE = [["q1", "f1", 4.0], ["q1", "f1", 4.0]]
CELLS = "'corpus' is not known for gender×first"
OF_GROUPS = {"measures": "AWRF@3", "groups": GROUPS}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"run": 3}, "The run cannot be of type int; help(fairqr.evaluate) lists"),
    ({"run": {"q": 5}}, "The ranking for 'q' cannot be of type int"),
    ({"run": {"q": ["a", "a"]}}, "The ranking for 'q' has a document twice"),
    *(({"run": {"q": {"a": odd, "b": 1.0}}}, NUMBER) for odd in ("1_0", float("nan"), None, [1])),
    ({"run": {1: ["a"], "1": ["b"]}}, "The id '1' is there as a number and as text"),
    ({"run": {"q": {1.5: 1.0}}}, "An id must be text or a whole number"),
    ({"run": frame(TWICE, "docno docno score")}, "needs the column query_id, once; it has docno,"),
    ({"run": frame(TWICE, "qid docno score")}, "The run has the document 'f1' twice for 'q1'"),
    ({"qrels": {"q": ["a"]}}, "The judgements for 'q' are not a dict from document to grade"),
    *(({"qrels": {"q": {"d": odd}}}, GRADE) for odd in (0.5, 10**400, "1", float("nan"))),
    ({"qrels": "nothing"}, "no file nothing, and no ir_datasets dataset has that id"),
    ({"qrels": {}}, "No query is judged"),
    ({"measures": ir_measures.AP(rel=2)}, "AP has no parameter 'rel'"),
    (OF_GROUPS | {"measures": "AWRF@3(attribute=colour)"}, "no attribute 'colour'; it has"),
    (OF_GROUPS | {"measures": "Exposure@3(group=other)"}, "no group 'other'"),
    (OF_GROUPS | {"target": "colour=red:1"}, "group 'red' of 'colour', which is not measured"),
    ({"measures": "AWRF@3(attribute=gender*first)", "groups": TWO, "target": "corpus:1"}, CELLS),
    (OF_GROUPS | {"qrels": None}, "target of AWRF@3(attribute=group) needs judgements"),
    ({"groups": 3}, "The groups cannot be of type int"),
    ({"groups": {"d1": None}}, "an attribute needs at least two groups"),
    ({"groups": {"d1": {"a": -1}, "d2": "b"}}, "The groups of 'group' are wrong"),
    ({"groups": frame([["a", 1], ["a", 2]], "docno x")}, "'a' in several rows"),
    ({"missing": "none"}, "Missing queries count as zero or undefined"),
    ({"target": {"relevance": 1}}, "'relevance' is not a target"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_what_does_not_fit_gets_a_sentence(options: dict[str, Any], words: str) -> None:
    given = {"run": RUN, "qrels": QRELS, "measures": "nDCG@10", **options}
    with pytest.raises(InputError, match=re.escape(words)):
        fairqr.evaluate(given.pop("run"), given.pop("qrels"), given.pop("measures"), **given)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["F", np.str_("M"), "F ", pd.NA], ["F", "M"]),
        ([np.bool_(True), False, "true", pd.NaT], ["false", "true"]),
        (["1.0", 0, np.int64(1), "0.0"], ["0", "1"]),
        ([["F", "M", "F"], np.array(["M"]), {"F": 1}, [None]], ["F", "M"]),
        (["F", pd.Series(["M"]), "M", np.datetime64("NaT")], ["F", "M"]),
    ],
)
def test_groups_are_named_as_in_a_file_of_labels(labels: list[Any], names: list[str]) -> None:
    """A missing value is no group, and a value has one name in whatever form it comes."""
    groups = dict(zip(["f1", "m1", "m2", "f2"], labels, strict=True))
    target = "relevance:0.5,uniform:0.5"
    found = fairqr.evaluate(RUN, QRELS, "AWRF@2", groups=groups, target=target)
    assert [it.group for it in found.by_group] == names
