"""``fairqr demo``: from nothing to a fair search, with the real models."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fairqr.cli.main import app
from tests.integration.local_model import ENCODER, MODEL, linked
from tests.integration.model_server import Command, clean_environment, command

__all__ = ["clean_environment", "command"]

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.model


@pytest.fixture
def cache(
    clean_environment: Path, pulled_weights: Path, pulled_minilm: Path, tmp_path: Path
) -> Path:
    folder = tmp_path / "demo-cache"
    linked(MODEL, pulled_weights, folder)
    linked(ENCODER, pulled_minilm, folder)
    return folder


def test_searches_fairly_and_says_what_to_try_next(command: Command, cache: Path) -> None:
    run = command("demo", FAIRQR_CACHE_DIR=str(cache), COLUMNS="80")
    assert run.code == 0, run
    for page in ("README.md", "docs/tutorial/index.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert run.stdout.startswith(text.partition("```text\n")[2].partition("```")[0]), page
    first, loop = run.stdout.split("\nfemale: 0% of the attention; ")
    for screen in (first, loop):
        assert "Émilie du Châtelet" in screen
        assert "\nCost" in screen
    assert "No model was needed." in first
    divergences = re.findall(r"^\d .* (\d\.\d{4}) ", loop, re.MULTILINE)
    assert float(divergences[0]) > 1.4 > 0.3 > float(divergences[-1])
    suggested = re.findall(r"^ *\S*fairqr (.+)$", run.stderr + run.stdout, re.MULTILINE)
    names = [shlex.split(line)[0] for line in suggested]
    assert names == ["search", "search", "search", "attach", "search", "audit"]
    known: Any = typer.main.get_command(app)
    for line in suggested:
        words = shlex.split(line)
        options = {name for it in known.commands[words[0]].params for name in it.opts}
        assert {word for word in words if word.startswith("-")} <= options
