"""Experiments by the command: killed, resumed, reported, on real collections."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.model_server import (
    Answer,
    Command,
    Main,
    ModelServer,
    clean_environment,
    command,
    failure,
    model_server,
    people,
    quick,
    says,
)
from tests.patience import PATIENCE
from tests.unit.evaluation.experiments import small

__all__ = ["clean_environment", "command", "model_server", "people", "quick"]

TITLES = ("physicist", "physicist workshop", "physicist Berlin", "physicist laboratory")


@pytest.fixture
def collection(people: Path) -> Path:
    """The people of the other tests, with topics and judgements."""
    folder = people.parent
    topics = [{"id": f"q{number}", "title": title} for number, title in enumerate(TITLES)]
    (folder / "topics.jsonl").write_text("".join(json.dumps(topic) + "\n" for topic in topics))
    judged = [f"{topic['id']} 0 p{n:02} 1" for topic in topics for n in range(0, 60, 2)]
    (folder / "qrels.txt").write_text("\n".join(judged) + "\n")
    return folder


def write_experiment(collection: Path, **changes: Any) -> Path:
    systems: list[dict[str, Any]] = [
        {"name": "BM25", "method": "plain"},
        {"name": "ours, no refinement", "settings": {"max_iterations": 0}},
        {"name": "ours", "settings": {"ask": "always", "groups": "all"}},
        {"name": "FAIR-QR", "method": "fair-qr"},
    ]
    values = {"collection": str(collection), "model": "openai:fake", "systems": systems, **changes}
    return small.write_experiment(collection.parent / "small.yaml", **values)


def _questions(server: ModelServer) -> list[str]:
    return [json.dumps(asked.body["messages"]) for asked in server.asked]


def test_a_killed_run_goes_on_and_asks_nothing_twice(
    command: Command, collection: Path, model_server: ModelServer
) -> None:
    """kill -9 while the model is silent: what it had answered is never asked again."""
    asked = write_experiment(collection)
    folder = collection.parent / "run"
    arguments = ("experiment", "run", asked, "-o", folder, "--concurrency", "1")
    server = {"OPENAI_BASE_URL": model_server.base_url}
    answer = says({"keywords": ["woman", "laboratory"]})
    model_server.does(answer, answer, answer, answer, Answer(never=True))
    child = command.start(*arguments, **server)
    model_server.wait_for(6)
    # One search at a time, two questions a round: the third search asks when two are done.
    second = command(*arguments, **server)
    assert second.complaint() == (
        f"Another process runs the experiment in {folder}; wait for it to end."
    )
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=PATIENCE)
    before = _questions(model_server)
    assert len(before) == 6
    kept = (folder / "results.jsonl").read_bytes()
    assert kept.count(b"\n") == 4 + 4 + 2
    with (folder / "results.jsonl").open("ab") as lines:
        lines.write(b'{"attribute": "gender", "queries": "ti')

    model_server.does(answer)
    resumed = command(*arguments, **server)
    assert resumed.code == 0, resumed
    after = _questions(model_server)
    assert after, "there was more to ask"
    assert not set(before[:4]) & set(after)
    assert len(set(after)) == len(after)
    results = (folder / "results.jsonl").read_bytes()
    assert results.startswith(kept)
    assert results.count(b"\n") == 4 * 4

    model_server.does(answer)
    done = command(*arguments, **server)
    assert done.code == 0, done
    assert not re.search(r"[0-9] of [0-9]+ done", done.stderr), "nothing is opened to do nothing"
    assert not model_server.asked
    assert (folder / "results.jsonl").read_bytes() == results

    # Another run from the beginning, never killed, has the same rankings.
    whole = command(*arguments[:4], collection.parent / "whole", **server)
    assert whole.code == 0, whole
    assert _rankings(collection.parent / "whole") == _rankings(folder)

    write_experiment(collection, target="uniform:1")
    assert command(*arguments, **server).complaint() == (
        f"The folder {folder} holds a run with another experiment (target); "
        "choose another folder, or remove this one."
    )
    (collection / "topics.jsonl").write_text('{"id": "q0", "title": "other"}\n')
    assert "have changed since the experiment was run" in (
        command("experiment", "report", folder).complaint()
    )


def _rankings(folder: Path) -> dict[str, list[str]]:
    records = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return {f"{record['system']} {record['topic']}": record["ids"] for record in records}


def test_a_wrong_key_is_no_result_and_odd_answers_are_counted(
    quick: Main, collection: Path, model_server: ModelServer
) -> None:
    """The run ends and keeps what asked no model; with the right key it goes on."""
    model_server.does(failure(401, "Wrong key."))
    folder = collection.parent / "run"
    arguments = ("experiment", "run", write_experiment(collection), "-o", folder)
    server = {"OPENAI_BASE_URL": model_server.base_url}
    run = quick(*arguments, **server)
    sentence = run.stderr.splitlines()[-1]
    assert run.code == 2
    assert "openai:fake did not answer any question" in sentence
    assert "refused the API key (401)" in sentence
    assert {key.rpartition(" ")[0] for key in _rankings(folder)} == {"BM25", "ours, no refinement"}
    model_server.does(says("I would rather not."))
    assert quick(*arguments, "--report", **server).code == 0
    assert len(_rankings(folder)) == 4 * 4
    report = (folder / "report.md").read_text()
    assert report.count("| model failed |") == 1
    assert re.search(r"\n\| ours \| gender \| title \|( 0 \|)* 4 \|", report)
    assert "openai:fake gave no usable reply" in report


@pytest.mark.parametrize("name", ["prompts", "iterations"])
def test_a_shipped_experiment_on_notables(quick: Main, clean_environment: Path, name: str) -> None:
    folder = clean_environment / "run"
    arguments = ("--set", "topics=6", "--set", "attributes=gender", "--model", "feedback")
    run = quick("experiment", "run", name, "-o", folder, *arguments, "--report")
    assert run.code == 0, run
    written = [Path(line.removeprefix("written: ")) for line in run.stdout.splitlines()]
    figures = [f"figures/{it}-gender-title.svg" for it in ("exposure", "divergence", "drift")]
    names = ["report.md", "report.html", *figures, "measures.csv"]
    assert [str(path.relative_to(folder)) for path in written] == names
    assert all(path.stat().st_size > 1000 for path in written)
    text = written[0].read_text()
    for heading in ("In short", "Results", "Rounds", "Drift from the topic", "Cost"):
        assert f"\n## {heading}\n" in text
    assert "Measured for gender on 6 topics of " in text
    assert re.search(r"\| BM25 \| (\*\*)?[01]\.\d{4}(\*\*)? \*\\\[", text)
