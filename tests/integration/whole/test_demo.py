"""``fairqr demo``: from nothing to a fair search, with the real models."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fairqr.cli.main import app
from tests.servers.local_model import ENCODER, MODEL, linked
from tests.servers.model_server import Command, clean_environment, command

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


@pytest.mark.promise("command")
def test_searches_fairly_and_says_what_to_try_next(command: Command, cache: Path) -> None:
    """The demo runs from nothing to a fair search."""
    run = command("demo", FAIRQR_CACHE_DIR=str(cache), COLUMNS="80")
    assert run.code == 0, run
    for page in ("README.md", "docs/tutorial/index.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert run.stdout.startswith(text.partition("```text\n")[2].partition("```")[0]), page
    _, first, loop = run.stdout.split("\nfemale: 0% of the attention; ")
    for screen in (first, loop):
        assert "\nCost" in screen
        assert "\nFound by the engine alone: no vectors are stored" in screen
    assert "Émilie du Châtelet" in first
    assert "No model was needed." in first
    assert "recorded from a large chat model" in run.stderr
    assert "Refined by recorded:notables." in " ".join(loop.split())
    assert re.search(r"^1 kept .* topic: physics, theoretical …; female: Marie Curie, ", loop, re.M)
    assert re.search(r"Lise Meitner +female +new +name", loop)
    rows = re.findall(r"^(\S.*?) +(\d+) of 10 +(\d+)%$", loop, re.MULTILINE)
    by_model = {model: (int(relevant), int(seen)) for model, relevant, seen in rows}
    assert list(by_model) == ["no model", "local:smollm2-135m", "recorded:notables"]
    (relevant, seen), _, (with_model, seen_with_model) = by_model.values()
    assert with_model >= relevant
    assert seen_with_model == max(share for _, share in by_model.values()) > seen
    suggested = re.findall(r"^ *\S*fairqr (.+)$", run.stderr + run.stdout, re.MULTILINE)
    names = [shlex.split(line)[0] for line in suggested]
    # Both screens, a model of one's own, and what to try next.
    assert names == ["search"] * 4 + ["attach", "search", "audit"]
    known: Any = typer.main.get_command(app)
    for line in suggested:
        words = shlex.split(line)
        options = {name for it in known.commands[words[0]].params for name in it.opts}
        assert {word for word in words if word.startswith("-")} <= options


@pytest.mark.promise("command")
def test_a_default_that_vectors_changed_says_so(command: Command, cache: Path) -> None:
    """The default says when stored vectors changed it.

    A search by vectors stores them, and from then on the default uses them.
    """
    corpus = Path("people.jsonl")
    people = [("a", "A physicist who split atoms."), ("b", "A painter of quiet rooms.")]
    lines = []
    for id_, text in people:
        lines.append(json.dumps({"id": id_, "title": id_, "text": text, "gender": "female"}))
    corpus.write_text("\n".join(lines), encoding="utf-8")
    groups = "attributes: {gender: {field: gender, groups: [female, male]}}"
    Path("people.schema.yaml").write_text(groups, encoding="utf-8")
    search = ("search", "physicist", "--corpus", str(corpus), "--max-iterations", "0")
    told = []
    for options in ((), ("--retriever", "dense"), ()):
        run = command(*search, *options, FAIRQR_CACHE_DIR=str(cache), COLUMNS="200")
        assert run.code == 0, run
        told += re.findall(r"^Found by .*", run.stdout, re.MULTILINE)
    assert told == [
        "Found by the engine alone: no vectors are stored, so minilm reads texts.",
        "Found by vectors of minilm alone. They are stored, so searches now use words and vectors "
        "by default.",
        "Found by words and vectors, since vectors of minilm are stored for this index.",
    ]
