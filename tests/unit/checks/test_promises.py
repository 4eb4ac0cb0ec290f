"""The list of promises names tests that are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PAGE = TESTS / "PROMISES.md"


def wrong_rows(page: str, tests: Path) -> Iterator[str]:
    """Say of each row of the tables what is wrong with it."""
    promises = set()
    for row in re.findall(r"^\| (.*) \|$", page, re.MULTILINE):
        promise, _, proof = row.rpartition(" | ")
        if (promise, proof) == ("promise", "proved by"):
            continue
        if not promise or promise in promises:
            yield f"{row}: no promise, or one that stands twice"
        promises.add(promise)
        named = re.findall(r"`(.*?)`", proof)
        if ", ".join(f"`{name}`" for name in named) != proof or not named:
            yield f"{promise}: its tests are not a list"
        for name in named:
            path, _, test = name.partition("::")
            if test not in _collected(tests / path):
                yield f"{promise}: there is no test {name}"
    if not promises:
        yield "there is no promise"


@cache
def _collected(path: Path) -> frozenset[str]:
    """Return the names of the tests that pytest collects from a file."""
    if not path.name.startswith("test_") or not path.is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, functions):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            inside = (it.name for it in node.body if isinstance(it, functions))
            found.update(f"{node.name}::{name}" for name in inside)
    return frozenset(name for name in found if name.split("::")[-1].startswith("test_"))


def test_every_promise_names_tests_that_are_there() -> None:
    assert list(wrong_rows(PAGE.read_text(encoding="utf-8"), TESTS)) == []


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    source = (
        "class TestA:\n    async def test_b(self): ...\n\nclass B:\n    def test_c(self): ...\n"
    )
    (tmp_path / "test_a.py").write_text(source + "\ndef test_d(): ...\n\ndef helps(): ...\n")
    (tmp_path / "a.py").write_text("def test_d(): ...\n")
    return tmp_path


HEAD = "| promise | proved by |\n|---|---|\n"


def test_a_good_row_passes(tests: Path) -> None:
    rows = "| It holds. | `test_a.py::test_d`, `test_a.py::TestA::test_b` |\n"
    assert list(wrong_rows(HEAD + rows, tests)) == []


@pytest.mark.parametrize(
    "rows",
    [
        "",
        "| It holds. | `test_a.py::test_gone` |\n",
        "| It holds. | `test_gone.py::test_d` |\n",
        "| It holds. | `a.py::test_d` |\n",
        "| It holds. | `test_a.py::helps` |\n",
        "| It holds. | `test_a.py::B::test_c` |\n",
        "| It holds. | `test_a.py::test_b` |\n",
        "| It holds. | `test_a.py` |\n",
        "| It holds. |  |\n",
        "| It holds. | test_a.py::test_d |\n",
        "| It holds. | `test_a.py::test_d` `test_a.py::TestA::test_b` |\n",
        2 * "| It holds. | `test_a.py::test_d` |\n",
    ],
)
def test_a_row_without_its_test_is_found(tests: Path, rows: str) -> None:
    assert len(list(wrong_rows(HEAD + rows, tests))) >= 1
