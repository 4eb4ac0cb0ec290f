"""The generated reference has everything that users can set, call or get back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from docs_site.__main__ import PAGES, write_reference
from pydantic import BaseModel

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
    texts = {page.stem: page.read_text() for page in folder.glob("*.md")}
    assert {*texts} == {page.stem for page in PAGES}
    return texts


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells after the first of each row of a page's tables, by the first."""
    table: dict[str, list[str]] = {}
    for line in re.findall(r"^\| `.*", page, re.M):
        name, *cells = re.split(r"(?<!\\)\|", line)[1:-1]
        table[name.strip().strip("`")] = [cell.strip() for cell in cells]
    return table


def commands(name: str, command: Any) -> list[str]:
    """Return the names of a command and of all below it."""
    names = [name]
    for key, subcommand in getattr(command, "commands", {}).items():
        names += commands(f"{name} {key}", subcommand)
    return names


def test_every_command_and_each_of_its_options_is_explained(pages: dict[str, str]) -> None:
    for name in commands("fairqr", typer.main.get_command(app)):
        assert f"# `{name}`\n" in pages["command"]
    options = re.findall(r"^\* `(-[^`]*)`(.*)$", pages["command"], re.M)
    assert len(options) > 100
    assert all(meaning.startswith(": ") and "{" not in meaning for _, meaning in options)


NAMES = {
    "parameters": [parameter.label for parameter in parameters_of([AnswerContext, ProbeContext])],
    "settings": [*(setting.name for setting in SETTINGS), *setting_names()],
    "measures": [*KINDS],
    "errors": [error.__name__ for error in errors.FairqrError.__subclasses__()],
    "sources": [name for kind in Source.kinds.values() for name in kind.model_fields],
}
"""What a page of the reference has to explain."""


@pytest.mark.parametrize("page", NAMES)
def test_everything_that_one_can_set_or_measure_has_its_meaning(
    pages: dict[str, str], page: str
) -> None:
    table = rows(pages[page])
    explained = {re.sub(r"\.[A-Z]+$", "", name) for name in table}
    explained |= {name.partition(".")[0] for name in table} | {"engine"}

    assert {re.sub(r"\.[A-Z]+$", "", name) for name in NAMES[page]} <= explained
    if page != "sources":
        assert all(cells[-1] for cells in table.values())


def test_every_method_has_its_meaning(pages: dict[str, str]) -> None:
    assert rows(pages["parameters"]).keys() >= METHODS.keys() | RERANKERS.keys()


@pytest.mark.promise("command")
def test_every_public_name_is_explained(pages: dict[str, str]) -> None:
    """Every public name is explained in the reference.

    By their places in the code, from which mkdocstrings takes their docstrings.
    """
    documented = set(re.findall(r"^::: [\w.]+\.(\w+)$", pages["python"], re.M))

    assert set(fairqr.__all__) - {"errors"} <= documented


@pytest.mark.parametrize(
    "model", [fairqr.SearchResult, fairqr.AnswerResult, fairqr.ProbeResult, StepData]
)
def test_every_part_of_a_result_is_explained(pages: dict[str, str], model: type[BaseModel]) -> None:
    parts = {model.__name__, *model.model_json_schema().get("$defs", ())}

    assert parts <= set(re.findall(r"\w+", pages["results"]))


def test_every_operation_of_the_service_is_there(pages: dict[str, str]) -> None:
    table = rows(pages["http"])
    assert {"POST /v1/search", "GET /v1/runs/{id}", "GET /readyz"} <= table.keys()
    assert "limit" in table["GET /v1/runs"][1]
    assert all(meaning for meaning, _ in table.values())


def test_pages_of_the_site_are_in_its_order() -> None:
    """Whoever adds a page puts it into zensical.toml, and every page there exists."""
    root = Path(__file__).parents[2]
    listed = set(re.findall(r'"([\w/-]+\.md)"', (root / "zensical.toml").read_text()))
    docs = root / "docs"
    files = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    files = {name for name in files if not re.match(r"runs/.+/", name)}  # reports are files

    assert listed == files | {f"reference/{page.name}" for page in PAGES}
