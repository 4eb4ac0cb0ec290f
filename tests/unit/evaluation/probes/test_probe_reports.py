"""The reports of probes and tunings: whole, readable, and of the numbers that were measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr.evaluation.probes.running import Task, measure
from tests.golden.reports import check_report
from tests.unit.evaluation.probes import made
from tests.unit.evaluation.probes.made import FIRST, PROTECTED, REFUSES, UNPROTECTED, prefers
from tests.unit.evaluation.reports.pages import read_report

HOSTILE = "<script>alert(1)</script> | `x` *y* $\\frac{ & &lt; ]]> [a](http://evil.example)"


def some_lists(folder: Path, who: str = "leaning", status: str = "refused", **named: Any) -> None:
    """A run with two windows, a ranker that leans, one that fails, and rankings to be made."""

    def refuses(number: int, task: Task) -> dict[str, Any] | None:
        failures = {status: 2, "timeout": 1}
        refused = made.ranks(range(len(task.items)), failures=failures)
        return refused if task.asked.window == "20/10" else None

    def mended(number: int, task: Task) -> dict[str, Any]:
        more = {"repairs": {"missing": 3, status: 1}, "warnings": (f"Cut: {status}.",)}
        return made.noisy(number, task) | more

    says = {"initial": made.nobody, f"openai:{who}": made.by_protection}
    says |= {"monot5": mended, "openai:refuses": refuses}
    more = {"windows": ["20/10", "10/5"], "size": 24, "about": status, "title": who}
    probes = [
        made.collection(queries=12, sizes=(6, 3, 5, 4), **named),
        made.collection(queries=4, name="notables, place", words=("far", "near")),
    ]
    made.begin(folder, made.listwise(rankers=[*says], **more), probes, says)


def some_pairs(folder: Path, who: str = "leaning", status: str = "refused", **named: Any) -> None:
    """A run on models that lean, do a bit of everything, and fail."""
    mixed = prefers(PROTECTED, UNPROTECTED, FIRST, REFUSES, log_odds=(0.75, 0.25))
    says = {who: made.leaning, "mixed": mixed, "fails": prefers((status, "both"))}
    more = {"size": 36, "relevance_pairs": 4, "about": status, "title": who}
    probe = made.collection(queries=12, sizes=(9, 8, 9, 9), **named)
    made.begin(folder, made.pairwise(models=[*says], **more), [probe], says)


def a_tuning(folder: Path, who: str = "leaning", status: str = "refused", **named: Any) -> None:
    """A tuning that mends a lean, and costs relevance."""
    more = {"model": f"causal:{who}", "size": 20, "about": status, "title": who}
    probe = made.collection(queries=24, **named)
    after = prefers(UNPROTECTED, PROTECTED, UNPROTECTED, (status, "protected"))
    made.begin_tuning(folder, probe, made.leaning, after, **more)


RUNS: dict[str, Callable[..., None]] = {
    "listwise": some_lists,
    "pairwise": some_pairs,
    "tuning": a_tuning,
}


@pytest.mark.parametrize("kind", RUNS)
def test_the_same_results_give_the_same_files(kind: str, tmp_path: Path) -> None:
    """They are as they were read once; the page is whole and fetches nothing."""
    written = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        RUNS[kind](folder)
        measure(folder).write_report(folder)
        paths = (path for path in folder.rglob("*") if path.is_file())
        written.append({path.relative_to(folder): path.read_bytes() for path in paths})
    files, other = written
    assert files == other
    assert Path("measures.csv") in files
    check_report(kind, files[Path("report.md")].decode())
    read_report(folder)


@pytest.mark.parametrize("kind", RUNS)
def test_hostile_names_never_become_markup(kind: str, tmp_path: Path) -> None:
    words = (HOSTILE, f"{HOSTILE}!")
    RUNS[kind](tmp_path, HOSTILE, HOSTILE, name=HOSTILE, words=words)
    measure(tmp_path).write_report(tmp_path)
    assert "alert(1)" in read_report(tmp_path).text


def test_a_run_that_has_barely_begun_says_so(tmp_path: Path) -> None:
    """And claims nothing about what it does not ask."""
    probe = made.collection()
    lists = made.listwise(rankers=["model"], askers=["neutral"], windows=["20/10"])
    made.begin(tmp_path / "lists", lists, [probe], {"model": made.nobody})
    pairs = made.pairwise(models=["model"])
    made.begin(tmp_path / "pairs", pairs, [probe], {"model": made.nobody})
    both = (made.even, made.nobody)
    made.begin_tuning(tmp_path / "tuning", probe, *both, relevance_pairs=0)
    for name, left, said in (
        ("lists", "8 rankings", "nothing is said of fairness toward those who ask"),
        ("pairs", "64 pairs", "it is not known how well the models judge relevance"),
        ("tuning", "32 held-out pairs", "not known whether fairness cost relevance"),
    ):
        measure(tmp_path / name).write_report(tmp_path / name)
        text = read_report(tmp_path / name).text
        assert f"{left} still to be done" in text
        assert said in text
