"""The call of researchers: every form of run, judgements and groups gives the same numbers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
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
SCORED = [(query, id_, score) for query, scores in RUN.items() for id_, score in scores.items()]
JUDGED = [(query, id_, grade) for query, grades in QRELS.items() for id_, grade in grades.items()]


def frame(rows: list[Any], names: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=names.split())


def values(run: Any = RUN, qrels: Any = QRELS, **options: Any) -> dict[str, dict[str, float]]:
    """Return the values of each measure by query, with one name for the attribute."""
    evaluation = fairqr.evaluate(run, qrels, MEASURES, **{"groups": GROUPS, **options})
    by_measure = evaluation.per_query.items()
    return {name.replace("gender", "group"): by_query for name, by_query in by_measure}


def write_run(folder: Path) -> Path:
    path = folder / "ours.run"
    lines = [f"{q} Q0 {d} {rank} {score} ours\n" for rank, (q, d, score) in enumerate(SCORED)]
    path.write_text("".join(lines))
    return path


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda folder: {query: list(scores) for query, scores in RUN.items()}, id="lists"
        ),
        pytest.param(
            lambda folder: {q: dict(reversed(scores.items())) for q, scores in RUN.items()},
            id="scores in another order",
        ),
        pytest.param(
            lambda folder: frame(SCORED, "query_id doc_id score").sample(frac=1, random_state=0),
            id="a shuffled data frame",
        ),
        pytest.param(lambda folder: frame(SCORED, "qid docno score"), id="a data frame"),
        pytest.param(
            lambda folder: [ir_measures.ScoredDoc(*row) for row in SCORED], id="ir_measures"
        ),
        pytest.param(
            lambda folder: [*frame(SCORED, "qid docno score").itertuples(index=False)],
            id="named tuples",
        ),
        pytest.param(write_run, id="a path"),
        pytest.param(lambda folder: str(write_run(folder)), id="a file name"),
    ],
)
def test_runs_in_every_form_are_measured_alike(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    """Runs give the same in every form."""
    assert values(make(tmp_path)) == values()


def write_judgements(folder: Path) -> Path:
    path = folder / "qrels.txt"
    write_qrels(path, QRELS)
    return path


def dataset_of(folder: Path) -> Any:
    return ir_datasets.create_dataset(qrels_trec=str(write_judgements(folder)))


def register_dataset(folder: Path) -> str:
    """Register the judgements by a name in ir_datasets."""
    ir_datasets.registry.register("fairqr-test", dataset_of(folder))
    return "fairqr-test"


def graded(kind: type) -> dict[str, dict[str, Any]]:
    """Return the judgements with grades of this type."""
    return {
        query: {document: kind(grade) for document, grade in grades.items()}
        for query, grades in QRELS.items()
    }


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda folder: frame(JUDGED, "query_id doc_id relevance"), id="relevance"),
        pytest.param(lambda folder: frame(JUDGED, "qid docno label").assign(rel=9), id="label"),
        pytest.param(
            lambda folder: frame(JUDGED, "qid docno rel").astype({"rel": np.float32}), id="float32"
        ),
        pytest.param(
            lambda folder: frame(JUDGED, "qid docno rel").astype({"rel": np.float16}), id="float16"
        ),
        pytest.param(lambda folder: [ir_measures.Qrel(*row) for row in JUDGED], id="ir_measures"),
        pytest.param(
            lambda folder: [*frame(JUDGED, "qid docno label").itertuples(index=False)],
            id="named tuples",
        ),
        pytest.param(lambda folder: graded(np.int8), id="grades of numpy"),
        pytest.param(lambda folder: graded(float), id="floats"),
        pytest.param(write_judgements, id="a path"),
        pytest.param(dataset_of, id="a dataset"),
        pytest.param(register_dataset, id="a name of a dataset"),
    ],
)
def test_judgements_in_every_form_are_measured_alike(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    """Judgements give the same in every form.

    Grades are whole numbers of any type.
    """
    assert values(qrels=make(tmp_path)) == values()


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize(
    "groups",
    [
        pytest.param({id_: [group] for id_, group in GROUPS.items()}, id="lists"),
        pytest.param({id_: {group} for id_, group in GROUPS.items()}, id="sets"),
        pytest.param({id_: np.array([group]) for id_, group in GROUPS.items()}, id="arrays"),
        pytest.param({id_: {group: 1.0} for id_, group in GROUPS.items()}, id="shares"),
        pytest.param({id_: {"gender": group} for id_, group in GROUPS.items()}, id="attributes"),
        pytest.param(
            {id_: {"gender": {group: 2}} for id_, group in GROUPS.items()},
            id="weights of attributes",
        ),
        pytest.param(
            pd.DataFrame({"doc_id": list(GROUPS), "gender": list(GROUPS.values())}),
            id="a data frame",
        ),
    ],
)
def test_groups_in_every_form_are_measured_alike(groups: Any) -> None:
    """Groups give the same in every form."""
    assert values(groups=groups) == values()


@pytest.mark.promise("evaluation")
def test_groups_of_a_corpus_are_measured_alike(people: Corpus) -> None:
    """Groups give the same where they come from a corpus, or from its file.

    The corpus has a population, in which both are half.
    """
    assert values(groups=people, attributes=["gender"]) == values()
    assert values(groups=people.path, attributes=["gender"]) == values()


LABELS = pd.DataFrame(
    {
        "doc_id": ["f1", "m1", "f3", "m2"],
        "gender": pd.array(["a", "b", "b", pd.NA], dtype="string"),
    }
)


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param({"f1": "a", "m1": "b", "f3": "b", "m2": float("nan")}, id="NaN"),
        pytest.param({"f1": "a", "m1": ["b"], "f3": ["b", np.nan], "m2": [np.nan]}, id="in lists"),
        pytest.param(LABELS, id="of pandas"),
        pytest.param(LABELS.assign(gender=[1.0, 2.0, 2.0, np.nan]), id="among numbers"),
    ],
)
def test_what_is_missing_is_no_group(groups: Any) -> None:
    """As pandas writes it: NaN in a dict, and any missing value in a data frame."""
    assert values(groups=groups) == values(groups={"f1": "a", "m1": "b", "f3": "b", "m2": None})


@pytest.mark.parametrize(
    ("ties", "first"), [("rank", "f1"), ("id", "f1"), ("trec_eval", "m1")], ids=lambda text: text
)
def test_equal_scores_stand_as_asked(ties: Any, first: str) -> None:
    """A file of the same run is ordered alike; elsewhere documents have no ranks."""
    tied = {"q1": {"m1": 1.0, "f1": 1.0, "x": 2.0}}

    evaluation = fairqr.evaluate(tied, {"q1": {first: 1}}, "RR", ties=ties)

    assert evaluation.mean == {"RR": 0.5}
    assert evaluation.notes[-1].kind == "ties"


def test_who_gets_seen() -> None:
    """By hand: log2 weights of the first two ranks, and the shares of relevant documents."""
    female, _ = fairqr.evaluate(RUN, QRELS, "AWRF@2", groups=GROUPS).by_group
    assert female.exposure == pytest.approx(1 / (1 + 1 / np.log2(3)) / 2)
    assert female.relevant == pytest.approx((0.5 + 1) / 2)
    assert female.ratio == pytest.approx(female.exposure / female.relevant)
    assert (female.group, female.queries) == ("female", 2)
    assert female.low is None  # two queries are too few


def test_a_data_frame_has_a_row_for_each_query_and_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = fairqr.evaluate(
        RUN, {**QRELS, "q3": {"f1": 1}}, MEASURES, groups=GROUPS, name="ours"
    )
    table = evaluation.to_frame()
    assert list(table.columns) == ["run", "query_id", "measure", "value", "reason"]
    assert len(table) == 9
    assert table.groupby("measure")["value"].mean().to_dict() == pytest.approx(evaluation.mean)
    assert table[table.value.isna()]["reason"].tolist() == ["missing"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert values() == values({query: list(scores) for query, scores in RUN.items()})
    with pytest.raises(InputError, match=r"pip install 'fairqr\[evaluation\]'"):
        evaluation.to_frame()


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
    arguments = {"run": RUN, "qrels": QRELS, "measures": "nDCG@10", **options}
    with pytest.raises(InputError, match=re.escape(words)):
        fairqr.evaluate(
            arguments.pop("run"), arguments.pop("qrels"), arguments.pop("measures"), **arguments
        )


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

    evaluation = fairqr.evaluate(RUN, QRELS, "AWRF@2", groups=groups, target=target)

    assert [group.group for group in evaluation.by_group] == names
