"""The list of promises names tests that are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = TESTS / "PROMISES.md"


def wrong_rows(page: str, tests: Path) -> Iterator[str]:
    """Say of each row of the tables what is wrong with it."""
    promises = set()
    for row in re.findall(r"^\| (.*) \|$", page, re.MULTILINE):
        if row == "promise | proved by":
            continue
        promise, _, proof = row.rpartition(" | ")
        if not re.fullmatch("`[^`]+`(, `[^`]+`)*", proof) or not promise or promise in promises:
            yield f"{row}: no promise, one that stands twice, or no list of tests"
        promises.add(promise)
        for name in re.findall(r"`(.*?)`", proof):
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
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, functions):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            names.update(
                f"{node.name}::{method.name}"
                for method in node.body
                if isinstance(method, functions)
            )
    return frozenset(name for name in names if name.split("::")[-1].startswith("test_"))


def test_every_promise_names_tests_that_are_there() -> None:
    assert list(wrong_rows(PAGE.read_text(encoding="utf-8"), TESTS)) == []


SOURCE = """
class TestA:
    async def test_b(self): ...
class B:
    def test_c(self): ...
def test_d(): ...
def helps(): ...
"""
GOOD = "| It holds. | `test_a.py::test_d`, `test_a.py::TestA::test_b` |\n"


def test_a_row_without_its_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(SOURCE)
    head = "| promise | proved by |\n|---|---|\n"
    assert not [*wrong_rows(head + GOOD, tmp_path)]
    names = ("test_a.py", "test_a.py::test_b", "test_a.py::B::test_c", "test_a.py::helps")
    others = (GOOD.replace("test_a.py::test_d", name) for name in (*names, "test_gone.py::test_d"))
    for rows in ("", 2 * GOOD, "| It holds. |  |\n", GOOD.replace("`", ""), *others):
        assert len([*wrong_rows(head + rows, tmp_path)]) == 1, rows
