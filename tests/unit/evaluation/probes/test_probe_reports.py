"""The reports of probes and tunings: whole, readable, and of the numbers that were measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from fairqr.evaluation.probes.report import values_of
from fairqr.evaluation.probes.running import measure
from fairqr.evaluation.reports.writer import render
from tests.golden.reports import check_report
from tests.unit.evaluation.probes.made import (
    begin_listwise,
    begin_pairwise,
    begin_tuning,
    by_protection,
    collection,
    even,
    fails,
    given,
    leaning,
    mixed,
    noisy,
    ranking,
)
from tests.unit.evaluation.reports.pages import read

HOSTILE = "<script>alert(1)</script> | `x` *y* $\\frac{ & &lt; ]]> [a](http://evil.example)"
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def measured(folder: Path) -> Any:
    return measure(folder)


def some_lists(folder: Path) -> None:
    """A run with two windows, a ranker that leans, one that fails, and rankings to be made."""
    probes = [
        collection(queries=12, sizes=(6, 3, 5, 4)),
        collection(queries=4, name="notables, place", words=("far", "near")),
    ]
    records = []
    for probe in probes:
        records += [
            *ranking(probe, given, "initial", window=""),
            *ranking(probe, by_protection, "openai:leaning"),
            *ranking(probe, noisy, "openai:leaning", window="10/5", repairs={"missing": 3}),
            *ranking(probe, noisy, "monot5", window="", warnings=("Texts were cut.",)),
            *ranking(probe, given, "refuses", failures={"refused": 2, "timeout": 1}),
        ]
    begin_listwise(folder, probes, records[:-3], windows=["20/10", "10/5"], size=24, about="Why.")


def some_pairs(folder: Path) -> None:
    """A run on models that lean, do a bit of everything, and fail."""
    models = {"leans": leaning, "mixed": mixed, "fails": fails}
    probe = collection(queries=12, sizes=(9, 8, 9, 9))
    begin_pairwise(
        folder, [probe], models, size=36, relevance_pairs=4, log_odds=(0.75, 0.25), missing=5
    )


def a_tuning(folder: Path) -> None:
    """A tuning that mends a lean, and costs relevance."""
    begin_tuning(folder, collection(queries=24), leaning, even, size=20)


RUNS: dict[str, Callable[[Path], None]] = {
    "listwise": some_lists,
    "pairwise": some_pairs,
    "tuning": a_tuning,
}


def files_of(folder: Path) -> dict[Path, bytes]:
    """Return what is in each file of a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in paths}


@pytest.fixture(scope="module", params=RUNS)
def reported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with its report; its name begins with the kind of run."""
    folder = tmp_path_factory.mktemp(request.param)
    RUNS[request.param](folder)
    measured(folder).write_report(folder)
    return folder


def test_the_report_as_a_whole(reported: Path) -> None:
    """It is written as files, whose page is whole and fetches nothing."""
    check_report(reported.name[:-1], (reported / "report.md").read_text(encoding="utf-8"))
    check_page(reported)
    assert check_plain(reported) == len([*(reported / "figures").iterdir()]) > 0
    assert (reported / "measures.csv").is_file()


def test_the_same_results_give_the_same_files(reported: Path, tmp_path: Path) -> None:
    RUNS[reported.name[:-1]](tmp_path)
    measured(tmp_path).write_report(tmp_path)
    assert files_of(reported) == files_of(tmp_path)


HOSTILE_NAMES: dict[str, Any] = {"name": HOSTILE, "words": (HOSTILE, f"{HOSTILE}!")}
TOLD: dict[str, Any] = {"about": HOSTILE, "title": HOSTILE}


def hostile_lists(folder: Path) -> None:
    probe = collection(queries=2, **HOSTILE_NAMES)
    events = {"failures": {HOSTILE: 1}, "repairs": {HOSTILE: 1}}
    begin_listwise(folder, [probe], ranking(probe, noisy, f"local:{HOSTILE}", **events), **TOLD)


def hostile_pairs(folder: Path) -> None:
    def reply(number: int) -> tuple[str, str]:
        return ("protected", "protected") if number % 2 else (HOSTILE, HOSTILE)

    begin_pairwise(folder, [collection(**HOSTILE_NAMES)], {f"local:{HOSTILE}": reply}, **TOLD)


def hostile_tuning(folder: Path) -> None:
    probe = collection(**HOSTILE_NAMES)
    begin_tuning(folder, probe, even, even, model=f"causal:{HOSTILE}", **TOLD)


@pytest.mark.parametrize("begin", [hostile_lists, hostile_pairs, hostile_tuning])
def test_hostile_names_never_become_markup(begin: Callable[[Path], None], tmp_path: Path) -> None:
    begin(tmp_path)
    measured(tmp_path).write_report(tmp_path)
    assert check_plain(tmp_path) >= 1
    assert "alert(1)" in check_page(tmp_path)


@pytest.mark.parametrize(
    ("begin", "left"),
    [
        (lambda it: begin_listwise(it, [collection()], []), "24 rankings"),
        (
            lambda it: begin_pairwise(it, [collection()], {"leans": leaning}, missing=64),
            "64 pairs",
        ),
        (lambda it: begin_tuning(it, collection(), even, None), "48 held-out pairs"),
    ],
)
def test_a_run_that_has_barely_begun_says_so(
    begin: Callable[[Path], object], left: str, tmp_path: Path
) -> None:
    begin(tmp_path)
    measured(tmp_path).write_report(tmp_path)
    assert f"{left} still to be done" in check_page(tmp_path)


def test_few_lists_allow_no_claim(tmp_path: Path) -> None:
    """Four lists that all favour one group are no finding."""
    probe = collection(queries=4)
    begin_listwise(tmp_path, [probe], ranking(probe, by_protection, "model"))
    values = values_of(measured(tmp_path))
    assert [row["lean"].verdict for row in values["parts"][0]["rows"]] == ["too_few"] * 3
    text = render("listwise", values)
    assert "too few lists to tell whether exposure leans: among 5 tests" in text
    assert "favours" not in text.split("## Relevance")[0]


def test_what_was_not_asked_is_not_claimed(tmp_path: Path) -> None:
    probe = collection()
    records = ranking(probe, noisy, "model", askers=["neutral"])
    begin_listwise(tmp_path / "lists", [probe], records, askers=["neutral"])
    begin_pairwise(tmp_path / "pairs", [probe], {"leans": leaning})
    begin_tuning(tmp_path / "tuning", probe, even, even, relevance_pairs=0)
    for name, kind, said in (
        ("lists", "listwise", "nothing is said of fairness toward those who ask"),
        ("pairs", "pairwise", "it is not known how well the models judge relevance"),
        ("tuning", "tuning", "not known whether fairness cost relevance"),
    ):
        assert said in render(kind, values_of(measured(tmp_path / name)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [({}, True), ({"log_odds": (1.0, -1.0)}, False), ({"by": "reply"}, False)],
)
def test_how_a_model_was_really_asked_is_said(
    changes: dict[str, Any], said: bool, tmp_path: Path
) -> None:
    """Probabilities were wanted, and the model may not tell them."""
    begin_pairwise(tmp_path, [collection()], {"chatty": leaning}, **changes)
    text = render("pairwise", values_of(measured(tmp_path)))
    assert ("chatty gave no probabilities of its tokens" in text) == said


def check_page(folder: Path) -> str:
    """Check that the page is whole and fetches nothing; return its text."""
    html = (folder / "report.html").read_text()
    page = read(html)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    assert not re.search(r'(src|href)="(?!#)', html)
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe"}
    assert "nan" not in re.findall(r"\w+", page.text.lower())
    for path in (folder / "figures").glob("*.svg"):
        ET.fromstring(path.read_text())
    return page.text


def check_plain(folder: Path) -> int:
    """Check that nothing in the Markdown is markup of a user's; return the number of images."""
    kinds: Counter[str] = Counter()
    for token in READER.parse((folder / "report.md").read_text()):
        kinds.update(child.type for child in token.children or [])
        kinds[token.type] += 1
    for kind in ("html_inline", "html_block", "link_open", "strong_open", "code_inline"):
        assert not kinds[kind]
    return kinds["image"]
