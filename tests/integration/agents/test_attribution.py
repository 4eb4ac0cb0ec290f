"""The commands ``fairqr attribution …``: the real command, real files, a real tiny model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.integration.model_server import Command, Main
from tests.unit.agents.attribution.tiny_nli import tiny_nli

__all__ = ["tiny_nli"]

TOY = [
    ("the gold river", "a tree", True),
    ("the river was seen", "a gold tree", False),
    ("the mud road", "a house", False),
    ("gold near the road", "mud", True),
]


@pytest.fixture
def toy(clean_environment: Path) -> Path:
    """Pairs that follow the rule of the tiny model."""
    path = clean_environment / "toy.jsonl"
    rows = [{"premise": p, "hypothesis": h, "entailed": e, "note": "x"} for p, h, e in TOY * 10]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_notables_are_judged_offline(command: Command) -> None:
    """What the docs show: figures, the four counts, and a sentence."""
    run = command("attribution", "check", "notables")
    assert run.code == 0
    assert "judged: 200\n" in run.stdout
    assert "entailed attributed: " in run.stdout
    sentence = run.stdout.splitlines()[-1]
    assert sentence.startswith("overlap is right on 74.0% of 200 pairs (95 % interval ")


def test_a_model_of_transformers_is_checked(quick: Main, toy: Path, tiny_nli: Path) -> None:
    """It knows the toy rule, and nothing but the result is printed."""
    name = f"transformers:{tiny_nli}"
    run = quick("attribution", "check", toy, "--attributor", name, "--json")
    assert run.stderr == ""
    found = json.loads(run.stdout)
    assert (found["accuracy"], found["judged"]) == (1.0, 40)
    assert (found["attributor"], found["finding"]) == (name, "better")
    assert list(found["confusion"].values()) == [20, 0, 0, 20]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["PAIRS", "--attributor", "overlap?threshold=2"],
            "at threshold: Input should be",
        ),
        (["none.jsonl"], "none.jsonl cannot be read"),
        (["EMPTY"], "has no pairs"),
        (["BAD"], "line 3: entailed: Input should be a valid boolean"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    quick: Main, toy: Path, arguments: list[str], words: str
) -> None:
    """On stderr, with exit code 2, and nothing is remembered."""
    empty, bad = (toy.with_name(f"{name}.jsonl") for name in ("empty", "bad"))
    empty.write_text("")
    good = toy.read_text().splitlines()[0]
    bad.write_text(f"{good}\n\n{good.replace('true', '1')}\n")
    files = {"PAIRS": str(toy), "EMPTY": str(empty), "BAD": str(bad)}
    run = quick("attribution", "check", *(files.get(word, word) for word in arguments))
    assert words in run.complaint()
    assert not (toy.parent / "data").exists()


def test_what_was_downloaded_needs_no_hub(command: Command, toy: Path, tiny_nli: Path) -> None:
    """A model in the cache is loaded from there."""
    pytest.importorskip("transformers", reason="needs the extra neural")
    home = toy.parent / "hub"
    kept = home / "hub" / "models--org--tiny"
    shutil.copytree(tiny_nli, kept / "snapshots" / ("0" * 40))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0" * 40)
    name, nobody = "transformers:org/tiny", "http://127.0.0.1:1"
    run = command(
        *("attribution", "check", toy, "--attributor", name, "--json"),
        **{"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_ENDPOINT": nobody},
    )
    assert run.stderr == ""
    assert json.loads(run.stdout)["accuracy"] == 1.0
