"""The commands ``fairqr attribution …``: the real command, real files, a real tiny model."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.model_server import (
    Command,
    Main,
    Run,
    clean_environment,
    command,
    model_server,
    quick,
)
from tests.unit.agents.attribution.tiny_nli import tiny_nli

__all__ = ["clean_environment", "command", "model_server", "quick", "tiny_nli"]

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


class TestCheck:
    def test_notables_are_judged_offline(self, command: Command) -> None:
        """What the docs show: figures, the four counts, and a sentence; then the list has it."""
        run = command("attribution", "check", "notables", "-n", "60")
        assert run.code == 0
        assert "notables, 60 pairs, seed 0" in run.stdout
        assert "accuracy  0." in run.stdout
        assert "attributed" in run.stdout
        sentence = run.stdout.splitlines()[-1]
        assert sentence.startswith("overlap is right on ")
        listed = command("attribution", "list").stdout
        assert "* overlap" in listed
        assert f"{sentence} [notables, 60 pairs, seed 0]" in listed

    def test_a_model_of_transformers_is_checked(
        self, quick: Main, toy: Path, tiny_nli: Path
    ) -> None:
        """It knows the toy rule, and nothing but the result is printed."""
        name = f"transformers:{tiny_nli}"
        run = quick("attribution", "check", toy, "--attributor", name, "--json")
        assert run.stderr == ""
        found = json.loads(run.stdout)
        assert (found["accuracy"], found["auc"], found["judged"]) == (1.0, 1.0, 40)
        assert (found["attributor"], found["finding"]) == (name, "better")
        assert found["confusion"] == {
            "entailed_attributed": 20,
            "entailed_not": 0,
            "not_attributed": 0,
            "not_not": 20,
        }
        listed = json.loads(quick("attribution", "list", "--json").stdout)
        assert [check["attributor"] for check in listed["checks"]] == [name]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["PAIRS", "--attributor", "bert"], "There is no attributor 'bert'; choose overlap"),
            (
                ["PAIRS", "--attributor", "overlap", "--threshold", "2"],
                "is wrong at threshold: Input should be less",
            ),
            (["none.jsonl", "--attributor", "overlap"], "none.jsonl cannot be read"),
            (["BROKEN", "--attributor", "overlap"], "line 2: entailed"),
            (["EMPTY", "--attributor", "overlap"], "has no pairs"),
            (
                ["notables", "--attributor", "overlap", "-n", "99999"],
                "ask for fewer than 99,999",
            ),
            (
                ["PAIRS", "--attributor", "overlap", "--base-url", "http://127.0.0.1:1/v1"],
                "The attributor 'overlap' asks no server; leave base_url out",
            ),
        ],
    )
    def test_what_is_wrong_is_one_sentence(
        self, quick: Main, toy: Path, arguments: list[str], words: str
    ) -> None:
        """On stderr, with exit code 2, and nothing is remembered."""
        broken, empty = toy.with_name("broken.jsonl"), toy.with_name("empty.jsonl")
        good = toy.read_text().splitlines()[0]
        broken.write_text(f'{good}\n{{"premise": "a", "hypothesis": "b", "entailed": "yes"}}\n')
        empty.write_text("")
        files = {"PAIRS": str(toy), "BROKEN": str(broken), "EMPTY": str(empty)}
        run = quick("attribution", "check", *(files.get(word, word) for word in arguments))
        assert words in run.complaint()
        assert not (toy.parent / "data").exists()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody listens, and which nobody else is given."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class TestHub:
    def check(self, command: Command, toy: Path, name: str, **hub: str) -> Run:
        pytest.importorskip("transformers", reason="needs the extra neural")
        home = toy.parent / "hub"
        hub = {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), **hub}
        return command("attribution", "check", toy, "--attributor", name, "--json", **hub)

    def test_one_that_cannot_be_reached_is_asked_once(self, command: Command, toy: Path) -> None:
        """One sentence after a moment; file by file it took a minute and many lines."""
        asked: list[bytes] = []

        def hang_up(listener: socket.socket) -> None:
            with contextlib.suppress(OSError):  # it is shut down in the end
                while True:
                    with listener.accept()[0] as client:
                        asked.append(client.recv(1000).partition(b"\r\n")[0])

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=hang_up, args=(listener,), daemon=True).start()
            endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
            run = self.check(command, toy, "transformers", HF_ENDPOINT=endpoint)
            listener.shutdown(socket.SHUT_RDWR)
        assert "roberta-large-mnli cannot be loaded" in run.complaint()
        assert endpoint in run.stderr
        # The library of the hub may ask for more, but not for a file of the model.
        assert asked.count(b"HEAD / HTTP/1.1") == 1
        assert not any(b"roberta" in line for line in asked)

    def test_what_was_downloaded_needs_no_hub(
        self, command: Command, toy: Path, tiny_nli: Path, closed_port: int
    ) -> None:
        """A model in the cache is loaded from there."""
        kept = toy.parent / "hub" / "hub" / "models--org--tiny"
        shutil.copytree(tiny_nli, kept / "snapshots" / ("0" * 40))
        (kept / "refs").mkdir()
        (kept / "refs" / "main").write_text("0" * 40)
        endpoint = f"http://127.0.0.1:{closed_port}"
        run = self.check(command, toy, "transformers:org/tiny", HF_ENDPOINT=endpoint)
        assert run.stderr == ""
        assert json.loads(run.stdout)["accuracy"] == 1.0
