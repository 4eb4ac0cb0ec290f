"""The commands ``fairqr dataset …``: what they print, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fairqr.base.errors import FairqrError
from fairqr.cli.sources import dataset as app

NAMES = ("people.jsonl", "people.yaml", "topics.jsonl", "qrels.txt")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    contents = (
        '{"id": "1", "title": "Ada", "gender": "female"}\n{"id": "2", "title": "Ben"}\n',
        "attributes: {gender: {field: gender, groups: [female, male],"
        " population: {female: 0.5, male: 0.5}}}",
        '{"id": "t", "title": "mathematician"}\n{"id": "u", "title": "boxer"}\n',
        "t 0 1 1\nt 0 2 1\nt 0 9 0\nx 0 1 1\n",
    )
    for name, content in zip(NAMES, contents, strict=True):
        Path(name).write_text(content)


def run(*arguments: str) -> str:
    """Run a command; errors come out as they are, for the entry point to print."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def words(*arguments: str) -> list[list[str]]:
    return [line.split() for line in run(*arguments).splitlines()]


def test_a_collection_is_imported_listed_and_described() -> None:
    """As a newcomer would do it, one after the other."""
    assert words("list")[1:] == [["notables", "built", "in"]]
    shown = run("import", "jsonl", *NAMES, "--name", "mine").splitlines()
    assert shown[0].startswith("mine: imported into ")
    assert shown[1:] == [
        "  2 documents",
        "  2 topics, 4 judgements",
        "  1 judged documents are not among the documents; their judgements are kept",
    ]
    assert words("list")[1:] == [["notables", "built", "in"], ["mine", "jsonl", "2"]]
    described = run("info", "mine")
    assert "documents: 2\ntopics: 2\njudgements: 3\nrelevant documents: 2\n" in described
    assert "of a topic: 0 to 2, 1 in the median\n" in described
    assert "topics without a relevant document: u\n" in described
    assert "judged documents that the corpus lacks: 1\n" in described
    assert "judgements of no topic, which are ignored: 1\n" in described
    assert "gender: known for 50.0% of all, and for 1 of the relevant documents" in described
    rows = [line.split() for line in described.splitlines()]
    assert ["female", "50.00%", "50.00%", "50.00%", "75.00%"] in rows
    assert ["unknown", "50.00%", "50.00%", "–", "–"] in rows
    assert "target: the mean over 1 topics" in described


def test_json() -> None:
    """The same as data."""
    run("import", "jsonl", *NAMES, "--name", "mine")
    found = json.loads(run("info", "mine", "--json"))
    assert (found["documents"], found["relevant"]) == (2, [0, 1, 2])
    assert found["attributes"]["gender"]["target"] == {"female": 0.75, "male": 0.25}
    assert found["about"]["loader"] == "jsonl"
    (notables, mine) = json.loads(run("list", "--json"))
    assert (notables["kind"], mine["documents"], mine["splits"]) == ("built in", 2, [])


def test_a_collection_that_lost_a_file_is_listed_with_what_it_lacks(tmp_path: Path) -> None:
    run("import", "jsonl", *NAMES, "--name", "mine")
    (tmp_path / "data" / "collections" / "mine" / "qrels.txt").unlink()
    assert words("list")[2] == ["mine", "jsonl", "2", "it", "lacks", "qrels.txt"]
    (tmp_path / "data" / "collections" / "mine" / "collection.yaml").write_text("[")
    assert "is not valid YAML" in " ".join(run("list").split())


def test_files_cannot_steer_the_terminal() -> None:
    Path("topics.jsonl").write_text(
        '{"id": "t", "title": "x"}\n{"id": "u\\u001b[2J", "title": "x"}\n'
    )
    run("import", "jsonl", *NAMES, "--name", "mine")
    assert "topics without a relevant document: u [2J\n" in run("info", "mine")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("info", "nothing"), "There is no collection 'nothing'; there are notables"),
        (("info", "notables", "--split", "x"), "has no judgements 'x'; it has one set"),
        (("import", "nothing", "a", "--name", "b"), "There is no loader 'nothing'; there are"),
        (("import", "jsonl", "qrels.txt", "--name", "b"), "one file of documents"),
        (("import", "jsonl", *NAMES, "--name", "B"), "'B' cannot be the name of a collection"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(FairqrError) as caught:
        run(*arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_help_names_all_loaders() -> None:
    """It is written by hand, since the loaders load numpy."""
    from fairqr.evaluation.collections.finding import LOADERS

    command = typer.main.get_command(app)
    shown = command.commands["import"].params[0].help  # type: ignore[attr-defined]
    assert all(name in shown for name in LOADERS)
