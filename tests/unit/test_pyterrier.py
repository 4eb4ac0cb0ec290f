"""Pipelines and experiments of PyTerrier, which start no Java."""

from __future__ import annotations

from collections.abc import Iterator

import ir_measures
import pandas as pd
import pyterrier as pt
import pytest

import fairqr
from fairqr.base.errors import InputError
from fairqr.base.loops import run_blocking
from fairqr.evaluation.as_ir_measures import fair_measures
from fairqr.pyterrier import FairRerank, FairRetriever

TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": ["physicist", "composer"]})
GROUPS = {f"d{n}": "female" if n > 5 else "male" for n in range(12)}
QRELS = pd.DataFrame(
    [(qid, f"d{n}", 1) for qid in ("1", "2") for n in (0, 1, 6, 7)],
    columns=["qid", "docno", "label"],
)

FIRST = fairqr.Context(k=4, target="uniform:1")


class Given(pt.Transformer):
    """Twelve documents for each query, men first."""

    def transform(self, topics: pd.DataFrame) -> pd.DataFrame:
        rows = [
            (topic.qid, topic.query, docno, 12.0 - rank, rank)
            for topic in topics.itertuples()
            for rank, docno in enumerate(GROUPS)
        ]
        return pd.DataFrame(rows, columns=["qid", "query", "docno", "score", "rank"])


@pytest.fixture(scope="module")
def searching() -> Iterator[fairqr.FairSearch]:
    search = fairqr.FairSearch("notables", "feedback")
    yield search
    run_blocking(search.aclose())


@pytest.mark.promise("command")
def test_fair_reranking_runs_in_an_experiment() -> None:
    """Fair re-ranking is a transformer in experiments of PyTerrier, beside the ranking that it
    re-ranks.
    """
    measures = [ir_measures.nDCG @ 4, *fair_measures("AWRF@4", GROUPS)]
    table = pt.Experiment(
        [Given(), Given() >> FairRerank(GROUPS, context=FIRST)],
        TOPICS,
        QRELS,
        measures,
        names=["given", "fair"],
    ).set_index("name")
    assert table.loc["fair", "AWRF@4"] > table.loc["given", "AWRF@4"]
    assert not pt.java.started()


def test_ir_measures_takes_one_attribute_at_a_time() -> None:
    """Their values would be mixed into one mean."""
    two = {id_: {"gender": group, "even": id_[-1] in "02468"} for id_, group in GROUPS.items()}
    run = {"1": {"d1": 2.0, "d6": 1.0}}
    with pytest.raises(InputError, match=r"write AWRF@4\(attribute=gender\) or AWRF@4\(attr"):
        ir_measures.calc_aggregate(fair_measures("AWRF@4", two), {"1": {"d1": 1}}, run)


@pytest.mark.promise("command")
def test_fair_search_in_a_pipeline(searching: fairqr.FairSearch) -> None:
    """Fair search is a transformer in pipelines of PyTerrier."""
    context = fairqr.Context(k=5, attributes=["gender"])
    found = (FairRetriever(searching, context=context) % 3)(TOPICS)
    for topic in TOPICS.itertuples():
        expected = [
            place.id for place in run_blocking(searching.search(topic.query, context)).ranking
        ][:3]
        assert found[found.qid == topic.qid]["docno"].tolist() == expected


def test_a_query_that_nothing_matches_has_no_ranking(searching: fairqr.FairSearch) -> None:
    topics = pd.DataFrame({"qid": ["1", "2"], "query": ["zzxxqq", "composer"]})
    assert set(FairRetriever(searching)(topics)["qid"]) == {"2"}


def test_fair_reranking_keeps_all_documents_by_default() -> None:
    given = Given()(TOPICS)
    assert sorted(FairRerank(GROUPS)(given)["docno"]) == sorted(given["docno"])
    first = FairRerank(GROUPS, context=FIRST)(given)
    assert first.groupby("qid").size().tolist() == [4, 4]
    assert first["rank"].tolist() == [0, 1, 2, 3] * 2
    given = given.assign(text="about " + given["docno"], docno=given["docno"].str[1:].astype(int))
    groups = {int(id_[1:]): group for id_, group in GROUPS.items()}
    found = FairRerank(groups, context=FIRST)(given)
    assert ("d" + found["docno"]).tolist() == first["docno"].tolist()
    assert (found["text"] == "about d" + found["docno"]).all()


def test_our_measures_stand_beside_those_of_ir_measures() -> None:
    run = {"1": {"d0": 3.0, "d6": 2.0, "d1": 1.0}, "2": {"d0": 1.0}}
    qrels = {"1": {"d0": 1, "d6": 1, "d1": 1}, "2": {"d6": 0}}
    others = {id_: "even" if id_[-1] in "02468" else "odd" for id_ in GROUPS}
    asked: list[tuple[int, dict[str, str], dict[str, str]]]
    asked = [
        (3, GROUPS, {}),
        (1, GROUPS, {}),
        (3, others, {}),
        (3, GROUPS, {"target": "uniform:1"}),
    ]
    measures = [fair_measures("AWRF@20", groups, **more)[0] @ k for k, groups, more in asked]
    assert [str(it) for it in measures[1:]] == ["AWRF@1", "AWRF@3", "AWRF@3[target=uniform:1]"]
    found = ir_measures.calc_aggregate([ir_measures.nDCG @ 20, *measures], qrels, run)
    for measure, (k, groups, more) in zip(measures, asked, strict=True):
        ours = fairqr.evaluate(run, qrels, f"AWRF@{k}", groups=groups, **more).mean
        assert found[measure] == pytest.approx(next(iter(ours.values())))
    assert len({found[measure] for measure in measures}) == 4


def test_what_is_missing_gets_a_sentence() -> None:
    with pytest.raises(pt.validate.InputValidationError, match="query"):
        FairRetriever("notables")(TOPICS[["qid"]])
    with pytest.raises(InputError, match="needs the groups"):
        FairRerank(None)(Given()(TOPICS))
    with pytest.raises(InputError, match="must be a whole number from 1 to 1,000,000, not x"):
        fair_measures("AWRF", GROUPS)[0] @ "x"
