"""The commands ``fairqr dataset …``: what they print, and how they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., str]
FILES = {
    "people.jsonl": '{"id": "1", "title": "Ada", "gender": "female"}\n{"id": "2", "title": "B"}\n',
    "people.yaml": "attributes: {gender: {field: gender, groups: [female, male],"
    " population: {female: 0.5, male: 0.5}}}",
    "topics.jsonl": '{"id": "t", "title": "mathematician"}\n{"id": "u\\u001b[2J", "title": "x"}\n',
    "qrels.txt": "t 0 1 1\nt 0 2 1\nt 0 9 0\nx 0 1 1\n",
}
MINE = ("import", "jsonl", *FILES, "--name", "mine")


@pytest.fixture(autouse=True)
def run(fairqr: Callable[..., Any]) -> Run:
    """Runs a command in a folder with the files of a collection; returns what it prints."""
    for name, content in FILES.items():
        Path(name).write_text(content)

    def call(*arguments: str) -> str:
        code, stdout, stderr = fairqr("dataset", *arguments)
        assert code == 0, stderr
        return str(stdout)

    return call


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_collection_is_imported(run: Run) -> None:
    lines = run(*MINE).splitlines()
    assert lines[0].startswith("mine: imported into ")
    assert lines[1:3] == ["  2 documents", "  2 topics, 4 judgements"]


def test_collections_are_listed(run: Run) -> None:
    assert words(run("list"))[1:] == [["notables", "built", "in"]]

    run(*MINE)
    assert words(run("list"))[1:] == [["notables", "built", "in"], ["mine", "jsonl", "2"]]

    listed = json.loads(run("list", "--json"))
    assert [collection["kind"] for collection in listed] == ["built in", "jsonl"]


def test_a_collection_is_described(run: Run) -> None:
    run(*MINE)
    text = run("info", "mine")
    assert "documents: 2\ntopics: 2\njudgements: 3\nrelevant documents: 2\n" in text
    assert "topics without a relevant document: u [2J\n" in text
    assert ["female", "50.00%", "50.00%", "50.00%", "75.00%"] in words(text)
    assert ["unknown", "50.00%", "50.00%", "–", "–"] in words(text)


def test_a_collection_is_described_for_scripts(run: Run) -> None:
    run(*MINE)
    description = json.loads(run("info", "mine", "--json"))
    assert (description["documents"], description["relevant"]) == (2, [0, 1, 2])
    assert description["attributes"]["gender"]["target"] == {"female": 0.75, "male": 0.25}


def test_files_that_are_no_collection_are_refused(run: Run, fairqr: Callable[..., Any]) -> None:
    ended = fairqr("dataset", "import", "jsonl", "qrels.txt", "--name", "b")
    assert "have no schema and no topics" in ended.complaint()


def test_a_collection_that_lost_a_file_says_what_it_lacks(run: Run) -> None:
    run(*MINE)
    Path("data/collections/mine/qrels.txt").unlink()
    assert words(run("list"))[2] == ["mine", "jsonl", "2", "it", "lacks", "qrels.txt"]


def test_a_collection_that_cannot_be_read_is_listed(run: Run) -> None:
    run(*MINE)
    Path("data/collections/mine/collection.yaml").write_text("[")
    assert "is not valid YAML" in " ".join(run("list").split())


def test_the_help_names_all_loaders(run: Run) -> None:
    """It is written by hand, since the loaders load numpy."""
    from fairqr.evaluation.collections.importing import LOADERS

    help_text = run("import", "--help")
    assert all(name in help_text for name in LOADERS)
