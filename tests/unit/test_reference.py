"""The generated reference has everything that users can set, call or get back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from docs_site.__main__ import PAGES, write_reference

import fairqr
from fairqr.base import errors
from fairqr.base.settings import SETTINGS
from fairqr.cli.main import app
from fairqr.cli.parameters import parameters_of
from fairqr.evaluation.measures.kinds import KINDS
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.search.context import METHODS
from fairqr.graph.service.configuration import setting_names
from fairqr.graph.stream import StepData
from fairqr.retrieval.rerankers.registry import RERANKERS
from fairqr.retrieval.sources.source import Source


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The text of each page."""
    folder = tmp_path_factory.mktemp("reference")
    write_reference(folder)
    found = {page.stem: page.read_text() for page in folder.glob("*.md")}
    assert {*found} == {page.stem for page in PAGES}
    return found


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells after the first of each row of a page's tables, by the first."""
    found = [re.split(r"(?<!\\)\|", line)[1:-1] for line in re.findall(r"^\| `.*", page, re.M)]
    return {row[0].strip().strip("`"): [cell.strip() for cell in row[1:]] for row in found}


def commands(name: str, command: Any) -> list[str]:
    below = getattr(command, "commands", {})
    return [name, *(found for key, it in below.items() for found in commands(f"{name} {key}", it))]


def test_every_command_and_each_of_its_options_is_explained(pages: dict[str, str]) -> None:
    for name in commands("fairqr", typer.main.get_command(app)):
        assert f"# `{name}`\n" in pages["command"]
    options = re.findall(r"^\* `(-[^`]*)`(.*)$", pages["command"], re.M)
    assert len(options) > 100
    assert all(meaning.startswith(": ") and "{" not in meaning for _, meaning in options)


def test_everything_that_one_can_set_or_measure_has_its_meaning(pages: dict[str, str]) -> None:
    errors_ = [it.__name__ for it in errors.FairqrError.__subclasses__()]
    sources = [name for kind in Source.kinds.values() for name in kind.model_fields]
    for page, names in {
        "parameters": [it.label for it in parameters_of([AnswerContext, ProbeContext])],
        "settings": [*(it.name for it in SETTINGS), *setting_names()],
        "measures": [*KINDS],
        "errors": errors_,
        "sources": sources,
    }.items():
        told = rows(pages[page])
        known = {re.sub(r"\.[A-Z]+$", "", name) for name in told}
        nested = {name.partition(".")[0] for name in told}
        assert {re.sub(r"\.[A-Z]+$", "", name) for name in names} <= known | nested | {"engine"}
        assert page == "sources" or all(cells[-1] for cells in told.values()), page
    assert rows(pages["parameters"]).keys() >= METHODS.keys() | RERANKERS.keys()


@pytest.mark.promise("command")
def test_every_public_name_and_all_parts_of_results_are_there(pages: dict[str, str]) -> None:
    """Every public name is explained in the reference.

    By their places in the code, from which mkdocstrings takes their docstrings.
    """
    for name in fairqr.__all__:
        assert name == "errors" or re.search(rf"^::: [\w.]+\.{name}$", pages["python"], re.M)
    for model in (fairqr.SearchResult, fairqr.AnswerResult, fairqr.ProbeResult, StepData):
        for part in (model.__name__, *model.model_json_schema().get("$defs", ())):
            assert re.search(rf"\b{part}\b", pages["results"]), part


def test_every_operation_of_the_service_is_there(pages: dict[str, str]) -> None:
    told = rows(pages["http"])
    assert {"POST /v1/search", "GET /v1/runs/{id}", "GET /readyz"} <= told.keys()
    assert "limit" in told["GET /v1/runs"][1]
    assert all(meaning for meaning, _ in told.values())


def test_pages_of_the_site_are_in_its_order() -> None:
    """Whoever adds a page puts it into zensical.toml, and every page there exists."""
    root = Path(__file__).parents[2]
    named = set(re.findall(r'"([\w/-]+\.md)"', (root / "zensical.toml").read_text()))
    docs = root / "docs"
    there = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    there = {name for name in there if not re.match(r"runs/.+/", name)}  # reports are files
    assert named == there | {f"reference/{page.name}" for page in PAGES}
