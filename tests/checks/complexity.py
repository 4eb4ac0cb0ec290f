"""``python -m tests.checks.complexity``: functions stay small, and a line assigns one thing.

Ruff measures functions against the bounds in ``pyproject.toml``. Beside it, assignments of several
unrelated values, such as ``a, b = x, y``, are counted by file. What exceeds a bound today is listed
in ``complexity.txt`` with its value. The list only gets shorter, and its values only fall.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
LIST = Path("tests/checks/complexity.txt")
UPDATE = "`python -m tests.checks.complexity --update`"
TUPLES = "TUPLES"
"""The name of our own rule, beside those of ruff."""

HEADER = """\
# What exceeds a bound today, and by how much: a function by one of ruff's rules, or a file by its
# assignments of several unrelated values. Lines only leave, and values only fall; see CONTRIBUTING.
"""


class Rule(NamedTuple):
    """What a rule measures, and what to do about too much of it."""

    subject: str
    advice: str


RULES = {
    "C901": Rule("complexity", "move a step of it into a function of its own"),
    "PLR0912": Rule("branches", "move some of them into a function of their own"),
    "PLR0913": Rule("arguments", "put those that belong together into one"),
    "PLR0915": Rule("statements", "move a step of it into a function of its own"),
    "PLR0917": Rule("positional arguments", "make some of them keyword-only"),
    TUPLES: Rule("assignments of several unrelated values", "give each value a line of its own"),
}


class Entry(NamedTuple):
    """What a value is measured of: a function or a file, by a rule."""

    rule: str
    place: str


@dataclass(frozen=True)
class Excess:
    """A value above its bound.

    Attributes:
        value: What was measured.
        bound: What is allowed to an entry that is not listed.
        lines: Where the function begins, or where the assignments stand.
    """

    value: int
    bound: int
    lines: tuple[int, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the code with the list, and print what is wrong.

    Returns:
        1 if something is wrong, else 0.
    """
    parser = argparse.ArgumentParser(prog="complexity", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--update", action="store_true", help="Shorten and lower the list.")
    options = parser.parse_args(arguments)

    root = options.root.resolve()
    excesses = measure(root)
    listed = read_list(root / LIST)
    if options.update:
        listed = lower(listed, excesses)
        write_list(root / LIST, listed)

    wrong = list(compare(listed, excesses))
    for sentence in wrong:
        print(f"complexity: {sentence}")
    if not wrong:
        print(f"complexity: nothing exceeds its bound, except for {len(listed)} listed entries.")
    return 1 if wrong else 0


def measure(root: Path) -> dict[Entry, Excess]:
    """Find all that exceeds its bound in the files that ruff checks.

    Args:
        root: A checkout. Notebooks are left out.
    """
    return measure_functions(root) | count_tuples(root)


def measure_functions(root: Path) -> dict[Entry, Excess]:
    """Find the functions that exceed a bound of ruff's.

    Several functions can have the same name, such as a property and its setter. The largest of
    them counts.
    """
    violations = list(_violations(root))
    paths = {Path(violation["filename"]) for violation in violations}
    names = {path: function_names(path) for path in paths}

    excesses: dict[Entry, Excess] = {}
    for violation in violations:
        path = Path(violation["filename"])
        line = violation["location"]["row"]
        name = names[path][line]
        entry = Entry(violation["code"], f"{path.relative_to(root).as_posix()}::{name}")
        excess = _read_excess(violation["message"], line)

        largest = excesses.get(entry)
        if largest is None or excess.value > largest.value:
            excesses[entry] = excess
    return excesses


def function_names(path: Path) -> dict[int, str]:
    """Map the line of each function of a file to its name, such as ``Class.method.inner``."""
    names: dict[int, str] = {}
    _collect_names(_parse(path), "", names)
    return names


def count_tuples(root: Path) -> dict[Entry, Excess]:
    """Find the files that assign several unrelated values at once."""
    excesses: dict[Entry, Excess] = {}
    for path in _python_files(root):
        assignments = [node for node in ast.walk(_parse(path)) if isinstance(node, ast.Assign)]
        lines = sorted(node.lineno for node in assignments if assigns_tuple(node))
        if lines:
            entry = Entry(TUPLES, path.relative_to(root).as_posix())
            excesses[entry] = Excess(len(lines), 0, tuple(lines))
    return excesses


def assigns_tuple(assignment: ast.Assign) -> bool:
    """Return whether several values are written out and assigned, other than in a swap."""
    if not isinstance(assignment.value, ast.Tuple | ast.List):
        return False
    values = _elements(assignment.value)
    for target in assignment.targets:
        if isinstance(target, ast.Tuple | ast.List) and _elements(target) != values:
            return True
    return False


def compare(listed: Mapping[Entry, int], excesses: Mapping[Entry, Excess]) -> Iterator[str]:
    """Say what to do about each difference between the list and the code."""
    for entry in sorted({*listed, *excesses}):
        excess = excesses.get(entry)
        if excess is None:
            yield _say_gone(entry)
            continue

        limit = listed.get(entry, excess.bound)
        if excess.value > limit:
            yield _say_above(entry, excess, limit)
        elif excess.value < limit:
            yield _say_below(entry, excess, limit)


def lower(listed: Mapping[Entry, int], excesses: Mapping[Entry, Excess]) -> dict[Entry, int]:
    """Return the list without what is within its bound now, and with values that fell."""
    lowered: dict[Entry, int] = {}
    for entry, limit in listed.items():
        if entry in excesses:
            lowered[entry] = min(limit, excesses[entry].value)
    return lowered


def read_list(path: Path) -> dict[Entry, int]:
    """Read the list.

    Raises:
        ValueError: A line is no entry, or an entry stands twice.
    """
    listed: dict[Entry, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        place, rule, value = line.rsplit(maxsplit=2)
        entry = Entry(rule, place)
        if entry in listed:
            raise ValueError(f"{path} lists {place} twice for {rule}.")
        listed[entry] = int(value)
    return listed


def write_list(path: Path, listed: Mapping[Entry, int]) -> None:
    """Write the list, sorted by rule and place."""
    lines = [f"{entry.place}  {entry.rule}  {listed[entry]}\n" for entry in sorted(listed)]
    path.write_text(HEADER + "".join(lines), encoding="utf-8")


def _violations(root: Path) -> Iterator[dict[str, Any]]:
    """Yield what ruff says against functions, as its JSON has it. A ``noqa`` excuses nothing."""
    rules = [rule for rule in RULES if rule != TUPLES]
    options = ["--select", ",".join(rules), "--ignore-noqa", "--exit-zero"]
    printed = _ruff(root, *options, "--output-format", "json")
    for violation in json.loads(printed):
        is_python = violation["filename"].endswith(".py")
        if is_python and violation["code"] in rules:
            yield violation


def _python_files(root: Path) -> list[Path]:
    paths = [Path(line) for line in _ruff(root, "--show-files").splitlines()]
    return sorted(path for path in paths if path.suffix == ".py")


def _ruff(root: Path, *options: str) -> str:
    """Run ``ruff check`` with the settings of the root's ``pyproject.toml`` and no others."""
    command = [sys.executable, "-m", "ruff", "check", "--config", "pyproject.toml", *options]
    return subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True, text=True).stdout


def _read_excess(message: str, line: int) -> Excess:
    """Read the figures of a message such as ``Too many branches (12 > 10)``."""
    figures = re.search(r"\((\d+) > (\d+)\)$", message)
    if figures is None:
        raise ValueError(f"Ruff's message has no figures: {message}")
    return Excess(int(figures[1]), int(figures[2]), (line,))


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _collect_names(node: ast.AST, prefix: str, names: dict[int, str]) -> None:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[child.lineno] = prefix + child.name
            inner = f"{prefix}{child.name}."
        _collect_names(child, inner, names)


def _elements(several: ast.Tuple | ast.List) -> list[str]:
    """Return the elements as text, sorted: a swap has the same on both sides."""
    return sorted(ast.unparse(element) for element in several.elts)


def _say_above(entry: Entry, excess: Excess, limit: int) -> str:
    rule = RULES[entry.rule]
    lines = ", ".join(map(str, excess.lines))
    noun = "line" if len(excess.lines) == 1 else "lines"
    return (
        f"{entry.place} ({noun} {lines}) exceeds its limit for {rule.subject}, "
        f"{excess.value} > {limit}: {rule.advice}."
    )


def _say_below(entry: Entry, excess: Excess, limit: int) -> str:
    subject = RULES[entry.rule].subject
    return (
        f"{entry.place} is listed with {limit} for {subject} and has {excess.value} now: "
        f"lower the list with {UPDATE}."
    )


def _say_gone(entry: Entry) -> str:
    return (
        f"{entry.place} is listed for {entry.rule} and does not exceed its bound any more: "
        f"shorten the list with {UPDATE}."
    )


if __name__ == "__main__":
    sys.exit(main())
