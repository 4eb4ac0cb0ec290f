"""The report of searches: its numbers are the results' own."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.experiments.measuring import MeasuredSearches, measure_experiment
from fairqr.evaluation.experiments.search_report import values_of
from fairqr.evaluation.experiments.store import SearchRecord, Store
from fairqr.evaluation.reports.writer import render
from tests.golden.reports import check_report
from tests.unit.evaluation.experiments.small import (
    SYSTEMS,
    fill,
    plan_of,
    records_of,
    write_collection,
)

MEASURES = ["nDCG@5", "AWRF@5(unit=bits)", "nDCG@5×AWRF@5(unit=bits)"]
PLACE = ("gender", "title")


def _measured(
    collection: Collection, folder: Path, change: Any = lambda record: record, **changes: Any
) -> MeasuredSearches:
    folder.mkdir(exist_ok=True)
    plan = plan_of(collection, folder, **changes)
    store = Store(folder / "run")
    fill(store, plan, [it for r in records_of(plan, collection) if (it := change(r))])
    return measure_experiment(store, collection)


def _part(measured: MeasuredSearches) -> dict[str, Any]:
    part: dict[str, Any] = values_of(measured)["parts"][0]
    return part


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[MeasuredSearches, Path]:
    """The small experiment as it is, and the folder of its report."""
    folder = tmp_path_factory.mktemp("reported")
    measured = _measured(write_collection(folder / "collection"), folder)
    measured.write_report(folder / "run")
    return measured, folder / "run"


def test_the_report_as_a_whole(reported: tuple[MeasuredSearches, Path]) -> None:
    """Its figures are files that it names, whose text is text and which load nothing."""
    text = (reported[1] / "report.md").read_text(encoding="utf-8")
    check_report("search", text)
    named = re.findall(r"^!\[(.+)\]\((figures/[^)]+)\)$", text, re.MULTILINE)
    assert len(named) == 4
    for _, path in named:
        drawn = (reported[1] / path).read_text()
        assert "ours, feedback" in drawn
        assert not re.search(r"<!DOCTYPE|(href|src)=\"(?!#)", drawn)


def test_means_and_differences_are_those_of_the_values_that_were_written(
    reported: tuple[MeasuredSearches, Path],
) -> None:
    """Recomputed from measures.csv, which another reader would use."""
    measured, folder = reported
    rows = list(csv.DictReader((folder / "measures.csv").read_text().splitlines()))
    means = measured.frames["means"].set_index(["system", "measure"])
    names = dict(zip(dict.fromkeys(row["measure"] for row in rows), MEASURES, strict=True))
    for system in (system["name"] for system in SYSTEMS):
        for written, name in names.items():
            values = [
                float(r["value"]) for r in rows if (r["system"], r["measure"]) == (system, written)
            ]
            assert means.loc[system, name]["mean"] == pytest.approx(np.mean(values))
            assert means.loc[system, name].topics == len(values) == 4
    for name in MEASURES:
        own = means.xs(name, level="measure")
        assert list(own.best) == list(np.isclose(own["mean"], own["mean"].max()))
    differences = measured.frames["differences"]
    assert len(differences) == 9
    for row in differences.itertuples():
        base = means["mean"][row.baseline, row.measure]
        assert row.difference == pytest.approx(means["mean"][row.system, row.measure] - base)
        assert row.change == pytest.approx(row.difference / base)
        assert (row.baseline, row.topics, row.tests) == ("BM25", 4, 9)
        assert row.holds == (row.p <= 0.05)
        assert row.too_few, "four topics can show nothing"
        assert np.isnan(row.low), "four topics are too few for an interval"


def test_means_over_different_topics_are_given_again_over_the_same_ones(
    collection: Collection, tmp_path: Path
) -> None:
    """One system finds nothing for a topic: relevance counts it as 0, fairness has no value.

    A measure of several rankings has no value for any system here, so all share that.
    """

    def without(record: SearchRecord) -> SearchRecord:
        if (record.system, record.topic) != ("ours", "t0"):
            return record
        return record.model_copy(update={"ids": [], "rounds": [], "error": "Nothing found."})

    none = "EE-L@5(estimator=unbiased)"
    shared = _measured(collection, tmp_path / "shared", measures=[none, *MEASURES])
    assert _part(shared)["share_topics"]
    assert shared.means.groupby("measure").best.any().to_dict() == {
        name: name in MEASURES for name in (none, *MEASURES)
    }
    measured = _measured(collection, tmp_path, without)
    part = _part(measured)
    assert not part["share_topics"]
    means = measured.means.set_index(["system", "measure"])
    assert [means.loc["ours", name].topics for name in MEASURES] == [4, 3, 4]
    marked = [part["means"][name].str.contains("**", regex=False).any() for name in MEASURES]
    assert marked == [True, False, True], "AWRF is over different topics"
    # The product of a search that found nothing is 0, so the best product is over all topics.
    assert part["best"]["topics"] == 4
    common = measured.means_of(measured.common).set_index(["system", "measure"])
    own = measured.evaluations[PLACE]["BM25"].results["nDCG@5"].values
    expected = np.mean([own[topic] for topic in ("t1", "t2", "t3")])
    assert common.loc["BM25", "nDCG@5"]["mean"] == pytest.approx(expected)
    assert set(common.topics) == {3}
    text = render("search", values_of(measured))
    assert re.search(r"\n\| ours \| gender, queries: title \| 4 \| 1 \|", text)
    assert "the same over the 3 topics where every system has every value" in text


def test_how_many_documents_have_a_label_is_counted(collection: Collection, tmp_path: Path) -> None:
    """Two of four occupations have a place, so half of the documents that are ranked."""
    measured = _measured(collection, tmp_path, attributes=["place"])
    known = {d.id for d in collection.corpus.documents() if d.fields.get("place")}
    means = _part(measured)["means"].set_index("system")
    for system, records in measured.records["place", "title"].items():
        counts = [sum(id_ in known for id_ in record.ids) for record in records]
        assert means["place known in the top 5"][system] == f"{np.mean(counts):.1f} of 5.0"


def test_drift_compares_a_round_with_round_0_of_the_same_topics(
    reported: tuple[MeasuredSearches, Path],
) -> None:
    measured, _ = reported
    drift = measured.frames["drift"].set_index(["system", "round"])
    assert (drift.topics["ours", 1], drift.topics["ours", 2]) == (4, 1)
    record = next(r for r in measured.records[PLACE]["ours"] if r.topic == "t0")

    def ndcg(ids: list[str]) -> float:
        judged = measured.qrels["t0"]
        gains = [float(judged.get(id_, 0) > 0) for id_ in ids]
        discounts = 1 / np.log2(np.arange(2, 7))
        return float(gains @ discounts / discounts[: len(judged)].sum())

    assert drift.relevance["ours", 2] == pytest.approx(ndcg(record.rounds[2].ids))
    assert drift.before["ours", 2] == pytest.approx(ndcg(record.rounds[0].ids))


def test_several_seeds_of_a_topic_are_one_value(collection: Collection, tmp_path: Path) -> None:
    """Their mean is taken first, by round too."""

    def further(record: SearchRecord) -> SearchRecord:
        own = {"divergence": 0.1 + 0.2 * record.seed}
        return record.model_copy(
            update={"rounds": [r.model_copy(update=own) for r in record.rounds]}
        )

    rounds = _measured(collection, tmp_path, further, seeds=[0, 1]).frames["rounds"]
    ours = rounds[(rounds.system == "ours") & (rounds["round"] == 0)]
    assert ours.divergence.tolist() == pytest.approx([0.2] * 4)


@pytest.mark.parametrize("best_first", [True, False])
def test_what_the_model_adds_has_a_sign(
    collection: Collection, tmp_path: Path, best_first: bool
) -> None:
    """Relevant documents are put first, or last, by the one system that asks a model.

    The model's part is known from settings, whatever the systems are called.
    """

    def changed(record: SearchRecord) -> SearchRecord:
        if record.system != "s3":
            return record
        judged = collection.qrels[record.topic]
        ids = list(judged)[:5] if best_first else [f"d{n:02}" for n in range(0, 25, 5)]
        return record.model_copy(update={"ids": ids})

    systems = [{**system, "name": f"s{number}"} for number, system in enumerate(SYSTEMS)]
    part = _part(_measured(collection, tmp_path, changed, systems=systems, baseline="s0"))
    added = part["added_by_models"]
    assert added[["baseline", "system"]].to_numpy().tolist() == [["s1", "s3"], ["s2", "s3"]]
    assert added.refines.tolist() == [False, True]
    assert (added.difference > 0).tolist() == [best_first] * 2 == added.better.tolist()
    assert (part["best"]["system"] == "s3") == best_first


def test_unfinished_systems_are_named_and_left_out(collection: Collection, tmp_path: Path) -> None:
    away = {"name": "away", "method": "plain", "corpus": "people-elsewhere"}

    def some(record: SearchRecord) -> SearchRecord | None:
        gone = record.system == "away" or (record.system, record.topic) == ("ours", "t2")
        return None if gone else record

    measured = _measured(collection, tmp_path, some, systems=[*SYSTEMS, away])
    missing = " ".join(values_of(measured)["missing"])
    assert "'ours' is left out of all tables and means: 1 search still to be done" in missing
    assert "It needs the corpus 'people-elsewhere'; attach it" in missing
    assert measured.unfinished[PLACE] == {"ours": 1, "away": 4}
    systems = measured.frames["means"].system.unique().tolist()
    assert systems == ["BM25", "ours, no refinement", "ours, feedback"]


def test_an_experiment_without_relevance_or_with_one_system_still_has_a_report(
    collection: Collection, tmp_path: Path
) -> None:
    measured = _measured(collection, tmp_path, systems=[SYSTEMS[0]], measures=["NDKL@5", "KL@5"])
    measured.write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "There is no plot of relevance against fairness" in text
    assert "Nothing is compared with the baseline 'BM25'" in text
    assert measured.frames["means"].best.all(), "the lower the better, and the only one"
