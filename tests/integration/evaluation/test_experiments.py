"""Experiments by the command: killed, resumed, reported, on real collections."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from fairqr.evaluation.qrels import write_qrels
from tests.patience import PATIENCE
from tests.servers.model_server import Answer, Command, Main, ModelServer, failure, says
from tests.unit.evaluation.collections.official import lines
from tests.unit.evaluation.experiments import small

TITLES = ("physicist", "physicist workshop", "physicist Berlin", "physicist laboratory")
SYSTEMS: list[dict[str, Any]] = [
    {"name": "BM25", "method": "baseline"},
    {"name": "ours, no refinement", "settings": {"max_iterations": 0}},
    {"name": "ours", "settings": {"ask": "always", "groups": "all", "max_iterations": 1}},
    {"name": "FAIR-QR", "method": "fair-qr"},
]


@pytest.fixture
def collection(people: Path) -> Path:
    """The people of the other tests, with topics and judgements."""
    folder = people.parent
    topics = {f"q{number}": title for number, title in enumerate(TITLES)}
    lines(folder / "topics.jsonl", ({"id": it, "title": topics[it]} for it in topics))
    write_qrels(
        folder / "qrels.txt", {it: {f"p{n:02}": 1 for n in range(0, 60, 2)} for it in topics}
    )
    return folder


def write_experiment(collection: Path, **changes: Any) -> Path:
    values = {"collection": str(collection), "model": "openai:fake", "systems": SYSTEMS, **changes}
    return small.write_experiment(collection.parent / "small.yaml", **values)


@pytest.mark.promise("evaluation")
def test_a_killed_run_goes_on_and_asks_nothing_twice(
    command: Command, quick: Main, collection: Path, model_server: ModelServer
) -> None:
    """A killed experiment goes on, and asks no model twice.

    kill -9 while the model is silent: what it had answered is never asked again.
    """
    folder, results = collection.parent / "run", collection.parent / "run" / "results.jsonl"
    asked, server = write_experiment(collection), {"OPENAI_BASE_URL": model_server.base_url}
    arguments = ("experiment", "run", asked, "-o", folder, "--concurrency", "1")
    answer = says({"topic": ["physics"], "keywords": ["woman", "laboratory"]})
    model_server.does(*[answer] * 6, Answer(never=True))
    child = command.start(*arguments, **server)
    model_server.wait_for(9)
    # One search at a time, three questions each: the third search asks when two are done.
    assert quick(*arguments, **server).complaint() == (
        f"Another process runs the experiment in {folder}; wait for it to end."
    )
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=PATIENCE)
    before, kept = _questions(model_server), results.read_bytes()
    assert (len(before), kept.count(b"\n")) == (9, 2)  # what asks comes first
    results.write_bytes(kept + b'{"attribute": "gender", "queries": "ti')

    model_server.does(answer)
    resumed = quick(*arguments, **server)
    assert resumed.code == 0, resumed
    after, whole = _questions(model_server), results.read_bytes()
    assert after, "there was more to ask"
    assert len({*before[:6], *after}) == 6 + len(after)
    assert whole.startswith(kept)
    assert whole.count(b"\n") == 4 * 4

    model_server.does(answer)
    done = quick(*arguments, **server)
    assert done.code == 0, done
    assert not re.search(r"[0-9] of [0-9]+ done", done.stderr), "nothing is opened to do nothing"
    assert not model_server.asked
    assert results.read_bytes() == whole

    # Another run from the beginning, never killed, has the same rankings.
    assert quick(*arguments[:4], collection.parent / "whole", **server).code == 0
    assert _rankings(collection.parent / "whole") == _rankings(folder)
    (collection / "topics.jsonl").write_text('{"id": "q0", "title": "other"}\n')
    assert "have changed since" in quick("experiment", "report", folder).complaint()


def _questions(server: ModelServer) -> list[str]:
    return [json.dumps(asked.body["messages"]) for asked in server.asked]


def _rankings(folder: Path) -> dict[str, list[str]]:
    records = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return {f"{record['system']} {record['topic']}": record["ids"] for record in records}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (failure(401, "Wrong key."), "refused the API key (401: Wrong key)"),
        (failure(404, "Gone."), "(404: Gone)"),
        (Answer(body=b"<html>", content_type="text/html"), "did not send a chat completion"),
    ],
)
def test_a_model_that_is_away_leaves_no_result(
    quick: Main, collection: Path, model_server: ModelServer, answer: Answer, told: str
) -> None:
    """The run ends and keeps what asked no model; with the right key it goes on.

    Nor does who was there for one question and is away for the next leave a result.
    """
    model_server.does(answer)
    folder = collection.parent / "run"
    arguments = ("experiment", "run", write_experiment(collection), "-o", folder, "--report")
    run = quick(*arguments, OPENAI_BASE_URL=model_server.base_url)
    assert run.code == 2
    assert "openai:fake did not answer any question" in run.stderr.splitlines()[-1]
    assert told in run.stderr.splitlines()[-1]
    assert {key.rpartition(" ")[0] for key in _rankings(folder)} == {"BM25", "ours, no refinement"}
    model_server.does(says("I would rather not."), answer)
    assert quick(*arguments, OPENAI_BASE_URL=model_server.base_url).code == 2
    assert not {key for key in _rankings(folder) if key.startswith("ours ")}
    model_server.does(says("I would rather not."))
    assert quick(*arguments, OPENAI_BASE_URL=model_server.base_url).code == 0
    assert len(_rankings(folder)) == 4 * 4
    report = (folder / "report.md").read_text()
    assert report.count("| model failed |") == 1
    assert re.search(r"\n\| ours \| gender \| title \|( 0 \|)* 4 \|", report)
    assert "openai:fake gave no usable reply" in report
