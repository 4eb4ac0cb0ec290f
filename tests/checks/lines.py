"""``python -m tests.checks.lines``: code is counted by folder, and no folder is above its limit.

The limits stand in ``pyproject.toml``, in ``[tool.fairqr.lines]``. A line of Python counts that
is not blank, a comment, or part of a docstring. So that code hides nowhere else, JavaScript, CSS,
SQL and templates are counted, too, and lines keep the width that the limits were set at.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[2]
WIDTH = 100
AROUND = ("tests", "benchmarks", "tools")
"""Folders that are not part of the product."""

_KINDS = {
    "javascript": (".js", ".mjs", ".cjs", ".ts"),
    "css": (".css",),
    "sql": (".sql",),
    "templates": (".html", ".htm", ".j2", ".jinja", ".jinja2"),
}
_COMMENTS = {
    "javascript": re.compile(r"^\s*(//[^\n]*|/\*.*?\*/)", re.MULTILINE | re.DOTALL),
    "css": re.compile(r"^\s*/\*.*?\*/", re.MULTILINE | re.DOTALL),
    "sql": re.compile(r"^\s*--.*$", re.MULTILINE),
    "templates": re.compile(r"^\s*(\{#.*?#\}|<!--.*?-->)", re.MULTILINE | re.DOTALL),
}
_SPACE = frozenset(
    {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
_UNFORMATTED = re.compile(
    r"#\s*(fmt:\s*(off|skip)|yapf:\s*disable|(ruff:\s*)?noqa(?!:)|(ruff:\s*)?noqa:.*E501)\b", re.I
)


@dataclass(frozen=True)
class Figures:
    """Lines of code, and what is wrong with files.

    Attributes:
        folders: Lines of Python by row of the table.
        beside: Lines of all else by kind.
        wrong: A sentence for each file that cannot be counted, or that ruff does not format.
    """

    folders: Counter[str]
    beside: Counter[str]
    wrong: tuple[str, ...]


def python_lines(source: str) -> int:
    """Count the lines of Python that are not blank, comments or docstrings.

    Raises:
        SyntaxError: This is not Python.
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        node.body[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
    ]
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _SPACE and token.type != tokenize.COMMENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    for docstring in docstrings:
        code.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(code)


def text_lines(source: str, kind: str) -> int:
    """Count the lines that are neither blank nor comments; a longer one once for each 100 begun."""
    lines = map(str.strip, _COMMENTS[kind].sub("", source).splitlines())
    return sum(-(-len(line) // WIDTH) for line in lines)


def count(root: Path, rows: Sequence[str], vendored: Sequence[str] = ()) -> Figures:
    """Count the files that git knows, or would add.

    Args:
        root: A checkout.
        rows: The folders to count by. A file counts for the innermost; that of no row counts for
            its top-level folder.
        vendored: Files of others, which do not count.
    """
    folders: Counter[str] = Counter()
    beside: Counter[str] = Counter()
    wrong = []
    for name in _files(root):
        path = PurePosixPath(name)
        kind = next((kind for kind, them in _KINDS.items() if path.suffix in them), None)
        try:
            if path.suffix == ".py":
                source = (root / name).read_text(encoding="utf-8")
                folders[_row(name, rows)] += python_lines(source)
                wrong += [f"{name}, line {at}: remove {what!r}." for at, what in _markers(source)]
            elif kind is not None and name not in vendored:
                beside[kind] += text_lines((root / name).read_text(encoding="utf-8"), kind)
            elif path.name in {"ruff.toml", ".ruff.toml"}:
                wrong.append(f"{name}: ruff's settings stand in pyproject.toml.")
        except (SyntaxError, ValueError) as error:
            wrong.append(f"{name} cannot be counted: {error}.")
    return Figures(folders, beside, tuple(wrong))


def problems(figures: Figures, project: Mapping[str, Any]) -> Iterator[str]:
    """Compare figures with the limits of a ``pyproject.toml``, one sentence for each problem."""
    table = project["tool"]["fairqr"]["lines"]
    yield from figures.wrong
    for what, counted, limits in (
        ("Python", figures.folders, table["folders"]),
        ("code", figures.beside, table["beside"]),
    ):
        for name in sorted({*counted, *limits}):
            lines = counted[name]
            if name not in limits:
                yield f"{name} has {_plural(lines)} of {what} and no row in [tool.fairqr.lines]."
            elif name not in counted and what == "Python":
                yield f"{name} has no Python: take its row out of [tool.fairqr.lines]."
            elif lines > limits[name]:
                yield _above(name, lines, limits[name])
    if product(figures) > table["product"]:
        yield _above("The product", product(figures), table["product"])
    yield from _ruff(project["tool"]["ruff"])


def product(figures: Figures) -> int:
    """Return the lines of Python that users get."""
    return sum(lines for row, lines in figures.folders.items() if row.split("/")[0] not in AROUND)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures beside their limits, and what is wrong.

    Returns:
        1 where something is wrong, else 0.
    """
    parser = argparse.ArgumentParser(prog="lines", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    root = parser.parse_args(arguments).root
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    table = project["tool"]["fairqr"]["lines"]
    figures = count(root, list(table["folders"]), table["vendored"])
    counted = {**figures.folders, "the product": product(figures), **figures.beside}
    limits = {**table["folders"], "the product": table["product"], **table["beside"]}
    for name, limit in limits.items():
        print(f"lines: {name:<16}{counted.get(name, 0):>8,} of {limit:>7,}")
    wrong = list(problems(figures, project))
    for sentence in wrong:
        print(f"lines: {sentence}")
    return 1 if wrong else 0


def _files(root: Path) -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True, text=True).stdout
    return sorted(name for name in set(listed.split("\0")) if (root / name).is_file())


def _row(name: str, rows: Sequence[str]) -> str:
    inside = [row for row in rows if name.startswith(f"{row}/")]
    return max(inside, key=len, default=name.split("/")[0])


def _markers(source: str) -> Iterator[tuple[int, str]]:
    """Find the comments that keep ruff from a line's format or its width."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (found := _UNFORMATTED.search(token.string)):
            yield token.start[0], found[0]


def _ruff(settings: Mapping[str, Any]) -> Iterator[str]:
    """Check that lines are as wide as where the limits were set."""
    width = settings.get("line-length")
    if width != WIDTH:
        yield f"Ruff's line-length is {width}: the limits hold for {WIDTH}."
    lint = settings.get("lint", {})
    left_out = [*lint.get("ignore", ()), *lint.get("extend-ignore", ())]
    for rules in lint.get("per-file-ignores", {}).values():
        left_out += rules
    if "E" not in lint.get("select", ()) or {"E", "E5", "E50", "E501"} & {*left_out}:
        yield "Ruff has to check the width of lines everywhere (E501)."
    if "pycodestyle" in lint or "format" in settings:
        yield "Ruff's settings have no lint.pycodestyle and no format: they could widen lines."


def _above(name: str, lines: int, limit: int) -> str:
    return f"{name} has {_plural(lines)} of code, {lines - limit:,} above its limit of {limit:,}."


def _plural(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines:,} lines"


if __name__ == "__main__":
    sys.exit(main())
