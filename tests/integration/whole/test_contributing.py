"""What CONTRIBUTING says about adding parts is enough: one file and one registration for each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.model_server import clean_environment

__all__ = ["clean_environment"]

pytestmark = pytest.mark.usefixtures("clean_environment")

ROOT = Path(__file__).parents[3]
ROOMS = ("agents", "base", "evaluation", "graph", "prompts", "retrieval")

ENGINE = """
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.engines.engine import EngineInfo, Hits
from fairqr.retrieval.engines.report import SourceReport


class ShelfEngine:
    retriever, in_process = "shelf", True
    capabilities = filterable = frozenset()

    def __init__(self, source, labels):
        self.source, self.labels = source, labels
        self.name, self.schema = source.name, labels.schema

    async def info(self):
        return EngineInfo(self.name, "shelf", len(self.source.books), "", "", "1")

    async def search(self, queries):
        return [self._hits(query) for query in queries]

    def _hits(self, query):
        ids = list(query.only or self.source.books)[: query.n]
        memberships = self.labels.memberships(ids, {"gender": [self.source.books[i] for i in ids]})
        return Hits(ids, [1 / rank for rank in range(1, len(ids) + 1)], memberships)

    async def documents(self, ids):
        return [Document(id_, f"Book {id_}", f"What {id_} tells.") for id_ in ids]

    async def corpus_shares(self):
        return {}

    async def aclose(self):
        pass


async def open_shelf(source, labels):
    return ShelfEngine(source, labels)


async def check(engine):
    return SourceReport(name=engine.name, engine="shelf", location="at home")
"""

SOURCE = """

class ShelfSource(Source):
    opener = "fairqr.retrieval.engines.shelf:open_shelf"

    engine: Literal["shelf"] = "shelf"
    books: dict[str, str]
"""

RERANKER = """
import numpy as np
from pydantic import Field

from fairqr.retrieval.rerankers.base import Reranker


class Reverse(Reranker):
    \"\"\"The reverse (nobody 2026).\"\"\"

    skip: int = Field(0, ge=0, description="How many documents to leave out at the end.")

    def positions(self, candidates, k):
        return np.arange(len(candidates) - self.skip)[::-1][:k]
"""

ENTRY = """from fairqr.retrieval.rerankers.reverse import Reverse

RERANKERS: dict[str, type[Reranker]] = {
    "reverse": Reverse,
"""

MEASURE = """

@kind("Twice", QRELS)
def _twice(at: View) -> FloatArray:
    '''RR under another name.'''
    return _reciprocal_rank(at)
"""

PEOPLE = """
name: books
engine: shelf
attributes: {gender: {field: gender, groups: [female, male]}}
books: {a: male, b: male, c: female, d: male}
"""


def edited(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, file
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with an engine, a re-ranker, a measure, an experiment and a prompt more."""
    folder = tmp_path_factory.mktemp("site")
    package = folder / "fairqr"
    without = shutil.ignore_patterns("__pycache__", "vendor")
    shutil.copytree(ROOT / "src" / "fairqr", package, ignore=without)
    for room in ROOMS:
        shutil.copytree(ROOT / room, package / room, ignore=without)
    (package / "retrieval/engines/shelf.py").write_text(ENGINE)
    with (package / "retrieval/sources/source.py").open("a") as file:
        file.write(SOURCE)
    (package / "retrieval/rerankers/reverse.py").write_text(RERANKER)
    registry = package / "retrieval/rerankers/registry.py"
    edited(registry, "RERANKERS: dict[str, type[Reranker]] = {\n", ENTRY)
    with (package / "evaluation/measures/kinds.py").open("a") as file:
        file.write(MEASURE)
    files = package / "evaluation/experiments/files"
    shutil.copy(files / "prompts.yaml", files / "mine.yaml")
    edited(files / "mine.yaml", "title: P", "title: Mine and P")
    templates = package / "prompts/templates/refine"
    shutil.copy(templates / "v4.yaml", templates / "v9.yaml")
    edited(templates / "v9.yaml", "version: v4", "version: v9")
    (folder / "books.source.yaml").write_text(PEOPLE)
    return folder


COMMANDS = """
import contextlib, io, json, sys
from fairqr.cli.main import main

for command in json.load(sys.stdin):
    sys.argv, printed = ["fairqr", *command], io.TextIOWrapper(io.BytesIO(), write_through=True)
    with contextlib.redirect_stdout(printed):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
    print(json.dumps(printed.buffer.getvalue().decode()))
"""


def said(site: Path, *commands: tuple[str, ...]) -> list[str]:
    """What the commands print, one after the other in a process that has the site's package."""
    run = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(commands),
        cwd=site,
        env=os.environ | {"PYTHONPATH": str(site), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_an_engine_and_a_re_ranker(site: Path) -> None:
    """The engine is checked and searched, and the re-ranker is its final step."""
    search = (
        "search",
        "a book",
        "--corpus",
        "books.source.yaml",
        "-k",
        "2",
        "--method",
        "baseline",
    )
    search = (*search, "--set", "final_step=reverse", "--set", "options.skip=1")
    checked, data, shown, texts, methods = said(
        site,
        ("source", "check", "books.source.yaml"),
        (*search, "--json"),
        search,
        (*search, "--verbose"),
        ("search", "--method", "help"),
    )
    assert "at home" in checked
    result = json.loads(data)
    assert result["retriever"] == "shelf"
    assert [place["id"] for place in result["baseline"]["ranking"]] == ["a", "b"]
    assert [place["id"] for place in result["ranking"]] == ["c", "b"]
    assert "What c tells." in texts
    assert "tells." not in shown
    assert "reverse: The reverse (nobody 2026)" in methods


def test_a_measure_an_experiment_and_a_prompt(site: Path) -> None:
    (site / "run.txt").write_text("q Q0 a 1 2 me\nq Q0 b 2 1 me\n")
    (site / "qrels.txt").write_text("q 0 b 1\n")
    measures, evaluated, experiments, prompts = said(
        site,
        ("evaluate", "--measures", "help"),
        ("evaluate", "run.txt", "--qrels", "qrels.txt", "--measures", "Twice"),
        ("experiment", "list"),
        ("prompts", "list"),
    )
    assert "RR under another name" in measures
    assert "0.5000" in evaluated
    assert "Mine and " in experiments
    assert "v9" in prompts
