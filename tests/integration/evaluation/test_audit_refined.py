"""``fairqr audit --model``: what mending costs with the queries of a model behind a real server."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.audited_people import (
    WORDS,
    arguments,
    as_killed,
    finished,
    found_in,
    verified_alone,
    write_people,
)
from tests.integration.local_model import model_cache, pulled_weights
from tests.integration.model_server import (
    Main,
    ModelServer,
    clean_environment,
    failure,
    model_server,
    quick,
    says,
)

__all__ = ["clean_environment", "model_cache", "model_server", "pulled_weights", "quick"]

REPLY = says({"topic": [], "keywords": ["actress"], "drop": [], "reason": "They are women."})


@pytest.fixture
def asked(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch, model_server: ModelServer
) -> tuple[str, ...]:
    """The arguments of an audit of an index whose first results are men, with a model."""
    monkeypatch.chdir(clean_environment)
    write_people(160, gentlemen_first)
    return arguments(model_server, "-k", "4", "--depth", "8", "--set", "refined=7")


def gentlemen_first(word: str, number: int, is_man: bool) -> str:
    return " ".join([word] * (3 if is_man else 2)) + (" gentleman" if is_man else " actress")


def test_a_second_curve_stands_beside_the_first(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(REPLY)
    run = finished(quick, *asked)
    assert (
        "7 queries refined by 'openai:fake', up to 35 questions to it and 133 requests"
        in run.stderr
    )
    found = found_in("out", "refined")
    assert (found["queries"], found["refined"], found["failed"]) == (7, 7, 0)
    assert found["model_calls"] == len(model_server.asked) >= 7
    assert found["tokens"] == 110 * found["model_calls"]
    (cost,) = found["costs"]
    without, refined = cost["without"][-1], cost["refined"][-1]
    assert without["exposure"][0]["value"] == 0
    assert refined["exposure"][0]["value"] > 0.3
    assert cost["changes"][-1]["divergence"]["value"] < -0.5
    report = Path("out/report.md").read_text()
    assert "With the queries of 'openai:fake'" in report
    assert Path("out/figures/refined.svg").exists()
    assert "'openai:fake' was asked to refine 7 of 7 queries" in run.stdout.replace("\n", " ")
    replies = gzip.decompress(Path("out/raw/replies.jsonl.gz").read_bytes()).decode()
    assert "They are women." in replies
    verified_alone(quick, model_server)


def test_texts_are_kept_also_of_what_only_refined_queries_find(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(REPLY)
    # With judgements of men alone, only the model's words find women.
    Path("qrels").write_text("".join(f"{word} 0 d{n:03} 1\n" for n, word in enumerate(WORDS)))
    asked = (*asked, "--target", "uniform:1")
    finished(quick, *asked, "--keep-texts")

    def lines(name: str) -> list[dict[str, Any]]:
        packed = Path(f"out/raw/{name}.jsonl.gz").read_bytes()
        return [json.loads(line) for line in gzip.decompress(packed).splitlines()]

    by_the_engine = {id_ for it in lines("observations") for id_ in (*it["ids"], *it["others"])}
    refined = {id_ for it in lines("refinements") for id_ in it["ids"]}
    assert refined - by_the_engine
    texts = {it["id"]: it["text"] for it in lines("texts")}
    assert texts.keys() == by_the_engine | refined
    assert {texts[id_].split()[-1] for id_ in refined - by_the_engine} == {"actress"}
    assert quick("audit", "verify", "out").code == 0
    refused = quick(*asked, "-o", "other", "--keep-texts", "--redact")
    assert refused.code == 2
    assert "leave out either --redact or --keep-texts" in refused.stderr.replace("\n", " ")
    assert not Path("other").exists()


def test_an_audit_that_goes_on_refines_only_what_is_missing(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(REPLY)
    finished(quick, *asked)
    as_killed("refinements", 3)
    model_server.does(REPLY)
    run = finished(quick, *asked, folder="half")
    assert "4 queries refined" in run.stderr
    assert 4 <= len(model_server.asked) < found_in("out", "refined")["model_calls"]
    assert Path("half/audit.json").read_bytes() == Path("out/audit.json").read_bytes()


def test_a_model_that_never_answers_leaves_an_audit_without_its_curve(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(failure(401, "No such key."))
    run = finished(quick, *asked, "--redact")
    assert "The audit goes on without refined queries." in run.stderr
    found = found_in("out", "refined")
    assert (found["failed"], found["too_many_failed"], found["costs"]) == (7, True, [])
    assert "is not known: the model or the search failed" in run.stdout.replace("\n", " ")
    assert json.loads(Path("out/audit.json").read_text())["costs"]
    assert quick("audit", "verify", "out").code == 0


def test_a_model_that_says_nothing_of_use_changes_nothing(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(says({"topic": [], "keywords": ["zeppelin"], "drop": [], "reason": ""}))
    run = finished(quick, *asked)
    found = found_in("out", "refined")
    assert (found["refined"], found["found"], found["failed"]) == (7, 0, 0)
    assert "change nothing" in run.stdout


def test_words_of_a_redacted_audit_are_nowhere(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(REPLY)
    finished(quick, *asked, "--redact")
    assert not Path("out/raw/replies.jsonl.gz").exists()
    for path in Path("out").rglob("*"):
        if path.is_file():
            held = path.read_bytes()
            held = gzip.decompress(held) if path.suffix == ".gz" else held
            assert b"actress" not in held, path
    assert quick("audit", "verify", "out").code == 0


@pytest.mark.model
def test_the_local_model_refines(
    asked: tuple[str, ...], quick: Main, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("model_cache")  # after the clean environment
    at = asked.index("--model")
    local = (*asked[:at], "--model", "local:smollm2-135m", "-o", "out")
    run = quick(*(it.replace("refined=7", "refined=1") for it in local))
    assert run.code == 0, run.stderr
    found = found_in("out", "refined")
    assert (found["queries"], found["refined"] + found["failed"]) == (1, 1)
    assert found["model_calls"] >= 1
    assert quick("audit", "verify", "out").code == 0
