"""The report of searches: its numbers are the results' own."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.experiments.catalogue import read_experiment
from fairqr.evaluation.experiments.measuring import (
    Measured,
    measure_experiment,
)
from fairqr.evaluation.experiments.search_report import (
    values_of,
)
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


def _measured(
    collection: Collection,
    folder: Path,
    change: Any = lambda record: record,
    **changes: Any,
) -> tuple[Store, Measured]:
    plan = plan_of(collection, folder, **changes)
    store = Store(folder / "run")
    records = [changed for r in records_of(plan, collection) if (changed := change(r))]
    fill(store, plan, records)
    return store, measure_experiment(store, collection)


def _part(measured: Measured) -> dict[str, Any]:
    """What the template shows of the first attribute and form of query."""
    part: dict[str, Any] = values_of(measured)["parts"][0]
    return part


def _text(measured: Measured) -> str:
    """The report without its figures."""
    return render("search", values_of(measured))


@dataclass(frozen=True)
class Reported:
    """An experiment with its report.

    Attributes:
        measured: What it found.
        folder: Where the report is.
        written: The files of the report, in the order in which they were written.
    """

    measured: Measured
    folder: Path
    written: list[Path]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """The small experiment as it is."""
    folder = tmp_path_factory.mktemp("reported")
    store, measured = _measured(write_collection(folder / "collection"), folder)
    return Reported(measured, store.folder, measured.write_report(store.folder))


def test_the_report_as_a_whole(reported: Reported) -> None:
    check_report("search", (reported.folder / "report.md").read_text(encoding="utf-8"))


def test_every_mean_is_the_mean_of_the_values_that_were_written(reported: Reported) -> None:
    """Recomputed from measures.csv, which another reader would use."""
    rows = list(csv.DictReader((reported.folder / "measures.csv").read_text().splitlines()))
    means = reported.measured.frames["means"].set_index(["system", "measure"])
    names = dict(zip(dict.fromkeys(row["measure"] for row in rows), MEASURES, strict=True))
    for system in (system["name"] for system in SYSTEMS):
        for written, name in names.items():
            values = [
                float(r["value"]) for r in rows if (r["system"], r["measure"]) == (system, written)
            ]
            found = means.loc[system, name]
            assert found["mean"] == pytest.approx(np.mean(values))
            assert found.topics == len(values) == 4
    for name in MEASURES:
        own = means.xs(name, level="measure")
        assert list(own.best) == list(np.isclose(own["mean"], own["mean"].max()))


def test_differences_are_of_the_means(reported: Reported) -> None:
    frames = reported.measured.frames
    means = frames["means"].set_index(["system", "measure"])["mean"]
    assert len(frames["differences"]) == 9
    for row in frames["differences"].itertuples():
        base = means[row.baseline, row.measure]
        assert row.baseline == "BM25"
        assert row.difference == pytest.approx(means[row.system, row.measure] - base)
        assert row.change == pytest.approx(row.difference / base)
        assert (row.topics, row.tests) == (4, 9)
        assert row.holds == (row.p <= 0.05)
        assert row.too_few, "four topics can show nothing"
        assert np.isnan(row.low), "four topics are too few for an interval"


def test_means_over_different_topics_are_given_again_over_the_same_ones(
    collection: Collection, tmp_path: Path
) -> None:
    """One system finds nothing for a topic: relevance counts it as 0, fairness has no value."""

    def without(record: SearchRecord) -> SearchRecord:
        if (record.system, record.topic) != ("ours", "t0"):
            return record
        return record.model_copy(update={"ids": [], "rounds": [], "error": "Nothing found."})

    _, measured = _measured(collection, tmp_path, without)
    (table,) = measured.tables
    assert not table.share_topics
    means = table.means(table.scores).set_index(["system", "measure"])
    assert [means.loc["ours", name].topics for name in MEASURES] == [4, 3, 4]
    part = _part(measured)
    marked = {name: part["means"][name].str.contains("**", regex=False).any() for name in MEASURES}
    assert list(marked.values()) == [True, False, True], "AWRF is over different topics"
    # The product of a search that found nothing is 0, so the best product is over all topics.
    assert part["best"]["topics"] == 4
    common = table.means(table.common).set_index(["system", "measure"])
    own = table.evaluations["BM25"].results["nDCG@5"].values
    expected = np.mean([own[topic] for topic in ("t1", "t2", "t3")])
    assert common.loc["BM25", "nDCG@5"]["mean"] == pytest.approx(expected)
    assert set(common.topics) == {3}
    assert part["common_means"].to_csv().count("**") >= 2 * len(MEASURES)
    assert re.search(r"\n\| ours \| gender, queries: title \| 4 \| 1 \|", _text(measured))
    assert "the same over the 3 topics where every system has every value" in _text(measured)


def test_a_reconstruction_is_called_one(collection: Collection, tmp_path: Path) -> None:
    """DLF is made from the abstract of its paper; the table of systems says so."""
    systems = [SYSTEMS[0], {"name": "DLF", "method": "dlf", "train": {"folds": 2}}]
    _, measured = _measured(collection, tmp_path, systems=systems)
    described = values_of(measured)["systems"].set_index("system")
    assert "a linear reconstruction from its paper's abstract" in described.method["DLF"]
    shipped = read_experiment("fair_qr_table").spec().systems
    assert [s.name for s in shipped if s.method == "dlf"] == ["DLF, reconstructed"], "all tables"


def test_equal_topics_have_one_table(reported: Reported) -> None:
    assert reported.measured.tables[0].share_topics
    assert "the same over" not in _text(reported.measured)


def test_topics_without_a_value_for_any_system_are_shared_too(
    collection: Collection, tmp_path: Path
) -> None:
    """A measure of several rankings has no value for any system here."""
    measures = ["EE-L@5(estimator=unbiased)", *MEASURES]
    _, measured = _measured(collection, tmp_path, measures=measures)
    (table,) = measured.tables
    assert table.scores.value.isna().any()
    assert table.share_topics
    best = table.means(table.scores).groupby("measure").best.any()
    assert best.to_dict() == {name: name in MEASURES for name in measures}
    assert "the same over" not in _text(measured)


def test_how_many_documents_have_a_label_is_counted(collection: Collection, tmp_path: Path) -> None:
    """Two of four occupations have a place, so half of the documents that are ranked."""
    _, measured = _measured(collection, tmp_path, attributes=["place"])
    known = {d.id for d in collection.corpus.documents() if d.fields.get("place")}
    means = _part(measured)["means"].set_index("system")
    for system, records in measured.tables[0].records.items():
        counts = [sum(id_ in known for id_ in record.ids) for record in records]
        assert means["place known in the top 5"][system] == f"{np.mean(counts):.1f} of 5.0"
    assert "is over these documents only" in _text(measured)


def test_rounds_count_searches_that_never_began_as_0(
    collection: Collection, tmp_path: Path
) -> None:
    def shortened(record: SearchRecord) -> SearchRecord:
        keep = {"t3": 1}.get(record.topic, len(record.rounds))
        return record.model_copy(update={"rounds": record.rounds[:keep]})

    _, measured = _measured(collection, tmp_path, shortened)
    # Two rounds for t0, one for t1 and t2, none for t3.
    assert "\n| ours | 4 | 1.00 | 1.25 | 2 |" in _text(measured)


def test_drift_compares_a_round_with_round_0_of_the_same_topics(reported: Reported) -> None:
    measured = reported.measured
    drift = measured.frames["drift"].set_index(["system", "round"])
    assert drift.topics["ours", 1] == 4
    assert drift.topics["ours", 2] == 1
    record = next(r for r in measured.tables[0].records["ours"] if r.topic == "t0")

    def ndcg(ids: list[str]) -> float:
        judged = measured.qrels["t0"]
        gains = [float(judged.get(id_, 0) > 0) for id_ in ids]
        ideal = [1.0] * min(5, len(judged))
        discounts = 1 / np.log2(np.arange(2, 7))
        return float(gains @ discounts / (ideal @ discounts[: len(ideal)]))

    assert drift.relevance["ours", 2] == pytest.approx(ndcg(record.rounds[2].ids))
    assert drift.before["ours", 2] == pytest.approx(ndcg(record.rounds[0].ids))


def test_several_seeds_of_a_topic_are_one_value(collection: Collection, tmp_path: Path) -> None:
    """Their mean is taken first, by round too."""

    def further(record: SearchRecord) -> SearchRecord:
        rounds = [
            r.model_copy(update={"divergence": 0.1 + 0.2 * record.seed}) for r in record.rounds
        ]
        return record.model_copy(update={"rounds": rounds})

    _, measured = _measured(collection, tmp_path, further, seeds=[0, 1])
    rounds = measured.frames["rounds"]
    ours = rounds[(rounds.system == "ours") & (rounds["round"] == 0)]
    assert len(ours) == 4
    assert ours.divergence.tolist() == pytest.approx([0.2] * 4)


def test_costs_are_means_medians_and_percentiles(reported: Reported) -> None:
    report = _text(reported.measured)
    # Made up: 10 to 13 ms; two calls for the first topic, one for the others.
    assert "\n| BM25 | 4 | 0 / 0 / 0 | 0 / 0 / 0 | 11.5 / 11.5 / 12.8 |\n" in report
    assert "\n| ours | 4 | 1.25 / 1.00 / 1.85 | 125 / 100 / 185 | " in report


@pytest.mark.parametrize("best_first", [True, False])
def test_what_the_model_adds_has_a_sign(
    collection: Collection, tmp_path: Path, best_first: bool
) -> None:
    """Relevant documents are put first, or last, by the one system that asks a model."""

    def changed(record: SearchRecord) -> SearchRecord:
        if record.system != "ours":
            return record
        judged = collection.qrels[record.topic]
        ids = list(judged)[:5] if best_first else [f"d{n:02}" for n in range(0, 25, 5)]
        return record.model_copy(update={"ids": ids})

    _, measured = _measured(collection, tmp_path, changed)
    part = _part(measured)
    added = part["added_by_models"]
    assert added.baseline.tolist() == ["ours, no refinement", "ours, feedback"]
    assert added.refines.tolist() == [False, True]
    assert set(added.system) == {"ours"}
    assert (added.difference > 0).tolist() == [best_first] * 2 == added.better.tolist()
    assert (part["best"]["system"] == "ours") == best_first


def test_names_say_nothing_of_what_is_compared(collection: Collection, tmp_path: Path) -> None:
    """The model's part is known from settings, whatever the systems are called."""
    systems = [{**system, "name": f"s{number}"} for number, system in enumerate(SYSTEMS)]
    _, measured = _measured(collection, tmp_path, systems=systems, baseline="s0")
    added = _part(measured)["added_by_models"]
    assert added[["baseline", "system"]].to_numpy().tolist() == [["s1", "s3"], ["s2", "s3"]]


def test_unfinished_systems_are_named_and_left_out(collection: Collection, tmp_path: Path) -> None:
    away = {"name": "away", "method": "plain", "corpus": "people-elsewhere"}

    def some(record: SearchRecord) -> SearchRecord | None:
        gone = record.system == "away" or (record.system, record.topic) == ("ours", "t2")
        return None if gone else record

    _, measured = _measured(collection, tmp_path, some, systems=[*SYSTEMS, away])
    missing = values_of(measured)["missing"]
    assert any(
        "'ours' is left out of all tables and means: 1 search still to be done" in text
        for text in missing
    )
    assert any("It needs the corpus 'people-elsewhere'; attach it" in text for text in missing)
    assert measured.tables[0].unfinished == {"ours": 1, "away": 4}
    systems = measured.frames["means"].system.unique().tolist()
    assert systems == ["BM25", "ours, no refinement", "ours, feedback"]


def test_figures_are_files_whole_and_named_in_the_markdown(reported: Reported) -> None:
    markdown = (reported.folder / "report.md").read_text()
    named = re.findall(r"^!\[(.+)\]\((figures/[^)]+)\)$", markdown, re.MULTILINE)
    assert [reported.folder / path for _, path in named] == reported.written[2:-1]
    assert len(named) == 4
    for alt, path in named:
        assert len(alt) > 40
        text = (reported.folder / path).read_text()
        root = ET.fromstring(text)
        words = "".join(root.itertext())
        assert "round" in words or "nDCG@5" in words
        assert "ours, feedback" in words, "text is text, not shapes"
        assert "<!DOCTYPE" not in text
        assert not re.search(r"(href|src)=\"(?!#)", text)


def test_warnings_are_counted_whatever_their_numbers(
    collection: Collection, tmp_path: Path
) -> None:
    def warned(record: SearchRecord) -> SearchRecord:
        return record.model_copy(update={"warnings": [f"Of 5 documents {record.topic[1:]} fit."]})

    _, measured = _measured(collection, tmp_path, warned)
    assert values_of(measured)["warnings"] == [("Of # documents # fit.", 16)]


def test_an_experiment_without_relevance_or_with_one_system_still_has_a_report(
    collection: Collection, tmp_path: Path
) -> None:
    store, measured = _measured(
        collection, tmp_path, systems=[SYSTEMS[0]], measures=["NDKL@5", "KL@5"]
    )
    measured.write_report(store.folder)
    text = (store.folder / "report.md").read_text()
    assert "There is no plot of relevance against fairness" in text
    assert "Nothing is compared with the baseline 'BM25'" in text
    means = measured.frames["means"]
    assert means.best.all(), "the lower the better, and the only one"
