"""The command ``fairqr probe build``: what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairqr.base.errors import FairqrError, InputError
from fairqr.cli.probe import app
from fairqr.evaluation.probes.collection import read_probe_collection
from tests.unit.evaluation.probes.small_collections import people, write_collection


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> str:
    """Run the command; errors come out as they are, for the entry point to print."""
    result = CliRunner().invoke(app, ["build", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_what_a_person_reads() -> None:
    """Queries, items, the order, the sides, what is short, and what was left out."""
    write_collection(
        Path("mine"),
        [("f1", "female"), ("f2", "female"), ("m1", "male"), ("x", None)],
        {"t": {"f1": 1, "m1": 1, "gone": 1}, "u": {"f2": 1, "x": 1}, "v": {"x": 1}},
    )
    printed = run("./mine", "--attribute", "gender", "--size", "8", "-o", "out")
    told = dict(line.split(": ", 1) for line in printed.splitlines())
    assert (
        told.items()
        >= {
            **{"folder": "out", "name": "mine, gender: female", "queries": "2", "items": "6"},
            **{"size": "8", "order": "shuffled", "seed": "0", "texts": "True"},
            **{"protected": "female", "protected groups": "female"},
            **{"unprotected": "non-female", "unprotected groups": "male, other"},
            "short, relevant protected, queries": "2",
            "short, irrelevant unprotected, items": "3",
            "dropped, no relevant item": "1",
            **{"undecided": "1", "missing": "1"},
        }.items()
    )
    assert read_probe_collection(Path("out")).manifest.source == "./mine"


def test_all_options_reach_the_collection() -> None:
    """And ``--json`` prints the manifest, as one object."""
    people(Path("mine"))
    data = json.loads(
        run(
            *("./mine", "--attribute", "gender", "--protected", "male vs female"),
            *("--words", "men/women", "--size", "16", "--order", "bm25", "--seed", "7"),
            *("--queries", "2", "--titles-only", "-o", "out", "--json"),
        )
    )
    collection = read_probe_collection(Path("out"))
    told = collection.manifest.model_dump(mode="json")
    assert data == {"folder": "out", "items": 32, **told}
    assert (told["protected"], told["unprotected"]) == ("men", "women")
    assert (told["protected_groups"], told["unprotected_groups"]) == (["male"], ["female"])
    assert (told["size"], told["order"], told["seed"]) == (16, "bm25", 7)
    assert (told["queries"], told["texts"]) == (2, False)
    assert not any(item.text for query in collection.queries for item in query.items)


def test_notables_is_there_for_a_newcomer() -> None:
    """No corpus has to be named."""
    printed = run("--attribute", "continent", "--protected", "not Europe", "-o", "out")
    assert {"name: notables, continent: non-European", "queries: 57"} <= {*printed.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["./mine", "--attribute", "age"], "no attribute 'age'; it has gender"),
        (["./mine", "--attribute", "gender", "--protected", "old"], "no group 'old' of gender"),
        (["./mine", "--attribute", ""], "name one with --attribute"),
        (["./mine", "--attribute", "gender", "--protected", ""], "The protected group has no name"),
        (
            ["notables", "--attribute", "continent"],
            "Say which group of continent is protected: one of",
        ),
        (["./mine", "--attribute", "gender", "--words", "men"], "write PROTECTED/UNPROTECTED"),
        (["./mine", "--attribute", "gender", "--size", "6"], "Input should be a multiple of 4"),
        (
            ["./mine", "--attribute", "gender", "--order", "best"],
            "Input should be 'shuffled'",
        ),
        (["./mine", "--attribute", "gender", "--split", "x"], "has no judgements 'x'"),
        (["nothing", "--attribute", "gender"], "There is no collection 'nothing'"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(arguments: list[str], words: str) -> None:
    """And nothing is written."""
    people(Path("mine"))
    with pytest.raises(FairqrError) as raised:
        run(*arguments, "-o", "out")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not Path("out").exists()


def test_a_folder_of_something_else_is_refused_before_anything_is_read() -> None:
    """A large corpus takes minutes."""
    Path("out").mkdir()
    Path("out", "letter.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and has no probe collection"):
        run("nothing", "--attribute", "gender", "-o", "out")
