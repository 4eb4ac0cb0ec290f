"""The commands ``fairqr attribution …``: the real command, real files, a real tiny model."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from tests.servers.model_server import Command, Main
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
    assert "entailed attributed: " in run.stdout
    sentence = run.stdout.splitlines()[-1]
    assert sentence.startswith("overlap is right on 74.0% of 200 pairs (95 % interval ")


def test_what_is_wrong_is_one_sentence(quick: Main, toy: Path) -> None:
    """On stderr, with exit code 2, and nothing is remembered."""
    good = toy.read_text().splitlines()[0]
    wrong = good.replace("true", "1")
    for pairs, words in (("", "has no pairs"), (f"{good}\n\n{wrong}\n", "line 3: its entailed: ")):
        toy.write_text(pairs)
        assert words in quick("attribution", "check", toy).complaint()
    assert "none.jsonl cannot be read" in quick("attribution", "check", "none.jsonl").complaint()
    assert not (toy.parent / "data").exists()


def test_what_was_downloaded_needs_no_hub(command: Command, toy: Path, tiny_nli: Path) -> None:
    """A model in the cache is loaded from there and knows the toy rule; nothing else is said."""
    pytest.importorskip("transformers", reason="needs the extra neural")
    home = toy.parent / "hub"
    kept = home / "hub" / "models--org--tiny"
    shutil.copytree(tiny_nli, kept / "snapshots" / ("0" * 40))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0" * 40)
    name = "transformers:org/tiny"
    with socket.create_server(("127.0.0.1", 0)) as hub:
        where = {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub")}
        where |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}
        where |= {"HF_HUB_DISABLE_TELEMETRY": "1"}  # its library asks the hub who uses it
        run = command("attribution", "check", toy, "--attributor", name, "--json", **where)
        hub.setblocking(False)
        with pytest.raises(BlockingIOError):
            hub.accept()
    assert run.stderr == ""
    found = json.loads(run.stdout)
    assert (found["attributor"], found["finding"], found["judged"]) == (name, "better", 40)
    assert list(found["confusion"].values()) == [20, 0, 0, 20]
