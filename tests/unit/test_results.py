"""The page of results says what its file says, and each result is one that can be run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.catalogue import SHIPPED
from tests.listed_results import module

Command, Table, differences = module.Command, module.ExpectedTable, module.differences
FOUND = module.results()
DOCS = Path("docs").resolve()


def test_the_page_is_written_from_the_file() -> None:
    assert module.PAGE.read_text(encoding="utf-8") == "\n".join(module.page(FOUND))


def test_each_shipped_experiment_has_a_result() -> None:
    commands = [it for one in FOUND.values() for it in (one.small, one.full) if it is not None]
    named = [command.run.split() for command in commands]
    experiments = {words[2] for words in named if words[:2] == ["experiment", "run"]}
    others = {words[0] for words in named if words[:2] != ["experiment", "run"]}
    assert experiments == set(SHIPPED)
    assert others == {"audit", "-m"}


def test_what_was_run_has_figures_and_what_was_not_has_none() -> None:
    for name, one in FOUND.items():
        for command in (one.small, one.full):
            if command is not None:
                assert bool(command.ran) == bool(command.tables), name


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
    found = re.findall(r"(?<![\w.:=])(\d*\.\d{2,})(?!\w|\.\d)", text)
    shares = re.findall(r"(?<=[ (])(\d{1,2})(?= %| (?:to|and) \d{1,2} %)", text)
    found += [f".{int(share):02}" for share in shares]
    return [(float(number), len(number.partition(".")[2])) for number in found]


def _cells(line: str) -> list[str]:
    return [it.strip() for it in line.strip("|").split("|")] if line[:1] == "|" else [line]


def _unfounded(section: str, record: str) -> Iterator[str]:
    """Yield what a record has not: a table's cell needs one row there, of its name if any is."""
    means = re.sub(r"(?<!\\)\*[^*\n]*\*", "", record)  # a table shows no ends of intervals
    rows = [(_cells(it), _figures(it)) for it in ROW.findall(means)]
    heads: list[str] = []
    for line in section.splitlines():
        cells = _cells(line)
        heads = (heads or cells) if line[:1] == "|" else []
        for cell, head in zip(cells, heads or cells, strict=True):
            named = [own for of, own in rows if own and {cells[0], head}.intersection(of) - {""}]
            known = (named or [own for _, own in rows]) if heads else [_figures(record)]
            if not any(
                all(any(abs(v - it) <= 0.501 * 10**-n for it, _ in own) for v, n in _figures(cell))
                for own in known
            ):
                yield cell


def _sections() -> Iterator[tuple[Path, str, str]]:
    """Yield sections with figures, without code, and the reports and results that they name."""
    results = {it.partition(":")[0]: it for it in module.PAGE.read_text("utf-8").split("\n## ")}
    for page in PAGES:
        text = CODE.sub("", page.read_text(encoding="utf-8"))
        for section in re.split(r"(?m)^(?=## )", text):
            linked = re.findall(r"\(([./\w]*/report\.md)\)", section)
            found = [(page.parent / it).read_text(encoding="utf-8") for it in linked]
            for names in re.findall(r"<!-- from: (.*) -->", section):
                found += [results[it] for it in names.split()]
                section = PERCENT.sub(lambda it: f"{float(it[1]) / 100:.3f}", section)
            if _figures(section) and page.name != "glossary.md":  # which has an example
                yield page, section, "\n".join(found)


def test_figures_in_the_docs_are_those_of_the_records() -> None:
    """Others are defaults in the code, or of a run whose date stands there or opens the page."""
    files = [it for end in ("py", "yaml") for it in Path().glob(f"[aegr]*/**/*.{end}")]
    code = "".join(it.read_text("utf-8") for it in files)  # of agents/ to retrieval/
    for page, section, record in _sections():
        if record:
            assert [*_unfounded(section, record)] == [], page
            continue
        opening = page.read_text(encoding="utf-8").partition("\n## ")[0]
        if not re.search(r"\b20\d\d-\d\d-\d\d\b", opening + section):
            assert all(f"{value:g}" in code for value, _ in _figures(section)), (page, section)


def test_a_figure_that_no_record_has_is_told() -> None:
    for old, new in (
        ("| +.028 |", "| +.041 |"),
        ("| .524 |", "| .526 |"),
        ("| .850 |", "| .853 |"),
    ):
        section, record = next(it[1:] for it in _sections() if old in it[1])
        assert {*_unfounded(section.replace(old, new), record)} == {new.strip("| ")}


SHOWN = {"ratio": r"(?m)^(\| )?{row} .*{value:.2f}×", "times baseline searches": " {value} times"}
"""How figures of a result that is a page of its own stand there."""


def test_pages_of_runs_have_the_figures_of_their_results() -> None:
    for command in (one.full for one in FOUND.values() if one.full):
        page = (DOCS / "runs" / command.report).resolve()
        for table in command.tables if page.parent == DOCS / "results" else ():
            text = page.read_text(encoding="utf-8")
            found = [f"{it['less']:g}" for it in table.figures.values() if "less" in it]
            assert f"{', '.join(found[:5])} | {', '.join(found[5:])}" in text or not found
            for row, figures in table.figures.items():
                for how, value in ((SHOWN[it], figures[it]) for it in figures.keys() & SHOWN):
                    assert re.search(how.format(row=re.escape(row), value=value), text), row


def test_a_figure_that_differs_or_is_missing_is_told(tmp_path: Path) -> None:
    lines = ["system,measure,value", "BM25,nDCG@20(k=20),.5", "BM25,nDCG@20(k=20),.7"]
    (tmp_path / "measures.csv").write_text("\n".join(lines))

    def told(**figures: dict[str, float]) -> list[str]:
        table = Table(tolerance=0.01, figures=figures)
        return list(differences(tmp_path, Command(run="", takes="", tables=[table])))

    assert told(BM25={"nDCG@20": 0.605}) == []
    assert told(BM25={"nDCG@20": 0.62}) == ["BM25, nDCG@20: 0.6000, expected 0.62 ± 0.01"]
    assert [line.split(":")[0] for line in told(BM25={"AWRF@20": 0.6}, MMR={"nDCG@20": 0.6})] == [
        "BM25, AWRF@20",
        "MMR, nDCG@20",
    ]


@pytest.mark.parametrize("name", FOUND)
def test_tolerances_can_fail(name: str) -> None:
    """A small form asks a model few questions, so its figures may differ more."""
    small, full = ([*it.tables] if it else [] for it in (FOUND[name].small, FOUND[name].full))
    for table in (*small, *full):
        largest = max(abs(it) for row in table.figures.values() for it in row.values())
        most = 0.3 if table in small and table.rows != "system" else 0.1
        assert max(table.tolerance, table.relative) > 0
        assert table.tolerance <= most * max(1, largest)
        assert table.relative <= 0.5


def test_made_adverts_of_jobs_are_equal_on_every_run(tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "other"):
        subprocess.run(
            [sys.executable, "-m", "benchmarks.jobs", folder], check=True, cwd=module.ROOT
        )
    one, other = (find_collection(tmp_path / name) for name in ("one", "other"))
    assert one.fingerprints() == other.fingerprints()
    assert [*one.corpus.schema.attributes] == ["employer", "place"]
    adverts = {it.id for it in one.corpus.documents()}
    relevant = [one.relevant(topic.id) for topic in one.topics]
    assert all(relevant)
    assert sum(map(len, relevant)) == len(set().union(*relevant) & adverts) == len(adverts)
