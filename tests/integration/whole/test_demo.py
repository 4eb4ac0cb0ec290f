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
    run = command("demo", FAIRQR_CACHE_DIR=str(cache))
    assert run.code == 0, run
    _, after = run.stdout.split("\nre-ranked\n")
    divergences = re.findall(r"divergence from the target ([0-9.]+)", run.stdout)
    assert float(divergences[0]) > 1.4
    assert float(divergences[-1]) < 0.3
    assert "  female: 0% of the exposure before" in after
    assert "Émilie du Châtelet" in after
    assert "Known for the study of numbers" in after, "a document's text can be judged"
    assert "0 model calls" in run.stdout
    search, rest = run.stdout.split("What to try next:")
    suggested = re.findall(r"^ *\S*fairqr (.+)$", search + rest, re.MULTILINE)
    names = [shlex.split(line)[0] for line in suggested]
    assert names == ["search", "search", "attach", "audit"]
    known: Any = typer.main.get_command(app)
    for line in suggested:
        words = shlex.split(line)
        options = {name for it in known.commands[words[0]].params for name in it.opts}
        assert {word for word in words if word.startswith("-")} <= options
