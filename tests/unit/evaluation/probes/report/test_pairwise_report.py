"""The report of a pairwise probe: its numbers are those of the pairs, and its words those of the
verdicts."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.probes.measured import MeasuredPairwise
from fairqr.evaluation.probes.measures import measure_run
from fairqr.evaluation.probes.report import pairwise, writing
from fairqr.evaluation.probes.report.writing import write_probe_report
from tests.unit.evaluation.probes.report.made_probes import begin_pairwise, collection
from tests.unit.evaluation.probes.report.reading import (
    HOSTILE,
    check_page,
    check_plain,
    row_of,
    section,
    table,
)


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second, and most of what is proved here stands in tables."""
    for module in (pairwise, writing):
        monkeypatch.setattr(module, "can_draw", lambda: False)


def report(folder: Path) -> str:
    """Write the report without plots."""
    with pytest.raises(InputError, match="without plots"):
        write_probe_report(folder)
    return (folder / "report.md").read_text()


def leaning(pair: Any, number: int) -> tuple[str, str]:
    """Prefer the protected item in three of four pairs, both times."""
    winner = "protected" if number % 4 else "unprotected"
    return winner, winner


def first(pair: Any, number: int) -> tuple[str, str]:
    """Prefer what stands first."""
    return "protected", "unprotected"


def mixed(pair: Any, number: int) -> tuple[str, str]:
    """Do a bit of everything."""
    return (
        ("protected", "protected"),
        ("unprotected", "unprotected"),
        ("protected", "unprotected"),
        ("refused", "protected"),
    )[number % 4]


def fails(pair: Any, number: int) -> tuple[str, str]:
    """Never prefer anything."""
    return "refused", "both"


def test_the_table_has_the_shares_of_the_pairs(tmp_path: Path, no_plots: None) -> None:
    store = begin_pairwise(tmp_path, [collection()], {"mixed": mixed})
    text = report(tmp_path)
    rows = table(text, "which group wins pairs")
    records = store.pairs.read()
    for kind, name in (("relevant", "relevant pairs"), ("irrelevant", "irrelevant pairs")):
        mine = [record for record in records if record.kind == kind]
        both = [
            sum(r.protected_first == r.unprotected_first == side for r in mine)
            for side in ("protected", "unprotected")
        ]
        row = row_of(rows, "mixed", name)
        for side, won in zip(("protected", "unprotected"), both, strict=True):
            assert row[f"{side} %"].startswith(f"{100 * won / len(mine):.1f}% [")
            assert row[f"{side} %"].endswith(f"{won} of {len(mine)}")
        assert row["ratio"].startswith(f"{both[0] / both[1]:.3f}")
    flips = row_of(table(text, "position bias"), "mixed", "relevant pairs")
    assert flips["flips"].endswith("8 of 32")
    assert flips["first wins both"] == "8"
    failed = row_of(table(text, "pairs and replies"), "mixed", "relevant pairs")
    assert failed["failed"] == "8 12.5%"
    assert failed["failures by kind"] == "8 × refused"
    assert failed["pairs with both replies"] == "24"
    values = list(csv.DictReader((tmp_path / "measures.csv").read_text().splitlines()))
    (own,) = [v for v in values if v["pairs"] == "relevant" and v["measure"] == "protected"]
    assert (own["count"], own["of"], own["value"]) == ("8", "32", "0.25")


def test_the_verdicts_stand_first_in_words(tmp_path: Path, no_plots: None) -> None:
    store = begin_pairwise(
        tmp_path, [collection()], {"leans": leaning, "looks first": first, "fails": fails}
    )
    short = section(report(tmp_path), "In short")
    measured = measure_run(store)
    assert isinstance(measured, MeasuredPairwise)
    kinds = []
    for row in measured.rows:
        assert row.verdict is not None
        assert row.verdict.sentence in short
        kinds.append(row.verdict.kind)
    assert kinds == ["favours_protected"] * 3 + ["position_decides"] * 3 + ["failed"] * 3
    # p over queries is 2 of 2⁸, and three rows have one.
    leans = [row.verdict for row in measured.rows if row.model == "leans"]
    assert [it.p for it in leans if it] == pytest.approx([3 * 2 / 2**8] * 3)
    assert "Holm" not in short


def test_all_verdicts_on_a_collection_are_one_family(tmp_path: Path, no_plots: None) -> None:
    """With 12 verdicts the same answers say no more; no entry claims a lean that does not hold."""
    models = {f"leans {number}": leaning for number in range(4)}
    store = begin_pairwise(tmp_path, [collection()], models)
    measured = measure_run(store)
    assert isinstance(measured, MeasuredPairwise)
    for row in measured.rows:
        assert row.verdict is not None
        assert row.verdict.lean is None
        assert row.verdict.p == pytest.approx(12 * 2 / 2**8)
        assert row.verdict.kind == "too_few"
    assert "favours" not in section(report(tmp_path), "In short")


def test_relevance_is_said_to_be_seen_only_where_it_is(tmp_path: Path, no_plots: None) -> None:
    models = {"sees": leaning, "looks first": first, "fails": fails}
    begin_pairwise(tmp_path, [collection()], models, relevance_pairs=4)
    text = report(tmp_path)
    short = section(text, "In short")
    assert "sees, relevance pairs: of 32 pairs the relevant item wins in both orders in 24" in short
    assert "(p 0.0078); the model can tell relevant items" in short
    assert "looks first, relevance pairs: of 32 pairs" in short
    assert short.count("that the model can tell relevant items was not found") == 1
    assert "fails, relevance pairs: no pair has a preference in both orders" in short
    row = row_of(table(text, "a relevant and an irrelevant item of the same group"), "sees")
    assert row["right in both orders"].startswith("75.0%")
    assert row["wrong in both orders"].startswith("25.0%")
    without = tmp_path / "without"
    begin_pairwise(without, [collection()], {"sees": leaning})
    assert "nothing is said of how well the models judge relevance" in report(without)


def test_log_odds_and_votes_are_told(tmp_path: Path, no_plots: None) -> None:
    begin_pairwise(tmp_path, [collection()], {"leans": leaning}, log_odds=(0.75, 0.25))
    text = report(tmp_path)
    position = row_of(table(text, "position bias"), "leans", "relevant pairs")
    assert position["mean log-odds"] == "+0.5000 n=64 replies"
    votes = row_of(table(text, "two other measures"), "leans", "relevant pairs")
    assert votes["votes for protected"].startswith("75.0%")
    assert votes["averaged: protected"].endswith("32 of 32")


def test_pairs_that_cannot_be_made_or_were_not_asked_are_counted(
    tmp_path: Path, no_plots: None
) -> None:
    probe = collection(sizes=(5, 0, 5, 5))
    begin_pairwise(tmp_path, [probe], {"leans": leaning}, missing=5)
    text = report(tmp_path)
    assert "The run is not finished: 5 pairs still to be done" in text
    rows = table(text, "pairs and replies")
    assert row_of(rows, "leans", "relevant pairs")["queries without pairs"] == "8 of 8"
    irrelevant = row_of(rows, "leans", "irrelevant pairs")
    assert (irrelevant["planned"], irrelevant["asked"]) == ("32", "27")
    assert "leans, relevant pairs: No verdict: no pair was asked about" in text


def test_a_run_that_was_not_begun_has_a_report_that_says_so(tmp_path: Path, no_plots: None) -> None:
    begin_pairwise(tmp_path, [collection()], {"leans": leaning}, missing=64)
    assert "64 pairs still to be done" in report(tmp_path)
    check_page(tmp_path)


def test_the_figure_has_both_groups_of_each_model(tmp_path: Path) -> None:
    probes = [collection(), collection(name="notables, place", words=("far", "near"))]
    begin_pairwise(tmp_path, probes, {"leans": leaning, "fails": fails})
    written = write_probe_report(tmp_path)
    assert len(written) == 5
    text = (tmp_path / "report.md").read_text()
    assert "leans, relevant pairs: protected 75.0%, unprotected 25.0%" in text
    assert check_plain(tmp_path) == 2
    check_page(tmp_path)


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "other"):
        begin_pairwise(tmp_path / name, [collection(queries=3)], {"mixed": mixed})
        write_probe_report(tmp_path / name)
    names = sorted(
        path.relative_to(tmp_path / "one")
        for path in (tmp_path / "one").rglob("*")
        if path.is_file()
    )
    assert len(names) > 4
    for path in names:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "other" / path).read_bytes()


def test_hostile_names_never_become_markup(tmp_path: Path) -> None:
    def hostile(pair: Any, number: int) -> tuple[str, str]:
        return ("protected", "protected") if number % 2 else (HOSTILE, HOSTILE)

    probe = collection(name=HOSTILE, words=(HOSTILE, f"{HOSTILE}!"))
    models = {f"local:{HOSTILE}": hostile}
    begin_pairwise(tmp_path, [probe], models, notes=[HOSTILE], about=HOSTILE, title=HOSTILE)
    write_probe_report(tmp_path)
    assert check_plain(tmp_path) == 1
    assert "alert(1)" in check_page(tmp_path)


def test_without_matplotlib_the_report_is_written_without_plots(
    tmp_path: Path, no_plots: None
) -> None:
    begin_pairwise(tmp_path, [collection(queries=2)], {"mixed": mixed})
    assert "There are no plots" in report(tmp_path)
    assert not (tmp_path / "figures").exists()


def test_a_folder_without_a_run_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no experiment"):
        write_probe_report(tmp_path)


@pytest.mark.usefixtures("no_plots")
def test_how_a_model_was_really_asked_is_said(tmp_path: Path) -> None:
    """Probabilities were wanted, and one of the models does not tell them."""
    said = "did not tell the probabilities of its tokens; its replies were read."
    begin_pairwise(tmp_path / "read", [collection()], {"chatty": leaning})
    text = report(tmp_path / "read")
    assert f"chatty {said}" in text
    assert row_of(table(text, "What the experiment was run with."), "asked by")["value"] == (
        "probabilities where a model tells them, else replies"
    )
    weighed = (1.0, -1.0)
    begin_pairwise(tmp_path / "told", [collection()], {"frank": leaning}, log_odds=weighed)
    assert said not in report(tmp_path / "told")
    begin_pairwise(tmp_path / "by", [collection()], {"chatty": leaning}, by="reply")
    assert said not in report(tmp_path / "by")
