"""What users rely on: the docstrings of the tests that are marked ``promise``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Test = ast.FunctionDef | ast.AsyncFunctionDef

MARKER = "pytest.mark.promise"


class Promise(NamedTuple):
    """A promise, and the test that proves it.

    Attributes:
        section: The part of the page that it stands in, as the marker names it.
        sentence: The first paragraph of the test's docstring, on one line; empty if it has none.
        test: The test, as pytest names it, from the folder of tests on.
    """

    section: str
    sentence: str
    test: str


def find_promises(tests: Path) -> Iterator[Promise]:
    """Yield the promises of a folder of tests, by file and place."""
    for path in sorted(tests.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        file = path.relative_to(tests).as_posix()
        yield from _promises_in(module, file)


def _promises_in(parent: ast.Module | ast.ClassDef, name: str) -> Iterator[Promise]:
    """Yield the promises of a file's tests, or of the tests of a class in it."""
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            yield from _promises_in(node, f"{name}::{node.name}")
        if not isinstance(node, Test):
            continue
        paragraph = (ast.get_docstring(node) or "").partition("\n\n")[0]
        sentence = " ".join(paragraph.split())
        for section in _sections_of(node):
            yield Promise(section, sentence, f"{name}::{node.name}")


def _sections_of(test: Test) -> Iterator[str]:
    """Yield what the markers of a test name."""
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == MARKER:
            yield ast.literal_eval(decorator.args[0])
