"""Builds the site: ``make docs``.

The pages of ``docs/`` and the reference are put together in ``build/docs``, from which Zensical
makes ``build/site``. Reports of runs are files there, which pages link. A link, an anchor or a
picture that leads nowhere ends the build. The pages of the reference are those of ``pages/``, where
a line ``[[NAME …]]`` stands for a table. Classes and functions stand there as mkdocstrings takes
them, which reads them by griffe.
"""

from __future__ import annotations

import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import typer.cli
import typer.main

import fairqr
from docs_site.promises import find_promises
from fairqr.cli.main import app
from fairqr.cli.parameters import parameters_of
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.http.app import create_app

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
PAGES = sorted((Path(__file__).parent / "pages").glob("*.md"))
DIRECTIVE = re.compile(r"^\[\[(\w+)(.*)\]\]$", re.MULTILINE)
# Zensical checks links to pages; these are to pictures, notebooks and other files.
FILE = re.compile(r"\]\((?!https?:|#)([^)#\s]+\.(?!md)\w+)\)")
ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


def main() -> int:
    """Build the site, and return the exit code."""
    pages, package = BUILD / "docs", BUILD / "package"
    for folder in (pages, package):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    write_reference(pages / "reference")
    for report in [*pages.glob("runs/*/report.md")]:  # a file of a run, and no page of the site
        report.rename(report.with_suffix(".txt"))
    for page in pages.rglob("*.md"):
        text = page.read_text(encoding="utf-8").replace("/report.md)", "/report.txt)")
        page.write_text(text, encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name, folder in project["tool"]["setuptools"]["package-dir"].items():
        shutil.copytree(ROOT / folder, package / name.replace(".", "/"))
    for module in package.rglob("*.py"):
        module.write_text(ROLE.sub(r"``\1``", module.read_text("utf-8")), encoding="utf-8")
    lost = [
        f"{page.relative_to(pages)}: there is no {name}\n"
        for page in sorted(pages.rglob("*.md"))
        for name in FILE.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / name).is_file()
    ]
    sys.stderr.writelines(lost)
    zensical = Path(sys.executable).with_name("zensical")
    built = subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT)  # noqa: S603
    return 1 if lost else built.returncode


def write_reference(folder: Path) -> None:
    """Write all pages into a folder."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        text = DIRECTIVE.sub(lambda it: "\n".join(globals()[it[1]](*it[2].split())), text)
        (folder / page.name).write_text(text, encoding="utf-8")


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Write a table, unless it has no rows."""
    cells = [[str(it).replace("|", "\\|").replace("\n", " ") for it in row] for row in rows]
    for line in [[*heads], ["---" for _ in heads], *cells] if cells else []:
        yield f"| {' | '.join(line)} |"


def command() -> Iterator[str]:
    """Write every command, with its arguments and options."""
    whole = typer.main.get_command(app)
    text = typer.cli.get_docs_for_click(obj=whole, ctx=typer.Context(whole), name="fairqr")
    yield re.sub(r"^#", "##", text, flags=re.MULTILINE)


def parameters(name: str, prefix: str = "") -> Iterator[str]:
    """Write the parameters of a model, those inside of it included."""
    found = parameters_of([pkgutil.resolve_name(name)], prefix)
    yield from table(("name", "meaning"), ((f"`{it.label}`", it.help) for it in found))


def each(name: str, prefix: str = "") -> Iterator[str]:
    """Write the parameters of each model of a mapping."""
    for key, value in pkgutil.resolve_name(name).items():
        model = getattr(value, "spec", value)
        yield from [f"### {key}\n", *parameters(f"{model.__module__}:{model.__name__}", prefix), ""]


def entries(name: str, *columns: str) -> Iterator[str]:
    """Write these attributes of each entry of a mapping or a list, or the entry itself."""
    found = pkgutil.resolve_name(name)
    items = found.items() if isinstance(found, dict) else [(it.name, it) for it in found]
    rows = (
        (f"`{key}`", *([getattr(it, own) for own in columns] or [it]))
        for key, it in items
        if all(hasattr(it, own) for own in columns)
    )
    yield from table(("name", *[it.strip("_") for it in columns or ("meaning",)]), rows)


def public() -> Iterator[str]:
    """Write the public classes and functions of the package."""
    for value in (getattr(fairqr, name) for name in fairqr.__all__):
        if hasattr(value, "__qualname__"):  # a module is no entry
            yield f"::: {value.__module__}.{value.__qualname__}\n"


def promises(section: str) -> Iterator[str]:
    """Write the promises of a section with the tests that prove them."""
    rows = (
        (promise.sentence, f"`{promise.test}`")
        for promise in find_promises(ROOT / "tests")
        if promise.section == section
    )
    yield from table(("promise", "proved by"), rows)


def operations() -> Iterator[str]:
    """Write the operations of the service."""
    parts = SimpleNamespace(settings=ServiceSettings(), store=None, metrics=None)
    document = create_app(cast("Any", parts)).openapi()
    rows = (
        (
            f"`{method.upper()} {path}`",
            it.get("description") or it["summary"],
            ", ".join(f"`{one['name']}`" for one in it.get("parameters", ())),
        )
        for path, methods in document["paths"].items()
        for method, it in methods.items()
    )
    yield from table(("operation", "meaning", "in the path, query or headers"), rows)


if __name__ == "__main__":
    sys.exit(main())
