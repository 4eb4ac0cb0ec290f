"""What probes print: tables that a terminal of 80 columns can show, and what helps a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.cli.output import say
from fairqr.cli.probe import measured_lines
from fairqr.evaluation.probes.listwise_measures import MeasuredListwise
from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise
from fairqr.evaluation.probes.running import measure
from tests.unit.evaluation.probes.made_probes import (
    begin_listwise,
    begin_pairwise,
    by_protection,
    collection,
    given,
    ranking,
)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def leaning(pair: Any, number: int) -> tuple[str, str]:
    """Prefer the protected item in three of four pairs, both times."""
    winner = "protected" if number % 4 else "unprotected"
    return winner, winner


def neither(pair: Any, number: int) -> tuple[str, str]:
    return "neither", "neither"


def printed(folder: Path, capsys: pytest.CaptureFixture[str], reply: Any, **changes: Any) -> str:
    """Print a pairwise run on lists of people of long group names."""
    probe = collection(words=("non-European", "European"))
    measured = measure(begin_pairwise(folder, [probe], {"model": reply}, **changes))
    assert isinstance(measured, MeasuredPairwise)
    say(measured_lines(measured))
    return capsys.readouterr().out


def test_the_table_of_pairs_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the kinds of pairs nor the groups nor the numbers are cut or broken."""
    text = printed(tmp_path, capsys, leaning, log_odds=(1.0, -1.0))
    head, *rows = text.splitlines()[1:]
    assert "model on notables, gender, 8 queries, by probabilities, listwise=v1" in text
    assert {"non-European", "European", "ratio"} <= {*head.split()}
    for kind, pairs in (("relevant", 32), ("irrelevant", 32), ("together", 64)):
        row = next(row for row in rows if row.startswith(f"{kind} "))
        assert row.split()[:5] == [kind, str(pairs), "0.750", "0.250", "3.000"]
    assert max(len(row) for row in rows[:3]) <= 80


def test_another_way_to_ask_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a model begins with neither label; how it was asked is not guessed then."""
    text = printed(tmp_path / "weighed", capsys, neither)
    assert "--set by=reply reads" in text
    assert "by replies" not in text
    read = printed(tmp_path / "read", capsys, neither, by="reply")
    assert "by=reply" not in read
    assert ", by replies" in printed(tmp_path / "fine", capsys, leaning)


def test_the_given_order_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the same whoever asks, and so has no difference between askers."""
    probe = collection()
    records = [
        *ranking(probe, given, "initial", window=""),
        *ranking(probe, by_protection, "model"),
    ]
    measured = measure(begin_listwise(tmp_path, [probe], records))
    assert isinstance(measured, MeasuredListwise)
    say(measured_lines(measured))
    rows = capsys.readouterr().out.splitlines()
    assert sum(row.startswith("initial ") for row in rows) == 3
    assert sum(row.startswith("model ") for row in rows) == 11
    assert "for female less for male askers:" in rows
