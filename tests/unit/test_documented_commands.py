"""Every command in the README and the docs exists, with the options that it has there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fairqr.cli.main import app
from fairqr.cli.parameters import read_parameters
from fairqr.evaluation.experiments.catalogue import read_experiment

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "runs" not in page.parts
]


def commands(page: Path) -> list[str]:
    """Return the commands in a page's examples and sentences."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    # "`fairqr source list`, `check` and `remove`" names three commands.
    listed = re.compile(r"`(fairqr [a-z]+) [a-z]+`(?:(?:,| and)+\s+`[a-z]+`)+")
    text = listed.sub(lambda it: re.sub(r"\s`", f" `{it[1]} ", it[0]), text)
    inline = re.findall(r"`(fairqr [^`]+)`", text)
    parts = [part.strip() for line in [*lines, *inline] for part in line.split(" && ")]
    return [part for part in parts if re.match(r"fairqr [a-z]+", part) and "listens" not in part]


LINES = [(page.name, line) for page in PAGES for line in commands(page)]


def test_pages_have_examples() -> None:
    assert {"README.md", "run-experiments.md", "tune-a-model.md"} <= {name for name, _ in LINES}


@pytest.mark.promise("command")
@pytest.mark.parametrize(("name", "line"), LINES)
def test_a_documented_command_is_understood(name: str, line: str) -> None:
    """Every command in the docs exists, with the options that stand there.

    Its command and options exist, and so do the parameters that it sets.
    """
    _, *words = shlex.split(re.sub(r"\s#.*|\s\|.*|\s>.*", "", line))
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    context = command.context_class(command)
    if (hasattr(command, "commands") and not words) or "…" in line:
        return
    values, _, _ = command.make_parser(context).parse_args(args=words)
    settings = [text for text in values.get("set_") or [] if text != "help"]
    models = getattr(command.callback, "models", None)
    if not models and settings:
        models = [read_experiment(values["experiment"]).kind.spec]
    read_parameters(models or [], settings)
