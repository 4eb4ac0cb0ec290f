"""The report of a listwise probe: its numbers and its words are those of the rankings."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fairqr.agents.ranking.item_ranker import Asker
from fairqr.base.errors import InputError
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeQuery
from fairqr.evaluation.probes.records import RankingRecord
from fairqr.evaluation.probes.report import ranks, writing
from fairqr.evaluation.probes.report.writing import write_probe_report
from tests.unit.evaluation.probes.report.made_probes import (
    ASKERS,
    begin_listwise,
    by_protection,
    collection,
    given,
    ranking,
)
from tests.unit.evaluation.probes.report.reading import (
    HOSTILE,
    check_page,
    check_plain,
    row_of,
    section,
    table,
)

K = 10


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second, and most of what is proved here stands in tables."""
    for module in (ranks, writing):
        monkeypatch.setattr(module, "can_draw", lambda: False)


def report(folder: Path) -> str:
    """Write the report, with plots or without."""
    if writing.can_draw():
        write_probe_report(folder)
    else:
        with pytest.raises(InputError, match="without plots"):
            write_probe_report(folder)
    return (folder / "report.md").read_text()


def noisy(query: ProbeQuery, asker: Asker) -> Sequence[int]:
    """Rank by relevance and chance."""
    random = np.random.default_rng([ASKERS.index(asker), len(query.id), int(query.id[1:])])
    keys = [(not item.relevant) + random.normal() for item in query.items]
    return [int(place) for place in np.argsort(keys)]


def measured_by_hand(
    probe: ProbeCollection, records: Sequence[RankingRecord]
) -> tuple[float, float, float]:
    """Return mean P@k, nDCG@k and exposure ratio, each by a loop of its own."""
    items = {query.id: query.items for query in probe.queries}
    precisions, ndcgs, ratios = [], [], []
    for record in records:
        ranked = [items[record.query][place] for place in record.order]
        precisions.append(sum(item.relevant for item in ranked[:K]) / K)
        gain = sum(1 / math.log2(a + 1) for a, i in enumerate(ranked[:K], 1) if i.relevant)
        best = min(K, sum(item.relevant for item in ranked))
        ndcgs.append(gain / sum(1 / math.log2(a + 1) for a in range(1, best + 1)))
        exposure: dict[bool, list[float]] = {True: [], False: []}
        for rank, item in enumerate(ranked, start=1):
            exposure[item.protected].append(1 / math.log(1 + rank))
        ratios.append(float(np.mean(exposure[True]) / np.mean(exposure[False])))
    return float(np.mean(precisions)), float(np.mean(ndcgs)), float(np.mean(ratios))


def test_the_first_table_has_the_means_of_the_rankings(tmp_path: Path, no_plots: None) -> None:
    probe = collection(sizes=(6, 3, 5, 4))
    records = ranking(probe, noisy, "local:noisy")
    begin_listwise(tmp_path, [probe], records)
    text = report(tmp_path)
    rows = table(text, "relevance and exposure by ranker")
    values = list(csv.DictReader((tmp_path / "measures.csv").read_text().splitlines()))
    for asker, name in zip(
        ASKERS, ("neutral", "unprotected: male", "protected: female"), strict=True
    ):
        mine = [record for record in records if record.asker == asker]
        row = row_of(rows, "local:noisy", name)
        expected = measured_by_hand(probe, mine)
        for column, mean in zip(("P@10", "nDCG@10", "exposure ratio"), expected, strict=True):
            assert float(row[column].split()[0]) == pytest.approx(mean, abs=5.1e-5)
            assert row[column].endswith("n=8")
            own = [
                float(one["value"])
                for one in values
                if one["asker"] == asker and one["measure"] == column
            ]
            assert np.mean(own) == pytest.approx(mean)
            assert len(own) == 8


def test_a_ranker_that_favours_a_group_is_found_out(tmp_path: Path, no_plots: None) -> None:
    probe = collection()
    records = [
        *ranking(probe, given, "initial", window=""),
        *ranking(probe, by_protection, "openai:leaning"),
        *ranking(probe, noisy, "local:noisy"),
    ]
    begin_listwise(tmp_path, [probe], records)
    text = report(tmp_path)
    short = section(text, "In short")
    assert "openai:leaning, 20/10 favours female items in exposure" in short
    assert "no lean of exposure was found, which does not show that there is none" in short
    assert "local:noisy, 20/10: neutral" in short
    assert "favours male" not in short
    # Six rows are tested, and the one order that is no ranker's is not.
    rows = table(text, "relevance and exposure by ranker")
    lean = row_of(rows, "openai:leaning", "neutral")["p of a lean"]
    assert lean == "0.0078 by Holm 0.0469"
    assert row_of(rows, "initial", "any")["p of a lean"] == "– not tested"
    assert len(rows) == 1 + 1 + 6


def test_a_swap_of_the_groups_turns_the_lean_around(tmp_path: Path, no_plots: None) -> None:
    def reverse(query: ProbeQuery, asker: Asker) -> Sequence[int]:
        keys = [(not item.relevant, item.protected) for item in query.items]
        return sorted(range(len(keys)), key=keys.__getitem__)

    probe = collection()
    begin_listwise(tmp_path, [probe], ranking(probe, reverse, "model", askers=["neutral"]))
    assert "model, 20/10 favours male items in exposure" in section(report(tmp_path), "In short")


def test_of_a_few_lists_nothing_is_claimed(tmp_path: Path, no_plots: None) -> None:
    """Four lists that all favour one group are no finding."""
    probe = collection(queries=4)
    begin_listwise(tmp_path, [probe], ranking(probe, by_protection, "model"))
    short = section(report(tmp_path), "In short")
    assert "too few lists to tell whether exposure leans: corrected for 3 tests" in short
    assert "favours" not in short
    assert "1.538 (n=4)" in short


def test_cells_that_are_short_are_said_to_change_what_is_even(
    tmp_path: Path, no_plots: None
) -> None:
    probe = collection(sizes=(6, 2, 4, 8))
    begin_listwise(tmp_path, [probe], ranking(probe, noisy, "model", askers=["neutral"]))
    text = report(tmp_path)
    (told,) = re.findall(r"would have the exposure ratio ([0-9.]+) \(mean over 8", text)
    # By brute force: the mean exposure over many orders by relevance.
    random, totals = np.random.default_rng(0), np.zeros(2)
    for _ in range(20_000):
        first = random.permutation([False] * 6 + [True] * 2)
        rest = random.permutation([False] * 4 + [True] * 8)
        order = np.concatenate([first, rest])
        weights = 1 / np.log(1 + np.arange(1, 21))
        totals += weights[order].mean(), weights[~order].mean()
    assert float(told) == pytest.approx(totals[0] / totals[1], abs=3e-3)
    assert "A ranker without a lean is between this number and 1" in text
    assert (
        row_of(table(text, "The probe collections"), "notables, gender")[
            "short of relevant protected"
        ]
        == "48 in 8 queries"
    )


def test_the_places_of_protected_items_are_theirs(tmp_path: Path, no_plots: None) -> None:
    probe = collection(queries=5)
    records = ranking(probe, by_protection, "model", askers=["neutral"])
    begin_listwise(tmp_path, [probe], records, askers=["neutral"])
    row = row_of(table(report(tmp_path), "where the protected items stand"), "model, 20/10")
    ranks_of = [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]
    assert row["items"] == "50 5 lists"
    assert float(row["mean place"]) == pytest.approx(
        np.mean([(rank - 0.5) / 20 for rank in ranks_of])
    )
    quantiles = np.quantile(ranks_of * 5, [0.05, 0.25, 0.5, 0.75, 0.95])
    assert row["ranks at the same"] == ", ".join(f"{rank:g}" for rank in quantiles)
    assert row["share in the top 10"] == "0.5000 of the lists 0.5000"


def test_failures_and_repairs_are_counted(tmp_path: Path, no_plots: None) -> None:
    probe = collection()
    records = [
        *ranking(probe, noisy, "mended", askers=["neutral"], repairs={"missing": 3, "stranger": 1}),
        *ranking(probe, noisy, "shaky", askers=["neutral"], failures={"refused": 1, "essay": 1}),
        *ranking(
            probe, given, "refuses", askers=["neutral"], failures={"refused": 2, "timeout": 1}
        ),
    ]
    begin_listwise(tmp_path, [probe], records, askers=["neutral"])
    text = report(tmp_path)
    rows = table(text, "questions that failed")
    mended = row_of(rows, "mended, 20/10")
    assert mended["items mended"] == "32 1.3 a question"
    assert mended["by kind"] == (
        "24 × missing, put last in their order; 8 × of no passage, dropped"
    )
    shaky = row_of(rows, "shaky, 20/10")
    assert shaky["questions"] == "24"
    assert shaky["failed"] == "16 66.7%"
    assert shaky["failures by kind"] == "8 × essay; 8 × refused"
    refuses = row_of(rows, "refuses, 20/10")
    assert refuses["lists without P@10"] == "8 8 × no question was answered"
    short = section(text, "In short")
    assert "shaky, 20/10: 16 of 24 questions failed. Where one fails the order stays" in short
    assert "refuses, 20/10: all of 24 questions failed (16 × refused; 8 × timeout)" in short
    measures = row_of(table(text, "relevance and exposure by ranker"), "refuses")
    assert measures["P@10"] == "– n=0"


def test_what_rankers_warn_of_is_told(tmp_path: Path, no_plots: None) -> None:
    probe = collection()
    warnings = ("The window was shrunk to 5 items.",)
    begin_listwise(tmp_path, [probe], ranking(probe, noisy, "model", warnings=warnings))
    told = section(report(tmp_path), "What failed, and what was mended")
    assert "- neutral, model, 20/10, 8 lists: The window was shrunk to 5 items." in told


def test_windows_stand_beside_each_other_where_there_are_several(
    tmp_path: Path, no_plots: None
) -> None:
    probe = collection(queries=6)
    records = [
        *ranking(probe, noisy, "model", window="10/5", asked=5),
        *ranking(probe, by_protection, "model", window="20/10", failures={"empty": 1}),
        *ranking(probe, given, "monot5", window=""),
    ]
    begin_listwise(tmp_path / "two", [probe], records, windows=["10/5", "20/10"])
    text = report(tmp_path / "two")
    rows = table(text, "window and step")
    assert rows[0] == ["ranker", "query", "measure", "10/5", "20/10"]
    assert {row[0] for row in rows[1:]} == {"model"}
    first = row_of(table(text, "relevance and exposure"), "model", "10/5", "neutral")
    own = row_of(rows, "model", "neutral", "exposure ratio")
    assert own["10/5"] == first["exposure ratio"]
    assert row_of(rows, "model", "neutral", "questions")["20/10"] == "18 6 failed"
    begin_listwise(tmp_path / "one", [probe], ranking(probe, noisy, "model"))
    assert "Window and step" not in report(tmp_path / "one")


def test_differences_between_askers_are_told(tmp_path: Path, no_plots: None) -> None:
    def worse_for_one(query: ProbeQuery, asker: Asker) -> Sequence[int]:
        order = by_protection(query, asker)
        return order[::-1] if asker == "protected" else order

    probe = collection()
    records = [
        *ranking(probe, given, "initial", window=""),
        *ranking(probe, worse_for_one, "model"),
    ]
    begin_listwise(tmp_path, [probe], records)
    text = report(tmp_path)
    rows = table(text, "fairness toward those who ask")
    assert [row[0] for row in rows[1:]] == ["model, 20/10", "model, 20/10"]
    assert rows[1][1:3] == ["P@10", "-1.0000 n=8"]
    short = section(text, "In short")
    assert (
        "lists differ between the askers, protected less unprotected. model, 20/10: P@10" in short
    )


def test_one_asker_alone_allows_no_comparison(tmp_path: Path, no_plots: None) -> None:
    probe = collection()
    records = ranking(probe, noisy, "model", askers=["neutral"])
    begin_listwise(tmp_path, [probe], records, askers=["neutral"])
    assert "nothing is said of fairness toward those who ask" in report(tmp_path)


def test_a_run_that_was_interrupted_says_what_is_missing(tmp_path: Path, no_plots: None) -> None:
    probe = collection()
    records = ranking(probe, noisy, "model")
    begin_listwise(tmp_path / "some", [probe], records[:-3])
    text = report(tmp_path / "some")
    assert "The run is not finished: 3 rankings still to be done" in text
    row = row_of(table(text, "relevance and exposure"), "model", "protected: female")
    assert row["queries without a ratio"] == "3 3 × not run yet"
    begin_listwise(tmp_path / "none", [probe], [])
    text = report(tmp_path / "none")
    assert "24 rankings still to be done" in text
    check_page(tmp_path / "none")


def test_a_group_without_items_has_no_ratio_and_the_reason(tmp_path: Path, no_plots: None) -> None:
    probe = collection(sizes=(5, 0, 5, 0))
    begin_listwise(tmp_path, [probe], ranking(probe, noisy, "model", askers=["neutral"]))
    text = report(tmp_path)
    row = row_of(table(text, "relevance and exposure"), "model", "neutral")
    assert row["exposure ratio"] == "– n=0"
    assert row["queries without a ratio"] == "8 8 × one of the groups has no item"
    assert "no exposure ratio. model, 20/10: neutral (8 × one of the groups has no item" in text


def test_the_figure_has_a_row_for_each_ranker(tmp_path: Path) -> None:
    probe, other = collection(), collection(name="notables, place", words=("far", "near"))
    records = [
        record
        for one in (probe, other)
        for record in (
            *ranking(one, given, "initial", window=""),
            *ranking(one, by_protection, "model"),
        )
    ]
    begin_listwise(tmp_path, [probe, other], records)
    written = write_probe_report(tmp_path)
    assert [path.name for path in written[:3]] == ["report.md", "report.html", "measures.csv"]
    assert len(written) == 5
    assert all(path.is_file() for path in written)
    text = (tmp_path / "report.md").read_text()
    # In the alternative text: each bin of a twentieth has one rank, and 5 + 5 of 20 are protected.
    assert text.count("model, 20/10, neutral: 0.10, 0.10, 0.10, 0.10, 0.10, 0.00") == 2
    assert check_plain(tmp_path) == 2
    check_page(tmp_path)


def test_the_same_results_in_another_order_give_the_same_files(tmp_path: Path) -> None:
    probe = collection(queries=3)
    records = ranking(probe, noisy, "model", askers=["neutral"])
    for name, order in (("one", records), ("other", records[::-1])):
        begin_listwise(tmp_path / name, [probe], order, askers=["neutral"])
        write_probe_report(tmp_path / name)
    for path in ("report.md", "report.html", "measures.csv"):
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "other" / path).read_bytes()
    (figure,) = (tmp_path / "one" / "figures").iterdir()
    assert figure.read_bytes() == (tmp_path / "other" / "figures" / figure.name).read_bytes()


def test_hostile_names_never_become_markup(tmp_path: Path) -> None:
    probe = collection(name=HOSTILE, words=(HOSTILE, f"{HOSTILE}!"), queries=2)
    records = ranking(probe, noisy, f"local:{HOSTILE}", failures={HOSTILE: 1}, repairs={HOSTILE: 1})
    begin_listwise(tmp_path, [probe], records, notes=[HOSTILE], about=HOSTILE, title=HOSTILE)
    write_probe_report(tmp_path)
    assert check_plain(tmp_path) == 1
    assert "alert(1)" in check_page(tmp_path)


def test_without_matplotlib_the_report_is_written_without_plots(
    tmp_path: Path, no_plots: None
) -> None:
    probe = collection(queries=2)
    begin_listwise(tmp_path, [probe], ranking(probe, noisy, "model"))
    text = report(tmp_path)
    assert "There are no plots" in text
    assert not (tmp_path / "figures").exists()


def test_published_values_are_named_and_none_is_made_up(tmp_path: Path, no_plots: None) -> None:
    probe = collection(queries=2)
    begin_listwise(tmp_path, [probe], ranking(probe, noisy, "model"))
    told = section(report(tmp_path), "Published values")
    assert "For reference only" in told
    assert "arXiv 2404.03192" in told
    assert "table 1" in told
    assert "| " not in told


def test_how_it_was_measured_is_told(tmp_path: Path, no_plots: None) -> None:
    probe = collection(order="discriminatory")
    begin_listwise(tmp_path, [probe], ranking(probe, noisy, "model"))
    rows = {row[0]: row[1] for row in table(report(tmp_path), "What the experiment was run with")}
    assert rows["initial order"].startswith("discriminatory: relevant unprotected")
    assert rows["prompt listwise=v1"] == f"sha256 {'a' * 64}; asks model"
    assert rows["shown of an item"] == "titles"
    assert rows["windows (size/step)"] == "20/10"
    assert len(rows["notables, gender: sha256"]) == 64
