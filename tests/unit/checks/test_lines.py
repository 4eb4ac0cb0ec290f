"""The meter of lines: what it has to count, it counts, and nothing passes above a limit."""

from __future__ import annotations

import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.checks import lines

WITHIN = {
    ".gitignore": "build/\n",
    "build/more.py": "a = 1\n",
    "graph/search.py": "a = 1\nb = 2\nc = 3\n",
    "graph/service/app.py": "a = 1\nb = 2\n",
    "graph/service/app.js": "// A.\n\n/**\n * B.\n */\nstart();\n",
    "graph/tables.sql": "-- A comment.\nSELECT 1;\n",
    "graph/page.css": "/* A comment. */\na { color: red }\n",
    "graph/page.html": "<!-- A\ncomment. -->\n<p>\n",
    "graph/page.md.j2": "{# A comment. #}\n{{ page }}\n",
    "graph/vendor/chart.js": "draw();\n" * 9,
    "tests/test_search.py": "a = '# fmt: off'  # noqa: S105\n",
}
ABOVE = {
    "graph/naïve name.py": "a = 1\n",
    "graph/vendor/more.py": "a = 1\n",
    "graph/service/store/tables.py": "a = 1\n",
    "graph/more.mjs": "a" * 201,
    "graph/more.sql": "SELECT 2;\n",
    "helpers/deep/more.py": "a = 1\n",
    "graph/ruff.toml": "line-length = 200\n",
    "graph/new.py": "def (:\n",
    "tests/test_format.py": "assert True  #fmt:skip\n",
    "tests/test_width.py": "assert True  # noqa: S1, E501\n",
}
SAID = """
graph/new.py cannot be counted: invalid syntax (<unknown>, line 1).
graph/ruff.toml: ruff's settings stand in pyproject.toml.
tests/test_format.py, line 1: remove '#fmt:skip'.
tests/test_width.py, line 1: remove '# noqa: S1, E501'.
grahp has no Python: take its row out of [tool.fairqr.lines].
graph has 5 lines of code, 2 above its limit of 3.
graph/service has 3 lines of code, 1 above its limit of 2.
helpers has 1 line of Python and no row in [tool.fairqr.lines].
tests has 3 lines of code, 2 above its limit of 1.
javascript has 4 lines of code, 3 above its limit of 1.
sql has 2 lines of code, 1 above its limit of 1.
The product has 9 lines of code, 4 above its limit of 5.
"""
TABLES = """[tool.ruff]
line-length = 100
lint.select = ["E"]
[tool.fairqr.lines]
product = 5
vendored = ["graph/vendor/chart.js", "graph/vendor/more.py"]
folders = {graph = 3, "graph/service" = 2, tests = 1}
beside = {javascript = 1, css = 1, sql = 1, templates = 2}
"""


def test_what_is_above_a_limit_or_hides_lines_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tests are no product; what git ignores or others wrote does not count."""
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for files, tables, said in (
        (WITHIN, TABLES, ""),
        (ABOVE, TABLES.replace("{graph", "{grahp = 9, graph"), SAID.lstrip()),
    ):
        for name, text in {**files, "pyproject.toml": tables}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        assert lines.main(["--root", str(tmp_path)]) == bool(said)
        printed = capsys.readouterr().out.splitlines()
        wrong = (it.removeprefix("lines: ") for it in printed if it.endswith("."))
        assert "".join(f"{it}\n" for it in wrong) == said


def test_wider_lines_are_no_way_out() -> None:
    none = lines.Figures(Counter(), Counter(), ())
    for old, new, said in (
        ("line-length = 100", "line-length = 120", "line-length is 120: the limits hold for 100."),
        ('["E"]', '["F"]', "Ruff has to check the width of lines everywhere (E501)."),
        ('["E"]', '["E"]\nlint.ignore = ["E501"]', "everywhere (E501)."),
        ('["E"]', '["E"]\nlint.per-file-ignores = {"a" = ["E501"]}', "everywhere (E501)."),
        ('["E"]', '["E"]\nlint.pycodestyle.max-line-length = 200', "they could widen lines."),
    ):
        project = tomllib.loads(TABLES.replace(old, new))
        assert [it for it in lines.problems(none, project) if it.endswith(said)], new


def test_comments_docstrings_and_blank_lines_do_not_count() -> None:
    counted = (
        '"""Of a module.\n\nTwo lines more.\n"""\n\n# A comment.\n\n'
        'class A:\n    """Of a class."""\n\n    b = (  # beside code\n        1,\n    )\n\n'
        '    async def c(self):\n        """Of a\n        function."""\n        # no code\n'
    )
    assert lines.python_lines(counted) == 5
    assert lines.python_lines('a = """one\n\n# three\n"""\n') == 4
    assert lines.python_lines('a = 1\n"""No docstring here."""\n') == 2
