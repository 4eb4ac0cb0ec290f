"""The report of searches: its numbers are the results' own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.experiments.measuring import MeasuredSearches, measure
from fairqr.evaluation.experiments.store import SearchRecord, Store
from tests.golden.reports import check_report
from tests.unit.evaluation.experiments.small import (
    SYSTEMS,
    fill,
    manifest_for,
    records_of,
    write_collection,
)

MEASURES = ["nDCG@5", "AWRF@5(unit=bits)", "nDCG@5×AWRF@5(unit=bits)"]


def _measured(
    collection: Collection, folder: Path, change: Any = lambda record: record, **changes: Any
) -> MeasuredSearches:
    """Measure the small experiment with its records changed; its report is in ``run``, too."""
    folder.mkdir(exist_ok=True)
    manifest, store = manifest_for(collection, folder, **changes), Store(folder / "run")
    fill(store, manifest, [it for r in records_of(manifest, collection) if (it := change(r))])
    measured = measure(store.folder)
    measured.write_report(store.folder)
    return measured


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[MeasuredSearches, Path]:
    """The small experiment as it is, and the folder of its report."""
    folder = tmp_path_factory.mktemp("reported")
    return _measured(write_collection(folder / "collection"), folder), folder / "run"


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
    rows = pd.read_csv(folder / "measures.csv")
    rows["measure"] = rows.measure.map(dict(zip(rows.measure.unique(), MEASURES, strict=True)))
    expected = rows.groupby(["system", "measure"]).value.mean()
    means = measured.frames["means"].set_index(["system", "measure"])
    assert means["mean"].to_dict() == pytest.approx(expected.to_dict())
    assert set(means.topics) == {4}
    for name in MEASURES:
        own = means.xs(name, level="measure")
        assert list(own.best) == list(np.isclose(own["mean"], own["mean"].max()))
    differences = measured.frames["differences"]
    assert len(differences) == 9
    for row in differences.itertuples():
        assert row.difference == pytest.approx(
            expected[row.system, row.measure] - expected["BM25", row.measure]
        )
        assert (row.baseline, row.count, row.tests) == ("BM25", 4, 9)
        assert row.holds == (row.randomisation_corrected <= 0.05)
        assert row.too_few, "four topics can show nothing"
        assert np.isnan(row.low), "four topics are too few for an interval"


def test_no_mean_over_other_topics_is_the_best(collection: Collection, tmp_path: Path) -> None:
    """One system finds nothing for a topic: relevance counts it as 0, fairness has no value.

    Two of four occupations have a place, so half of the documents that are ranked.
    """

    def without(record: SearchRecord) -> SearchRecord:
        if (record.system, record.topic) != ("ours", "t0"):
            return record
        return record.model_copy(update={"ids": [], "rounds": [], "error": "Nothing found."})

    none = "EE-L@5(estimator=unbiased)"  # no system has a value of several rankings
    more: Any = {"measures": [none, *MEASURES], "attributes": ["place"]}
    measured = _measured(collection, tmp_path, without, **more)
    means = measured.means.set_index(["system", "measure"])
    assert [means.loc["ours", name].topics for name in MEASURES] == [4, 1, 2]
    marked = measured.means.groupby("measure").best.any()
    assert marked[[none, *MEASURES]].tolist() == [False, True, False, True]
    text = (tmp_path / "run" / "report.md").read_text()
    assert "\n| ours | place | title | 0 | 3 | 1 |" in text
    assert "- 1 of 4 queries missing from ours: " in text
    assert "\n- 10 of 20 documents ranked by BM25 have no known place.\n" in text


def test_drift_compares_a_round_with_round_0_of_the_same_topics(
    reported: tuple[MeasuredSearches, Path],
) -> None:
    measured, _ = reported
    drift = measured.frames["drift"].set_index(["system", "round"])
    assert (drift.topics["ours", 1], drift.topics["ours", 2]) == (4, 1)
    records = measured.records["gender", "title", "ours"]
    record = next(record for record in records if record.topic == "t0")

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
        rounds = [each.model_copy(update=own) for each in record.rounds]
        return record.model_copy(update={"rounds": rounds})

    rounds = _measured(collection, tmp_path, further, seeds=[0, 1]).frames["rounds"]
    ours = rounds[(rounds.system == "ours") & (rounds["round"] == 0)]
    assert ours.divergence.tolist() == pytest.approx([0.2] * 4)


def test_unfinished_systems_are_named_and_left_out(collection: Collection, tmp_path: Path) -> None:
    measured = _measured(
        collection, tmp_path, lambda it: None if (it.system, it.topic) == ("ours", "t2") else it
    )
    assert "'ours' is left out of all tables and means: 1 search still to be done" in (
        (tmp_path / "run" / "report.md").read_text()
    )
    assert measured.unfinished == {("gender", "title", "ours"): 1}
    with pytest.raises(InputError, match=r"No system in .* has searched for all topics yet"):
        _measured(collection, tmp_path / "other", lambda it: None if it.topic == "t2" else it)
    systems = measured.frames["means"].system.unique().tolist()
    assert systems == ["BM25", "ours, no refinement", "ours, feedback"]


def test_an_experiment_without_relevance_or_with_one_system_still_has_a_report(
    collection: Collection, tmp_path: Path
) -> None:
    measured = _measured(collection, tmp_path, systems=SYSTEMS[:1], measures=["NDKL@5", "KL@5"])
    text = (tmp_path / "run" / "report.md").read_text()
    assert "There is no plot of relevance against fairness" in text
    assert "Nothing is compared with the baseline 'BM25'" in text
    assert measured.frames["means"].best.all(), "the lower the better, and the only one"


def test_a_measure_that_is_written_in_two_ways_is_one(
    collection: Collection, tmp_path: Path
) -> None:
    group = "AWRF@5(attribute=gender,unit=bits)"
    twice = ["AWRF@5(unit=bits)", "nDCG@5", group, "nDCG@5×AWRF@5(unit=bits)"]
    measured = _measured(collection, tmp_path, measures=twice)
    assert [*measured.means.measure.unique()] == [twice[0], twice[1], twice[3]]
    once = _measured(collection, tmp_path / "once", measures=MEASURES).means
    both = measured.means.set_index(["measure", "system"])["mean"].sort_index()
    pd.testing.assert_series_equal(both, once.set_index(["measure", "system"])["mean"].sort_index())
