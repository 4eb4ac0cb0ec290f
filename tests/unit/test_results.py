"""The page of results says what its file says, and each result is one that can be run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.catalogue import SHIPPED
from tests.listed_results import module

Command = module.Command
Table = module.ExpectedTable
differences = module.differences
RESULTS = module.results()
DOCS = Path("docs").resolve()
COMMANDS = [(f"{name}, small", result.small) for name, result in RESULTS.items() if result.small]
COMMANDS += [(f"{name}, full", result.full) for name, result in RESULTS.items() if result.full]
"""The commands of all results, with their names."""


def test_the_page_is_written_from_the_file() -> None:
    assert module.PAGE.read_text(encoding="utf-8") == "\n".join(module.page(RESULTS))


def test_each_shipped_experiment_has_a_result() -> None:
    command_lines = [command.run.split() for _, command in COMMANDS]
    experiments = {words[2] for words in command_lines if words[:2] == ["experiment", "run"]}

    assert experiments == set(SHIPPED)


def test_other_results_are_those_of_audits_and_modules() -> None:
    command_lines = [command.run.split() for _, command in COMMANDS]
    others = {words[0] for words in command_lines if words[:2] != ["experiment", "run"]}

    assert others == {"audit", "-m"}


@pytest.mark.parametrize("command", [pytest.param(command, id=name) for name, command in COMMANDS])
def test_what_was_run_has_figures_and_what_was_not_has_none(command: Any) -> None:
    assert bool(command.ran) == bool(command.tables)


PAGES = [Path("README.md").resolve(), *sorted({*DOCS.rglob("*.md")} - {*DOCS.glob("runs/**/*")})]
CODE = re.compile(r"(?ms)^```.*?^```|`[^`\n]*`|https?:\S+")
VERSIONS = r"(?i)(?:python|elasticsearch|opensearch) \(?(?:from )?[\d.]+(?:,? and [\d.]+)*"
PERCENT = re.compile(r"([1-9]\d*\.\d) %")
ROW = re.compile(r"(?m)^\|.*$(?!\n\| ?-)")
"""A row of a table that is not its head."""


def _figures(text: str) -> list[tuple[float, int]]:
    """The numbers with two decimals or more in a text, and how many they have; no versions.

    And percents, if more stands there than one: that alone is a part of the figures beside it.
    """
    text = re.sub(VERSIONS, "", text)
    numbers = re.findall(r"(?<![\w.:=])(\d*\.\d{2,})(?!\w|\.\d)", text)
    shares = re.findall(r"(?<=[ (])(\d{1,2})(?= %| (?:to|and) \d{1,2} %)", text)
    numbers += [f".{int(share):02}" for share in shares]
    return [(float(number), len(number.partition(".")[2])) for number in numbers]


def _cells(line: str) -> list[str]:
    if line[:1] != "|":
        return [line]
    return [cell.strip() for cell in line.strip("|").split("|")]


def _holds(known: list[tuple[float, int]], cell: str) -> bool:
    """Whether each figure of a cell is among known ones, to the decimals that it has."""
    for value, decimals in _figures(cell):
        most = 0.501 * 10**-decimals
        if not any(abs(value - other) <= most for other, _ in known):
            return False
    return True


def _unfounded(section: str, record: str) -> Iterator[str]:
    """Yield what a record has not: a table's cell needs one row there, of its name if any is."""
    means = re.sub(r"(?<!\\)\*[^*\n]*\*", "", record)  # a table shows no ends of intervals
    rows = [(set(_cells(row)) - {""}, _figures(row)) for row in ROW.findall(means)]
    heads: list[str] = []
    for line in section.splitlines():
        cells = _cells(line)
        heads = (heads or cells) if line[:1] == "|" else []
        for cell, head in zip(cells, heads or cells, strict=True):
            known = [_figures(record)]
            if heads:
                names = {cells[0], head}
                of_name = [figures for words, figures in rows if figures and names & words]
                known = of_name or [figures for _, figures in rows]
            if not any(_holds(figures, cell) for figures in known):
                yield cell


def _sections() -> Iterator[tuple[Path, str, str]]:
    """Yield sections with figures, without code, and the reports and results that they name."""
    parts = module.PAGE.read_text("utf-8").split("\n## ")
    results = {part.partition(":")[0]: part for part in parts}
    for page in PAGES:
        text = CODE.sub("", page.read_text(encoding="utf-8"))
        for section in re.split(r"(?m)^(?=## )", text):
            linked = re.findall(r"\(([./\w]*/report\.md)\)", section)
            records = [(page.parent / link).read_text(encoding="utf-8") for link in linked]
            for names in re.findall(r"<!-- from: (.*) -->", section):
                records += [results[name] for name in names.split()]
                section = PERCENT.sub(lambda share: f"{float(share[1]) / 100:.3f}", section)
            if _figures(section) and page.name != "glossary.md":  # which has an example
                yield page, section, "\n".join(records)


def test_figures_in_the_docs_are_those_of_the_records() -> None:
    """Others are defaults in the code, or of a run whose date stands there or opens the page."""
    files = [*Path().glob("[aegr]*/**/*.py"), *Path().glob("[aegr]*/**/*.yaml")]
    code = "".join(file.read_text("utf-8") for file in files)  # of agents/ to retrieval/
    for page, section, record in _sections():
        if record:
            assert [*_unfounded(section, record)] == [], page
            continue
        opening = page.read_text(encoding="utf-8").partition("\n## ")[0]
        if not re.search(r"\b20\d\d-\d\d-\d\d\b", opening + section):
            assert all(f"{value:g}" in code for value, _ in _figures(section)), (page, section)


@pytest.mark.parametrize(
    ("old", "new"),
    [("| +.028 |", "| +.041 |"), ("| .524 |", "| .526 |"), ("| .850 |", "| .853 |")],
    ids=["difference", "third decimal", "higher"],
)
def test_a_figure_that_no_record_has_is_told(old: str, new: str) -> None:
    sections = ((section, record) for _, section, record in _sections() if old in section)
    section, record = next(sections)

    assert {*_unfounded(section.replace(old, new), record)} == {new.strip("| ")}


SHOWN = {"ratio": r"(?m)^(\| )?{row} .*{value:.2f}×", "times baseline searches": " {value} times"}
"""How figures of a result that is a page of its own stand there."""


def test_pages_of_runs_have_the_figures_of_their_results() -> None:
    tables = []
    for command in (result.full for result in RESULTS.values() if result.full):
        page = (DOCS / "runs" / command.report).resolve()
        if page.parent == DOCS / "results":
            text = page.read_text(encoding="utf-8")
            tables += [(text, table.figures) for table in command.tables]

    assert tables

    for text, figures in tables:
        less = [f"{values['less']:g}" for values in figures.values() if "less" in values]
        if less:
            assert f"{', '.join(less[:5])} | {', '.join(less[5:])}" in text
        for row, values in figures.items():
            for name in values.keys() & SHOWN:
                pattern = SHOWN[name].format(row=re.escape(row), value=values[name])
                assert re.search(pattern, text), row


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A folder with the measures of one system on two topics."""
    lines = ["system,measure,value", "BM25,nDCG@20(k=20),.5", "BM25,nDCG@20(k=20),.7"]
    (tmp_path / "measures.csv").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize(
    ("figures", "sentences"),
    [
        ({"BM25": {"nDCG@20": 0.605}}, []),
        ({"BM25": {"nDCG@20": 0.62}}, ["BM25, nDCG@20: 0.6000, expected 0.62 ± 0.01"]),
    ],
    ids=["near", "different"],
)
def test_a_figure_that_differs_is_told(
    measured: Path, figures: dict[str, dict[str, float]], sentences: list[str]
) -> None:
    command = Command(run="", takes="", tables=[Table(tolerance=0.01, figures=figures)])

    assert list(differences(measured, command)) == sentences


def test_a_figure_that_is_missing_is_told(measured: Path) -> None:
    figures = {"BM25": {"AWRF@20": 0.6}, "MMR": {"nDCG@20": 0.6}}
    command = Command(run="", takes="", tables=[Table(tolerance=0.01, figures=figures)])

    names = [sentence.split(":")[0] for sentence in differences(measured, command)]
    assert names == ["BM25, AWRF@20", "MMR, nDCG@20"]


def _check_tolerance(table: Any, most: float) -> None:
    """Check that a figure may differ by at most this share of the largest one."""
    values = [abs(value) for row in table.figures.values() for value in row.values()]
    assert max(table.tolerance, table.relative) > 0
    assert table.tolerance <= most * max(1, *values)
    assert table.relative <= 0.5


@pytest.mark.parametrize("name", RESULTS)
def test_tolerances_can_fail(name: str) -> None:
    """A small form asks a model few questions, so its figures may differ more."""
    small = RESULTS[name].small
    full = RESULTS[name].full
    for table in small.tables if small else ():
        _check_tolerance(table, 0.1 if table.rows == "system" else 0.3)
    for table in full.tables if full else ():
        _check_tolerance(table, 0.1)


def test_made_adverts_of_jobs_are_equal_on_every_run(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        command = [sys.executable, "-m", "benchmarks.jobs", folder]
        subprocess.run(command, check=True, cwd=module.ROOT)
    first, second = (find_collection(folder) for folder in folders)

    assert first.fingerprints() == second.fingerprints()
    assert [*first.corpus.schema.attributes] == ["employer", "place"]
    adverts = {advert.id for advert in first.corpus.documents()}
    relevant = [first.relevant(topic.id) for topic in first.topics]
    assert all(relevant)
    assert sum(map(len, relevant)) == len(set().union(*relevant) & adverts) == len(adverts)
