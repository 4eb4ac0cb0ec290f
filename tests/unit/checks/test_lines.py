"""The meter of lines: what it has to count, it counts, and nothing passes above a limit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.checks import lines

FOLDERS = {"graph": 3, "graph/service": 2, "tests": 1}
BESIDE = {"javascript": 1, "css": 0, "sql": 0, "templates": 0}
FILES = {
    "graph/search.py": "a = 1\nb = 2\nc = 3\n",
    "graph/service/app.py": "a = 1\nb = 2\n",
    "graph/service/app.js": "start();\n",
    "tests/test_search.py": "assert True\n",
}
RUFF = 'line-length = 100\nlint.select = ["E"]'


class Checkout:
    """A project of a few files, checked by the command."""

    def __init__(self, root: Path, output: pytest.CaptureFixture[str]) -> None:
        self.root, self.output = root, output
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def check(
        self,
        folders: Mapping[str, int] = FOLDERS,
        ruff: str = RUFF,
        vendored: tuple[str, ...] = (),
        product: int = 5,
    ) -> tuple[int, list[str]]:
        """Return the status and the sentences on what is wrong."""
        tables = [
            f"[tool.ruff]\n{ruff}",
            f"[tool.fairqr.lines]\nproduct = {product}\nvendored = {json.dumps(vendored)}",
            "[tool.fairqr.lines.folders]",
            *(f"{json.dumps(row)} = {limit}" for row, limit in folders.items()),
            "[tool.fairqr.lines.beside]",
            *(f"{kind} = {limit}" for kind, limit in BESIDE.items()),
        ]
        self.write("pyproject.toml", "\n".join(tables))
        status = lines.main(["--root", str(self.root)])
        printed = [
            line.removeprefix("lines: ") for line in self.output.readouterr().out.split("\n")
        ]
        return status, [line for line in printed if line.endswith(".")]


@pytest.fixture
def checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checkout:
    return Checkout(tmp_path, capsys)


def test_what_is_at_its_limit_passes(checkout: Checkout) -> None:
    assert checkout.check() == (0, [])


@pytest.mark.parametrize(
    "name", ["graph/search.py", "graph/search/context.py", "graph/__init__.py"]
)
def test_a_folder_one_line_above_its_limit_is_named(checkout: Checkout, name: str) -> None:
    checkout.write(name, FILES.get(name, "") + "d = 4\n")
    sentence = "graph has 4 lines of code, 1 above its limit of 3."
    assert checkout.check(product=6) == (1, [sentence])


def test_the_product_has_a_limit_of_its_own(checkout: Checkout) -> None:
    sentence = "The product has 5 lines of code, 2 above its limit of 3."
    assert checkout.check(product=3) == (1, [sentence])
    checkout.write("tests/test_search.py", "assert True\n" * 7)
    assert checkout.check({**FOLDERS, "tests": 7}) == (0, [])


def test_a_folder_of_the_table_is_counted_apart_from_the_one_around_it(checkout: Checkout) -> None:
    checkout.write("graph/service/store/tables.py", "a = 1\n")
    sentence = "graph/service has 3 lines of code, 1 above its limit of 2."
    assert checkout.check(product=6) == (1, [sentence])


def test_comments_docstrings_and_blank_lines_do_not_count(checkout: Checkout) -> None:
    counted = (
        '"""Of a module.\n\nTwo lines more.\n"""\n\n# A comment.\n\n'
        'class A:\n    """Of a class."""\n\n    b = (  # beside code\n        1,\n    )\n\n'
        '    async def c(self):\n        """Of a\n        function."""\n        # no code\n'
    )
    assert lines.python_lines(counted) == 5
    assert lines.python_lines(counted + "import os\n") == 6


def test_a_text_that_is_no_docstring_counts_in_all_its_lines(checkout: Checkout) -> None:
    assert lines.python_lines('a = """one\n\n# three\n"""\n') == 4
    assert lines.python_lines('a = 1\n"""No docstring here."""\n') == 2


@pytest.mark.parametrize(
    "content", [b"def (:\n", b"a = '''\n", b"if True:\n  a\n b\n", b"a = 1\0\n", b"a = '\xff'\n"]
)
def test_a_file_that_is_no_python_is_an_error(checkout: Checkout, content: bytes) -> None:
    (checkout.root / "graph/search.py").write_bytes(content)
    status, sentences = checkout.check()
    assert status == 1
    assert any(line.startswith("graph/search.py cannot be counted: ") for line in sentences)


@pytest.mark.parametrize(
    "comment",
    [
        "# fmt: off",
        "#fmt:skip",
        "# type: ignore  # fmt: skip",
        "# yapf: disable",
        "# noqa",
        "# noqa: S1, E501",
        "# ruff: noqa: E501",
    ],
)
def test_a_comment_that_keeps_ruff_away_is_found(checkout: Checkout, comment: str) -> None:
    checkout.write("tests/test_search.py", f"assert True  {comment}\n")
    status, sentences = checkout.check()
    assert status == 1
    assert sentences[0].startswith("tests/test_search.py, line 1: remove '#")


@pytest.mark.parametrize("line", ["a = '# fmt: off'", "a = 1  # noqa: S105", "a = 1  # a format"])
def test_what_only_looks_like_such_a_comment_passes(checkout: Checkout, line: str) -> None:
    checkout.write("tests/test_search.py", f"{line}\n")
    assert checkout.check() == (0, [])


def test_a_new_folder_of_python_needs_a_row(checkout: Checkout) -> None:
    checkout.write("helpers/deep/more.py", "a = 1\n")
    sentence = "helpers has 1 line of Python and no row in [tool.fairqr.lines]."
    assert checkout.check(product=6) == (1, [sentence])


def test_a_row_without_a_folder_leaves_the_table(checkout: Checkout) -> None:
    sentence = "grahp has no Python: take its row out of [tool.fairqr.lines]."
    assert checkout.check({**FOLDERS, "grahp": 9}) == (1, [sentence])


def test_what_git_ignores_does_not_count(checkout: Checkout) -> None:
    checkout.write(".gitignore", "build/\n")
    checkout.write("build/more.py", "a = 1\n")
    assert checkout.check() == (0, [])


def test_code_beside_python_has_limits_too(checkout: Checkout) -> None:
    checkout.write("graph/service/more.js", "// A comment.\n\n/**\n * Another.\n */\nmore();\n")
    checkout.write("graph/service/store/tables.sql", "-- A comment.\nSELECT 1;\n")
    checkout.write("graph/page.css", "/* A comment. */\na { color: red }\n")
    checkout.write("graph/page.html", "<!-- A\ncomment. -->\n<p>\n")
    checkout.write("graph/page.md.j2", "{# A comment. #}\n{{ page }}\n")
    assert checkout.check() == (
        1,
        [
            "css has 1 line of code, 1 above its limit of 0.",
            "javascript has 2 lines of code, 1 above its limit of 1.",
            "sql has 1 line of code, 1 above its limit of 0.",
            "templates has 2 lines of code, 2 above its limit of 0.",
        ],
    )


def test_a_long_line_beside_python_counts_as_often_as_it_has_100_characters(
    checkout: Checkout,
) -> None:
    assert lines.text_lines("  " + "a" * 100, "javascript") == 1
    assert lines.text_lines("a" * 201, "javascript") == 3


def test_only_what_is_named_as_vendored_does_not_count(checkout: Checkout) -> None:
    checkout.write("graph/vendor/chart.js", "draw();\n")
    assert checkout.check()[0] == 1
    assert checkout.check(vendored=("graph/vendor/chart.js",)) == (0, [])
    checkout.write("graph/vendor/more.py", "a = 1\n")
    assert checkout.check(vendored=("graph/vendor/chart.js", "graph/vendor/more.py"))[0] == 1


@pytest.mark.parametrize(
    "ruff",
    [
        'lint.select = ["E"]',
        'line-length = 120\nlint.select = ["E"]',
        'line-length = 100\nlint.select = ["F"]',
        RUFF + '\nlint.ignore = ["E501"]',
        RUFF + '\nlint.per-file-ignores = { "graph/*" = ["E501"] }',
        RUFF + "\nlint.pycodestyle.max-line-length = 200",
        RUFF + '\nformat.exclude = ["graph/*"]',
    ],
)
def test_wider_lines_are_no_way_out(checkout: Checkout, ruff: str) -> None:
    status, sentences = checkout.check(ruff=ruff)
    assert status == 1
    assert len(sentences) == 1


def test_settings_of_ruff_in_another_file_are_found(checkout: Checkout) -> None:
    checkout.write("graph/ruff.toml", "line-length = 200\n")
    sentence = "graph/ruff.toml: ruff's settings stand in pyproject.toml."
    assert checkout.check() == (1, [sentence])


def test_names_of_every_kind_are_counted(checkout: Checkout) -> None:
    checkout.write("graph/naïve name.py", "a = 1\n")
    assert checkout.check()[0] == 1
