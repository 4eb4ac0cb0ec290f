"""``fairqr audit --answers``: a model behind a real server, kept replies, and what is verified."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.integration.audited_people import (
    WORDS,
    arguments,
    as_killed,
    finished,
    found_in,
    secret_text,
    verified_alone,
    write_people,
)
from tests.integration.model_server import (
    Answer,
    Asked,
    Main,
    ModelServer,
    clean_environment,
    failure,
    model_server,
    quick,
    says,
)

__all__ = ["clean_environment", "model_server", "quick"]


@pytest.fixture
def asked(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch, model_server: ModelServer
) -> tuple[str, ...]:
    """The arguments of an audit of an index in which men come first, with five answers."""
    monkeypatch.chdir(clean_environment)
    write_people(80, secret_text)
    read = ("--answers", "8", "--set", "read=6", "--set", "refined=0")
    return arguments(model_server, "-k", "8", "--depth", "10", *read)


def answering(asked: Asked) -> Answer:
    """Answer in the words of the last document that is read, and name the first one."""
    question = asked.body["messages"][-1]["content"]
    last = question.split("[6]")[1].split("</documents>")[0].split(":", 1)[1]
    return says(f"{' '.join(last.split())} [1].")


def test_retrieved_read_cited_and_used_by_group(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(answering)
    run = finished(quick, *asked)
    assert "at most 8 questions for 'openai:fake', each with 6 documents" in run.stderr
    assert len(model_server.asked) == 8
    found = found_in("out", "answers")
    assert (found["answered"], found["citing"], found["unjudged"]) == (8, 8, 0)
    female, male = found["groups"]
    # Of 8 documents shown 5 are men, who come first; 6 are read; the first is cited; the sixth,
    # a woman, is used.
    assert female["retrieved"]["value"] == pytest.approx(3 / 8)
    assert female["read"]["value"] == pytest.approx(1 / 6)
    assert (female["cited"]["value"], male["cited"]["value"]) == (0, 1)
    assert (female["used"]["value"], male["used"]["value"]) == (1, 0)
    assert "Whose documents answers use" in Path("out/report.md").read_text()
    assert Path("out/answers.csv").read_text().startswith("attribute,group,retrieved,")
    assert "secret" in gzip.decompress(Path("out/raw/replies.jsonl.gz").read_bytes()).decode()
    verified_alone(quick, model_server)


def test_questions_that_a_model_refuses_are_counted(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(answering, answering, answering, failure(400, "Too long."))
    finished(quick, *asked)
    written = found_in("out", "answers")
    assert (written["answered"], written["failed"]) == (3, 5)
    assert "it failed for 5" in Path("out/report.md").read_text()
    assert quick("audit", "verify", "out").code == 0


def test_a_model_that_never_answers_ends_the_audit_and_the_queries_are_kept(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(failure(401, "No such key."))
    assert quick(*asked, "-o", "out").code != 0
    assert not Path("out/audit.json").exists()
    model_server.does(answering)
    run = finished(quick, *asked)
    assert "8 queries for" not in run.stderr
    assert len(model_server.asked) == 8


def test_answers_that_go_on_ask_only_what_is_missing(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(answering)
    finished(quick, *asked)
    as_killed("answers", 3)
    model_server.does(answering)
    finished(quick, *asked, folder="half")
    assert len(model_server.asked) == 5
    assert Path("half/audit.json").read_bytes() == Path("out/audit.json").read_bytes()


def test_documents_without_texts_are_no_sources(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    Path("own.run").write_text(
        "".join(f"{w} Q0 d{n:03} {n + 1} {80 - n} own\n" for w in WORDS for n in range(10))
    )
    Path("labels.csv").write_text(
        "id,gender\n" + "".join(f"d{n:03},{'male' if n < 5 else 'female'}\n" for n in range(80))
    )
    of_run = ("--run", "own.run", "--labels", "labels.csv", "--attribute", "gender")
    run = quick("audit", *of_run, *asked[3:], "-o", "out")
    assert run.code == 2
    assert "gives no texts, so a model has nothing to read" in run.stderr
    assert not model_server.asked


def test_redacted_answers_name_no_query_and_keep_no_reply(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(answering)
    finished(quick, *asked, "--redact")
    kept = gzip.decompress(Path("out/raw/answers.jsonl.gz").read_bytes()).decode()
    assert not any(word in kept for word in WORDS)
    assert not Path("out/raw/replies.jsonl.gz").exists()
    assert quick("audit", "verify", "out").code == 0


def test_what_is_missing_is_said_before_anything_is_asked(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    at = asked.index("--model")
    without = (*asked[:at], *asked[at + 4 :])
    assert "name one with --model" in quick(*without, "-o", "out").complaint()
    at = asked.index("--answers")
    no_answers = (*asked[:at], *asked[at + 2 :])
    assert "it is to refine no queries" in quick(*no_answers, "-o", "out").complaint()
    many = (*(it.replace("read=6", "read=9") for it in asked), "-o", "out")
    assert "The model is to read 9 documents" in quick(*many).complaint()
    assert not Path("out").exists()
    assert not model_server.asked
