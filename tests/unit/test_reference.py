"""The generated reference has everything that users can set, call or get back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from docs_site.docstrings import markdown
from docs_site.reference import PAGES, write_reference

import fairqr
from fairqr.base.settings import SETTINGS
from fairqr.cli.main import app
from fairqr.cli.options import parameters_of
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.documented import documented
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.service.configuration import setting_names

DOCSTRING = """Search.

See :class:`~fairqr.api.FairSearch` and ``k``.

Attributes:
    first, second: Of both,
        on two lines.
    third: Alone.
Raises:
    ValueError: The value is wrong.
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The text of each page."""
    folder = tmp_path_factory.mktemp("reference")
    write_reference(folder)
    found = {page.stem: page.read_text() for page in folder.glob("*.md")}
    assert set(found) == set(PAGES)
    return found


def rows(page: str) -> list[list[str]]:
    """Return the cells of all tables, without their heads."""
    lines = [
        line for line in page.splitlines() if re.match(r"\| (?!(option|field|setting) )", line)
    ]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def commands(name: str, command: Any) -> list[str]:
    below = getattr(command, "commands", {})
    return [name, *(found for key, it in below.items() for found in commands(f"{name} {key}", it))]


def test_every_command_and_each_of_its_options_is_explained(pages: dict[str, str]) -> None:
    for name in commands("fairqr", typer.main.get_command(app)):
        assert f"## {name}\n" in pages["command"]
    for names, meaning in rows(pages["command"]):
        assert meaning, names
        assert "{" not in meaning, names


def test_every_parameter_is_there_with_its_description(pages: dict[str, str]) -> None:
    for parameter in parameters_of([AnswerContext, ProbeContext]):
        assert parameter.field.description, parameter.name
        assert f"| `{parameter.label}` |" in pages["parameters"]


def test_every_setting_is_there_with_its_meaning(pages: dict[str, str]) -> None:
    known = {setting.name for setting in SETTINGS} | set(setting_names())
    meanings = {row[0].strip("`"): row[-1] for row in rows(pages["settings"])}
    assert known - set(meanings) <= {"caps", "limits"}
    assert all(meanings.values()), meanings


@pytest.mark.parametrize("name", ["sources", "measures", "errors", "results"])
def test_tables_have_a_meaning_in_each_row(name: str, pages: dict[str, str]) -> None:
    found = rows(pages[name])
    assert len(found) > 8
    for row in found:
        told = row[1] if name == "measures" else row[-1]
        # Fields that explain themselves need no words.
        assert told or name in ("sources", "results"), row


def test_every_public_name_has_its_docstring(pages: dict[str, str]) -> None:
    for name in fairqr.__all__:
        if name != "errors":
            (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", pages["python"], re.S | re.M)
            assert len(section.split()) > 5, name


def test_every_operation_of_the_service_is_there(pages: dict[str, str]) -> None:
    operations = re.findall(r"^### (GET|POST|DELETE) (\S+)$", pages["http"], re.MULTILINE)
    assert {("POST", "/v1/search"), ("GET", "/v1/runs/{id}"), ("GET", "/readyz")} <= {*operations}
    assert len(operations) == len({*operations})


def test_a_docstring_becomes_markdown() -> None:
    text = markdown(DOCSTRING)
    assert text.startswith("Search.\n\nSee `FairSearch` and `k`.")
    assert "- `first, second`: Of both, on two lines.\n- `third`: Alone." in text
    assert "**Raises:**\n\n- `ValueError`: The value is wrong." in text
    assert documented(DOCSTRING)[1] == {
        "first": "Of both, on two lines.",
        "second": "Of both, on two lines.",
        "third": "Alone.",
    }


def test_pages_of_the_site_are_in_its_order() -> None:
    """Whoever adds a page puts it into zensical.toml, and every page there exists."""
    root = Path(__file__).parents[2]
    named = set(re.findall(r'"([\w/-]+\.md)"', (root / "zensical.toml").read_text()))
    docs = root / "docs"
    there = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    there = {name for name in there if not name.startswith("runs/")}
    assert named == there | {f"reference/{name}.md" for name in PAGES}
