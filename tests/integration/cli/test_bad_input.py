"""Bad input: one clear sentence, exit code 2, no traceback, and nothing half written."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.patience import until
from tests.servers.model_server import Command, Main, write_people

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_bytes_that_are_no_text_come_from_a_real_command_line(command: Command) -> None:
    complaint = command("index", "remove", "demo", "\udcff").complaint()
    assert complaint == "The argument '\\xff' is not valid UTF-8; correct or rename it."


@pytest.mark.promise("command")
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--corpus nonesuch", "There is no index 'nonesuch'; 'fairqr index create NAME PATH"),
        ("--attribute height", "no attribute 'height'; it has gender, continent"),
        ("--target gender=robot:0.5,male:0.5", "the group 'robot'"),
        ("--target gender=female:0.5,male:0.6", "must sum to 1, not 1.1"),
        ("-k 0", "'k' is wrong: Input should be greater than or equal to 1"),
        ("--method magic", "should be 'fairqr', 'fair-qr', 'baseline'"),
        ("--method deltr", "The option 'weights' of deltr is wrong: Field required"),
        ("--method listwise", "The ranker listwise asks a language model, but none is given"),
        ("--set patience", "'patience' has no value; write NAME=VALUE."),
        ("--set patiense=2", "no parameter 'patiense'; did you mean patience?"),
        ("-k 5 --set k=6", "'k' is set twice; set it once"),
        ("--set prompts.refine=v99", "There is no prompt refine/v99; choose one of"),
        ("--set prompts_dir=/nonexistent", "of prompts /nonexistent does not exist"),
        ("--trace /nonexistent/trace", "cannot be written: No such file or directory"),
        ("--model gpt-4o", "names no provider; write provider:model, such as openai:gpt-4o"),
        ("--model feedbak", "names no provider; did you mean 'feedback'?"),
        ("--model opnai:gpt-4o", "nobody knows this provider; did you mean 'openai'?"),
        ("--target populaton", "is not a target; did you mean 'population:1'?"),
        ("--model local:nonesuch", "No embedded language model is called 'nonesuch'"),
        ("--model local:smollm2-135m", "fairqr models pull smollm2-135m"),
    ],
)
def test_a_wrong_option_is_refused(quick: Main, people: Path, more: str, words: str) -> None:
    """A wrong option ends with one sentence and exit code 2, without a traceback.

    Each wrong value is named, with what is allowed.
    """
    usual = ("--corpus", people, "--attribute", "gender", "--model", "feedback", "--json")
    assert words in quick("search", "physicist", *usual, *more.split()).complaint()


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
    # And no empty lists.
    assert found == "No document matches the query.\nFound by words alone.\n"
    refused = quick("answer", *asked[1:], "--model", "openai:fake")
    assert refused.code == 2
    assert "matches the query" in refused.stderr


@pytest.mark.promise("base")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_costs_the_trace_and_not_the_result(quick: Main, people: Path) -> None:
    """A full disk costs the trace and a sentence, and never the result.

    The search has been paid for; its result is printed.
    """
    run = quick(
        *("search", "physicist", "--corpus", people, "--attribute", "gender", "-k", "5"),
        *("--model", "feedback", "--json", "--trace", "/dev/full"),
    )
    assert (run.code, len(run.result["ranking"])) == (0, 5)
    assert run.stderr == "fairqr: The trace /dev/full is incomplete: No space left on device.\n"


@pytest.mark.promise("labels")
def test_a_search_that_is_interrupted_while_it_indexes(command: Command, tmp_path: Path) -> None:
    """A build of an index that is interrupted leaves no half of one.

    It leaves nothing; the next search makes the index and finds all.
    """
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
    # The system may give a signal to any thread, and the main one waits for the index.
    os.kill(max(map(int, os.listdir(f"/proc/{child.pid}/task"))), signal.SIGINT)
    stdout, stderr = child.communicate(timeout=30)  # it does not go on indexing
    assert (child.returncode, stdout, stderr) == (130, "", "fairqr: interrupted\n")
    left = [it for it in (tmp_path / "data").rglob("*") if it.is_file() and it.suffix != ".lock"]
    assert left == []
    corpus.write_text(few)
    found = command(*asked)
    assert found.code == 0, found
    assert len(found.result["ranking"]) == 5
