"""The bounds of functions and of assignments: what exceeds one and is not listed is refused."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from tests.checks import complexity

BRANCHES = "    if value == {0}:\n        return {0}\n"
STATEMENTS = "    print({0})\n"


class Checkout:
    """A folder with the project's settings, files of its own, and a list.

    Attributes:
        root: The folder.
    """

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys
        shutil.copy(complexity.ROOT / "pyproject.toml", root)
        self.set_list()

    def write(self, name: str, source: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")

    def set_list(self, *lines: str) -> None:
        self.write(str(complexity.LIST), "# A comment.\n" + "".join(f"{line}\n" for line in lines))

    def read_list(self) -> list[str]:
        text = (self.root / complexity.LIST).read_text(encoding="utf-8")
        return [line for line in text.splitlines() if not line.startswith("#")]

    def check(self, *options: str) -> list[str]:
        """Return the sentences that say what is wrong."""
        status = complexity.main(["--root", str(self.root), *options])
        printed = self._capsys.readouterr().out
        sentences = [line.removeprefix("complexity: ") for line in printed.splitlines()]
        if status == 0:
            assert len(sentences) == 1
            assert sentences[0].startswith("nothing exceeds its bound")
            return []
        return sentences


@pytest.fixture
def checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checkout:
    return Checkout(tmp_path, capsys)


def function(name: str, body: str, repeated: int, parameters: str = "value") -> str:
    """Return the source of a function whose body repeats some lines."""
    lines = [body.format(number) for number in range(repeated)]
    return f"def {name}({parameters}):\n" + "".join(lines) + "    return None\n"


def arguments(count: int) -> str:
    return ", ".join(f"a{number}" for number in range(count))


def in_class(source: str) -> str:
    indented = [f"    {line}\n" for line in source.splitlines()]
    return "class Chooser:\n" + "".join(indented)


def test_a_function_within_the_bounds_is_no_entry(checkout: Checkout) -> None:
    checkout.write("graph/choose.py", function("choose", BRANCHES, 9))
    checkout.write("graph/show.py", function("show", STATEMENTS, 40))
    checkout.write("graph/take.py", function("take", "", 0, arguments(7)))
    assert checkout.check() == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            function("choose", BRANCHES, 10),
            "exceeds its limit for complexity, 11 > 10: move a step of it into a function",
            id="C901",
        ),
        pytest.param(
            function("choose", BRANCHES, 11),
            "exceeds its limit for branches, 11 > 10: move some of them into a function",
            id="PLR0912",
        ),
        pytest.param(
            function("choose", "", 0, f"*, {arguments(8)}"),
            "exceeds its limit for arguments, 8 > 7: put those that belong together into one.",
            id="PLR0913",
        ),
        pytest.param(
            function("choose", STATEMENTS, 41),
            "exceeds its limit for statements, 41 > 40: move a step of it into a function",
            id="PLR0915",
        ),
        pytest.param(
            function("choose", "", 0, arguments(8)),
            "exceeds its limit for positional arguments, 8 > 7: make some of them keyword-only.",
            id="PLR0917",
        ),
    ],
)
def test_a_new_function_above_a_bound_is_refused(
    checkout: Checkout, source: str, expected: str
) -> None:
    checkout.write("graph/choose.py", source)
    refused = [line for line in checkout.check() if expected in line]
    assert len(refused) == 1
    assert refused[0].startswith("graph/choose.py::choose (line 1) ")


def test_a_listed_function_passes_wherever_it_stands_in_its_file(checkout: Checkout) -> None:
    method = in_class(function("choose", BRANCHES, 10))
    checkout.set_list("graph/choose.py::Chooser.choose  C901  11")
    checkout.write("graph/choose.py", method)
    assert checkout.check() == []

    checkout.write("graph/choose.py", "import json\n\nSPACE = 1\n\n\n" + method)
    assert checkout.check() == []

    checkout.write("graph/other.py", method)
    (sentence,) = checkout.check()
    assert sentence.startswith("graph/other.py::Chooser.choose (line 2) exceeds")


def test_a_listed_function_that_grew_is_refused(checkout: Checkout) -> None:
    checkout.set_list("graph/choose.py::choose  PLR0915  41")
    checkout.write("graph/choose.py", function("choose", STATEMENTS, 42))
    (sentence,) = checkout.check()
    assert "for statements, 42 > 41" in sentence


def test_a_list_that_is_too_long_or_high_is_refused(
    checkout: Checkout,
) -> None:
    checkout.set_list(
        "graph/choose.py::choose  PLR0915  44",
        "graph/choose.py::short  PLR0915  44",
        "graph/gone.py::choose  C901  11",
    )
    long = function("choose", STATEMENTS, 41)
    short = function("short", STATEMENTS, 3)
    checkout.write("graph/choose.py", f"{long}\n\n{short}")
    update = "with `python -m tests.checks.complexity --update`."
    ended = f"and does not exceed its bound any more: shorten the list {update}"
    assert checkout.check() == [
        f"graph/gone.py::choose is listed for C901 {ended}",
        "graph/choose.py::choose is listed with 44 for statements and has 41 now: "
        f"lower the list {update}",
        f"graph/choose.py::short is listed for PLR0915 {ended}",
    ]

    assert checkout.check("--update") == []
    assert checkout.read_list() == ["graph/choose.py::choose  PLR0915  41"]
    assert checkout.check() == []


def test_an_update_neither_adds_nor_raises(checkout: Checkout) -> None:
    listed = ["graph/choose.py::choose  PLR0915  41", "graph/swap.py  TUPLES  1"]
    checkout.set_list(*listed)
    grown = function("choose", STATEMENTS, 50)
    new = function("new", STATEMENTS, 50)
    checkout.write("graph/choose.py", f"{grown}\n\n{new}")
    checkout.write("graph/swap.py", "a, b = 1, 2\nc, d = 3, 4\n")
    checkout.write("graph/other.py", "a, b = 1, 2\n")

    assert len(checkout.check("--update")) == 4
    assert checkout.read_list() == listed


@pytest.mark.parametrize(
    "line",
    [
        "a, b = b, a",
        "a, b, c = c, a, b",
        "row[0], row[1] = row[1], row[0]",
        "a, b = pair",
        "a, b = divmod(7, 2)",
        "a = b = 0",
        "a = 1, 2",
    ],
)
def test_swaps_and_values_that_belong_together_are_fine(checkout: Checkout, line: str) -> None:
    checkout.write("graph/swap.py", f"{line}\n")
    assert checkout.check() == []


@pytest.mark.parametrize(
    "line",
    [
        "a, b = 1, 2",
        "a, b = b, 2",
        "[a, b] = (1, 2)",
        "a, *b = 1, 2, 3",
        "pair = a, b = 1, 2",
        "row.first, row.last = 1, 2",
    ],
)
def test_unrelated_values_in_one_assignment_are_refused(checkout: Checkout, line: str) -> None:
    checkout.write("graph/swap.py", f"\n{line}\n")
    assert checkout.check() == [
        "graph/swap.py (line 2) exceeds its limit for assignments of several unrelated values, "
        "1 > 0: give each value a line of its own."
    ]


def test_a_file_keeps_the_assignments_it_is_listed_with(checkout: Checkout) -> None:
    checkout.set_list("graph/swap.py  TUPLES  1")
    checkout.write("graph/swap.py", "a, b = 1, 2\n")
    assert checkout.check() == []

    checkout.write("graph/swap.py", "a, b = 1, 2\n\n\ndef take():\n    c, d = 3, 4\n")
    (sentence,) = checkout.check()
    assert sentence.startswith("graph/swap.py (lines 1, 5) exceeds its limit")
    assert "2 > 1" in sentence

    checkout.write("graph/swap.py", "a = 1\nb = 2\n")
    (sentence,) = checkout.check()
    assert "shorten the list" in sentence


def test_only_the_facade_and_commands_have_many_keywords(checkout: Checkout) -> None:
    many = function("search", "", 0, f"*, {arguments(12)}")
    checkout.write("src/fairqr/api.py", many)
    checkout.write("src/fairqr/cli/search.py", many)
    assert checkout.check() == []

    checkout.write("graph/search.py", many)
    assert len(checkout.check()) == 1


def test_no_comment_or_setting_excuses_a_function(checkout: Checkout) -> None:
    source = function("choose", BRANCHES, 10).replace(":\n", ":  # noqa: C901\n", 1)
    checkout.write("graph/choose.py", source)
    checkout.write("graph/ruff.toml", "lint.mccabe.max-complexity = 90\n")
    assert len(checkout.check()) == 1


def test_an_entry_that_stands_twice_is_an_error(checkout: Checkout) -> None:
    checkout.set_list("graph/swap.py  TUPLES  1", "graph/swap.py  TUPLES  9")
    with pytest.raises(ValueError, match=r"graph/swap\.py twice for TUPLES"):
        checkout.check()


def test_plain_ruff_leaves_the_bounds_to_the_list() -> None:
    text = (complexity.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    selected = tomllib.loads(text)["tool"]["ruff"]["lint"]["select"]
    for rule in complexity.RULES:
        assert not rule.startswith(tuple(selected))
