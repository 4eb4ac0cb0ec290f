"""The page of promises is made from the tests that prove them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from docs_site.__main__ import DIRECTIVE, PAGES
from docs_site.promises import Promise, find_promises

TESTS = Path(__file__).parents[2]
SOURCE = '''
import pytest

@pytest.mark.promise("graph")
def test_found():
    """It is
    found.

    This is for readers of the test.
    """

class TestInside:
    @pytest.mark.parametrize("case", [1, 2])
    @pytest.mark.promise("audit")
    async def test_found_inside(self, case): ...

def test_without_marker():
    """It is not found."""
'''


def test_promises_are_read_from_marked_tests(tmp_path: Path) -> None:
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "test_a.py").write_text(SOURCE)

    assert [*find_promises(tmp_path)] == [
        Promise("graph", "It is found.", "unit/test_a.py::test_found"),
        Promise("audit", "", "unit/test_a.py::TestInside::test_found_inside"),
    ]


def test_each_promise_is_a_sentence() -> None:
    without = [
        promise.test for promise in find_promises(TESTS) if not promise.sentence.endswith(".")
    ]
    assert without == []


def test_each_promise_stands_on_the_page() -> None:
    page = next(path for path in PAGES if path.name == "promises.md")
    directives = DIRECTIVE.findall(page.read_text(encoding="utf-8"))
    on_page = {section.strip() for name, section in directives if name == "promises"}

    in_tests = Counter(promise.section for promise in find_promises(TESTS))
    assert set(in_tests) == on_page
