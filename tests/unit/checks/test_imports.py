"""Which tests may import what others have: integration tests from unit tests, and not back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


def imported_modules(source: str) -> Iterator[str]:
    """Yield the full name of each module, or name of a module, that a file imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden_imports(folder: Path, packages: tuple[str, ...]) -> list[str]:
    """Return the imports of the packages, each with its file."""
    prefixes = tuple(f"tests.{package}." for package in packages)
    return [
        f"{path.relative_to(folder)} imports {module}"
        for path in sorted(folder.rglob("*.py"))
        for module in imported_modules(path.read_text(encoding="utf-8"))
        if f"{module}.".startswith(prefixes)
    ]


@pytest.mark.parametrize(
    ("folder", "packages"),
    [("unit", ("integration",)), ("servers", ("integration", "unit"))],
    ids=["unit", "servers"],
)
def test_imports_go_down_only(folder: str, packages: tuple[str, ...]) -> None:
    """What unit and integration tests share stands in ``tests/servers``, which knows neither."""
    assert forbidden_imports(TESTS / folder, packages) == []


@pytest.mark.parametrize(
    "statement",
    [
        "import tests.integration.cli",
        "from tests.integration import cli",
        "from tests.integration.cli import helper",
        "from tests import integration",
        "def use():\n    import tests.integration.cli",
    ],
    ids=["module", "package", "name", "parent", "inside a function"],
)
def test_an_import_of_integration_tests_is_found(tmp_path: Path, statement: str) -> None:
    (tmp_path / "test_a.py").write_text(statement)

    assert len(forbidden_imports(tmp_path, ("integration",))) == 1


def test_an_import_of_other_modules_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("import json\nfrom tests.integrations import cli\n")

    assert forbidden_imports(tmp_path, ("integration",)) == []
