"""The page of results says what its file says, and each result is one that can be run."""

from __future__ import annotations

import math
import re
import subprocess
import sys
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


def test_each_shipped_experiment_has_a_result_and_the_other_commands_are_known() -> None:
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


def _figures(text: str) -> list[tuple[float, int]]:
    """The numbers with two decimals or more in a text, and how many they have."""
    found = re.findall(r"(?<![\w.:=])(\d*\.\d{2,})(?!\w|\.\d)", text)
    return [(float(number), len(number.partition(".")[2])) for number in found]


def test_figures_in_the_docs_are_those_of_the_reports_beside_them() -> None:
    """Where a section links reports. Both are rounded; a table shows no ends of intervals."""
    counted = 0
    for page in DOCS.rglob("*.md"):
        for section in re.split(r"(?m)^(?=## )", page.read_text(encoding="utf-8")):
            linked = re.findall(r"\(([./\w]*/report\.md)\)", section)
            if not linked or DOCS / "runs" in page.parents:
                continue
            reports = "\n".join((page.parent / it).read_text(encoding="utf-8") for it in linked)
            means = _figures(re.sub(r"\*[^*\n]*\*", "", reports))
            for line in section.splitlines():
                for value, digits in _figures(line):
                    counted += 1
                    known = means if line.startswith("|") else _figures(reports)
                    near = min((abs(value - it) for it, _ in known), default=math.inf)
                    assert near <= 0.501 * 10**-digits, (page, line, value)
    assert counted > 100


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


def test_made_adverts_of_jobs_are_a_collection_and_equal_on_every_run(tmp_path: Path) -> None:
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
