"""The report of searches, and the frames of a run: their numbers are the results' own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fairqr
from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.experiments.measuring import SPENT
from fairqr.evaluation.experiments.specification import RunFolder, SearchRecord
from tests.golden.reports import check_report
from tests.unit.evaluation.experiments import small

MEASURES = ["nDCG@5", "AWRF@5(unit=bits)", "nDCG@5×AWRF@5(unit=bits)"]


def _measured(
    collection: Collection, folder: Path, change: Any = lambda record: record, **changes: Any
) -> Any:
    """Measure the small experiment with its records changed; its report is in ``run``, too."""
    folder.mkdir(exist_ok=True)
    manifest, store = (
        small.manifest_for(collection, folder, **changes),
        RunFolder(folder / "run"),
    )
    records = small.records_of(manifest, collection)
    small.fill(store, manifest, [it for record in records if (it := change(record))])
    measured = fairqr.load_experiment(store.folder)
    measured.write_report(store.folder)
    return measured


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The small experiment as it is, and the folder of its report."""
    folder = tmp_path_factory.mktemp("reported")
    return _measured(small.write_collection(folder / "collection"), folder), folder / "run"


def test_the_report_as_a_whole(reported: tuple[Any, Path]) -> None:
    """Its figures are files that it names, whose text is text and which load nothing."""
    measured, folder = reported
    text = (folder / "report.md").read_text(encoding="utf-8")
    check_report("search", text)
    named = re.findall(r"^!\[.+\]\((figures/[^)]+)\)$", text, re.MULTILINE)
    assert named == [it.path for it in measured.plots.values()]
    assert len(named) == 3
    for figure in measured.plots.values():
        drawn = (folder / figure.path).read_text()
        assert "ours, feedback" in drawn
        assert not re.search(r"<!DOCTYPE|(href|src)=\"(?!#)", drawn)
        assert drawn.endswith(figure._repr_svg_())


def test_means_and_differences_are_those_of_the_values_that_were_written(
    reported: tuple[Any, Path],
) -> None:
    """Recomputed from measures.csv, which another reader would use."""
    measured, folder = reported
    assert (measured.kind, measured.spec) == ("search", measured.manifest.experiment)
    assert len(measured.frames["searches"]) == 4 * 4
    rows = pd.read_csv(folder / "measures.csv", float_precision="round_trip")
    for (_, _, system), evaluation in measured.evaluations.items():
        own = rows[rows.system == system].set_index(["measure", "topic"]).value
        for name, result in evaluation.results.items():
            assert own[name].to_dict() == result.values
    rows = rows[~rows.measure.isin(SPENT)]
    rows["measure"] = rows.measure.replace(dict(zip(rows.measure.unique(), MEASURES, strict=True)))
    expected = rows.groupby(["system", "measure"]).value.mean()
    means = measured.frames["means"].set_index(["system", "measure"])
    assert means["mean"].to_dict() == pytest.approx(expected.to_dict())
    assert set(means.topics) == {4}
    highest = means.groupby("measure")["mean"].transform("max")
    assert list(means.best) == list(means["mean"] == highest)
    differences = measured.frames["differences"].set_index(["system", "measure"])
    wanted = expected.sub(expected["BM25"], level="measure").drop("BM25")
    assert differences.difference.to_dict() == pytest.approx(wanted.to_dict())
    counted = differences[["baseline", "count", "tests"]].drop_duplicates().values.tolist()
    assert counted == [["BM25", 4, 9]]
    assert (differences.holds == (differences.randomisation_corrected <= 0.05)).all()
    assert differences.too_few.all(), "four topics can show nothing"
    assert differences.low.isna().all(), "four topics are too few for an interval"


def test_no_mean_over_other_topics_is_the_best(collection: Collection, tmp_path: Path) -> None:
    """One system finds nothing for a topic: relevance counts it as 0, fairness has no value.

    Two of four occupations have a place, so half of the documents that are ranked. A measure that
    is written in two ways is one.
    """

    def without(record: SearchRecord) -> SearchRecord:
        empty = {"ids": [], "rounds": [], "error": "Nothing found."}
        return record.model_copy(update=empty if record.key[2:] == ("ours", 0, "t0") else {})

    none = "EE-L@5(estimator=unbiased)"  # no system has a value of several rankings
    twice = [none, *MEASURES[:2], "AWRF@5(attribute=place,unit=bits)", MEASURES[2]]
    found = _measured(collection, tmp_path, without, measures=twice, attributes=["place"])
    means = found.frames["means"]
    assert [*means.measure.unique()] == [none, *MEASURES]
    topics = means.set_index(["system", "measure"]).topics
    assert [topics["ours", name] for name in MEASURES] == [4, 1, 2]
    marked = means.groupby("measure").best.any()
    assert marked[[none, *MEASURES]].tolist() == [False, True, False, True]
    text = (tmp_path / "run" / "report.md").read_text()
    assert "\n| ours | place | title | 0 | 3 | 1 |" in text
    assert "- 1 of 4 queries missing from ours: " in text
    assert "\n- 10 of 20 documents ranked by BM25 have no known place.\n" in text


def test_drift_compares_a_round_with_round_0_of_the_same_topics(
    reported: tuple[Any, Path],
) -> None:
    measured = reported[0]
    drift = measured.frames["drift"].set_index(["system", "round"])
    assert (drift.topics["ours", 1], drift.topics["ours", 2]) == (4, 1)
    record = measured.records["gender", "title", "ours"][0]

    for place, found in ((2, drift.relevance), (0, drift.before)):
        run, judged = {"t0": record.rounds[place].ids}, {"t0": measured.qrels["t0"]}
        assert found["ours", 2] == fairqr.evaluate(run, judged, "nDCG@5").mean["nDCG@5"]


def test_several_seeds_of_a_topic_are_one_value(collection: Collection, tmp_path: Path) -> None:
    """Their mean is taken first, by round too."""

    def further(record: SearchRecord) -> SearchRecord:
        target = {"female": 0.1 + 0.2 * record.seed}
        return record.model_copy(update={"target": target})

    rounds = _measured(collection, tmp_path, further, seeds=[0, 1]).frames["rounds"]
    assert rounds["target of female"].tolist() == pytest.approx([0.2] * len(rounds))


@pytest.mark.filterwarnings("error::FutureWarning")
def test_unfinished_systems_are_named_and_left_out(collection: Collection, tmp_path: Path) -> None:
    """Also where only the baseline is finished, and where nothing is."""

    def first(record: SearchRecord) -> SearchRecord | None:
        is_left = record.topic == "t2" and record.system.startswith("ours")
        return None if is_left and record.attribute == "place" else record

    found = _measured(collection, tmp_path, first, attributes=["gender", "place"])
    assert [*found.unfinished.values()] == [1, 1, 1]
    means = found.frames["means"].groupby("attribute").system.unique()
    assert (len(means["gender"]), [*means["place"]]) == (4, ["BM25"])
    assert {*found.frames["drift"].attribute} == {"gender"}
    text = (tmp_path / "run" / "report.md").read_text()
    assert "'ours' is left out of all tables and means: 1 search still to be done" in text
    assert "Nothing is compared with the baseline 'BM25'" in text
    with pytest.raises(InputError, match=r"No system in .* has searched for all topics yet"):
        _measured(collection, tmp_path / "other", lambda it: None if it.topic == "t2" else it)


def test_an_experiment_without_relevance_still_has_a_report(
    collection: Collection, tmp_path: Path
) -> None:
    found = _measured(collection, tmp_path, systems=small.SYSTEMS[:1], measures=["NDKL@5", "KL@5"])
    text = (tmp_path / "run" / "report.md").read_text()
    assert "There is no plot of relevance against fairness" in text
    assert found.frames["means"].best.all(), "the lower the better, and the only one"
