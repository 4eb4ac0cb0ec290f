"""The meter of lines: what it has to count, it counts, and nothing passes above a limit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.checks import lines

FOLDERS = {"graph": 3, "graph/service": 2, "tests": 1}
FILES = {
    "graph/search.py": "a = 1\nb = 2\nc = 3\n",
    "graph/service/app.py": "a = 1\nb = 2\n",
    "graph/service/app.js": "start();\n",
    "tests/test_search.py": "assert True\n",
}
RUFF = 'line-length = 100\nlint.select = ["E"]'
VENDORED = ("graph/vendor/chart.js", "graph/vendor/more.py")


class Checkout:
    """A project of a few files, checked by the command."""

    def __init__(self, root: Path, output: pytest.CaptureFixture[str]) -> None:
        self.root, self.output = root, output
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
        self.write(FILES)

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def wrong(
        self, folders: Mapping[str, int] = FOLDERS, ruff: str = RUFF, product: int = 5
    ) -> list[str]:
        """Return the sentences on what is wrong."""
        tables = [
            f"[tool.ruff]\n{ruff}",
            f"[tool.fairqr.lines]\nproduct = {product}\nvendored = {json.dumps(VENDORED)}",
            "[tool.fairqr.lines.folders]",
            *(f"{json.dumps(row)} = {limit}" for row, limit in folders.items()),
            "[tool.fairqr.lines.beside]\njavascript = 1\ncss = 0\nsql = 0\ntemplates = 0",
        ]
        self.write({"pyproject.toml": "\n".join(tables)})
        status = lines.main(["--root", str(self.root)])
        printed = self.output.readouterr().out.splitlines()
        wrong = [it.removeprefix("lines: ") for it in printed if it.endswith(".")]
        assert status == bool(wrong)
        return wrong


@pytest.fixture
def checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checkout:
    return Checkout(tmp_path, capsys)


@pytest.mark.parametrize(
    ("files", "table"),
    [
        ({}, {}),
        ({"tests/test_search.py": "assert True\n" * 7}, {"folders": {**FOLDERS, "tests": 7}}),
        ({".gitignore": "build/\n", "build/more.py": "a = 1\n"}, {}),
        ({"graph/vendor/chart.js": "draw();\n"}, {}),
        ({"tests/test_search.py": "a = '# fmt: off'  # noqa: S105\n"}, {}),
    ],
)
def test_what_is_at_its_limit_passes(
    checkout: Checkout, files: dict[str, str], table: dict[str, Any]
) -> None:
    """The tests are no product; what git ignores or others wrote does not count."""
    checkout.write(files)
    assert checkout.wrong(**table) == []


GRAPH = "graph has 4 lines of code, 1 above its limit of 3."


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("graph/search.py", FILES["graph/search.py"] + "d = 4\n", GRAPH),
        ("graph/naïve name.py", "a = 1\n", GRAPH),
        ("graph/vendor/more.py", "a = 1\n", GRAPH),
        ("graph/service/store/tables.py", "a = 1\n", "graph/service has 3 lines of code, 1 above"),
        ("helpers/deep/more.py", "a = 1\n", "helpers has 1 line of Python and no row"),
        ("graph/more.mjs", "// A.\n\n/**\n * B.\n */\nmore();\n", "javascript has 2 lines of code"),
        ("graph/more.js", "a" * 201, "javascript has 4 lines of code"),
        ("graph/tables.sql", "-- A comment.\nSELECT 1;\n", "sql has 1 line of code"),
        ("graph/page.css", "/* A comment. */\na { color: red }\n", "css has 1 line of code"),
        ("graph/page.html", "<!-- A\ncomment. -->\n<p>\n", "templates has 1 line of code"),
        ("graph/page.md.j2", "{# A comment. #}\n{{ page }}\n", "templates has 1 line of code"),
        ("graph/ruff.toml", "line-length = 200\n", "graph/ruff.toml: ruff's settings stand in"),
        *(
            ("tests/test_search.py", f"assert True  {it}\n", "tests/test_search.py, line 1: remove")
            for it in ("# fmt: off", "#fmt:skip", "# noqa", "# noqa: S1, E501", "# ruff: noqa")
        ),
        *(
            ("graph/new.py", text, "graph/new.py cannot be counted: ")
            for text in ("def (:\n", "a = '''\n", "if True:\n  a\n b\n", "a = 1\0\n")
        ),
    ],
)
def test_one_line_too_many_and_what_hides_lines_is_named(
    checkout: Checkout, name: str, text: str, sentence: str
) -> None:
    checkout.write({name: text})
    (said,) = checkout.wrong(product=6)
    assert said.startswith(sentence)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"product": 3}, "The product has 5 lines of code, 2 above its limit of 3."),
        ({"folders": {**FOLDERS, "grahp": 9}}, "grahp has no Python: take its row out of"),
        ({"ruff": 'lint.select = ["E"]'}, "Ruff's line-length is None"),
        ({"ruff": RUFF.replace("E", "F")}, "Ruff has to check the width"),
        ({"ruff": RUFF + '\nlint.ignore = ["E501"]'}, "Ruff has to check the width"),
        ({"ruff": RUFF + '\nlint.per-file-ignores = {"a" = ["E501"]}'}, "Ruff has to check"),
        ({"ruff": RUFF + "\nlint.pycodestyle.max-line-length = 200"}, "Ruff's settings have no"),
    ],
)
def test_a_wrong_table_and_wider_lines_are_no_way_out(
    checkout: Checkout, table: dict[str, Any], sentence: str
) -> None:
    (said,) = checkout.wrong(**table)
    assert said.startswith(sentence)


def test_comments_docstrings_and_blank_lines_do_not_count() -> None:
    counted = (
        '"""Of a module.\n\nTwo lines more.\n"""\n\n# A comment.\n\n'
        'class A:\n    """Of a class."""\n\n    b = (  # beside code\n        1,\n    )\n\n'
        '    async def c(self):\n        """Of a\n        function."""\n        # no code\n'
    )
    assert lines.python_lines(counted) == 5
    assert lines.python_lines('a = """one\n\n# three\n"""\n') == 4
    assert lines.python_lines('a = 1\n"""No docstring here."""\n') == 2
