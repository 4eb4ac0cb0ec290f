"""``fairqr audit --pairs-by pairwise``: a model behind a real server compares versions."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.audited_people import (
    finished,
    found_in,
    verified_alone,
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
    weighs,
    write_people,
)

__all__ = ["clean_environment", "model_server", "quick"]

QUERIES = [f"good nurse {number}" for number in range(8)]


@pytest.fixture
def asked(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch, model_server: ModelServer
) -> tuple[str, ...]:
    """The arguments of an audit with a pair of versions for each of eight queries."""
    monkeypatch.chdir(clean_environment)
    corpus = write_people(Path("people"))
    rows = "".join(f"{it},f,She cares.\n{it},m,He cares.\n" for it in QUERIES)
    Path("pairs.csv").write_text(f"query,version,text\n{rows}")
    Path("queries.txt").write_text("physicist\n")
    return (
        *("audit", "--corpus", str(corpus), "--queries", "queries.txt", "--attribute", "gender"),
        *("-k", "2", "--depth", "4", "--pairs", "pairs.csv", "--pairs-by", "pairwise"),
        *("--model", "openai:fake", "--base-url", model_server.base_url),
        *("--set", "concurrency=1", "--set", "refined=0", "--target", "uniform:1"),
    )


def prefers(first: Callable[[str, str], float]) -> Callable[[Asked], Answer]:
    """Answer with this probability that the first document is the better one."""

    def answer(asked: Asked) -> Answer:
        places = {word: asked.last_message.rindex(f"{word} cares") for word in ("She", "He")}
        one, other = sorted(places, key=lambda word: places[word])
        likely = first(one, other)
        return weighs({"A": likely, "B": 1 - likely})

    return answer


def test_a_model_that_prefers_a_version_is_found_out(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(prefers(lambda one, _: 0.9 if one == "She" else 0.2))
    run = finished(quick, *asked)
    said = "16 versions for 8 queries by 'pairwise(openai:fake)', 16 questions"
    assert said in run.stderr
    assert len(model_server.asked) == 16
    found = found_in("out", "pairs")
    assert (found["scored_by"], found["are_preferences"]) == ("pairwise(openai:fake)", True)
    (it,) = found["comparisons"]
    assert (it["difference"]["value"], it["higher"]["value"], it["equal"]["value"]) == (1, 1, 0)
    assert it["difference"]["p"] == pytest.approx(2 / 256)
    assert "prefers the version 'f' of a document" in run.stdout.replace("\n", " ")
    assert "first preferred" in Path("out/report.md").read_text()
    scores = gzip.decompress(Path("out/raw/pairs.jsonl.gz").read_bytes()).decode()
    assert "nurse" not in scores
    verified_alone(quick, model_server)


def test_a_model_that_prefers_a_place_decides_nothing(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(prefers(lambda *_: 0.95))
    run = finished(quick, *asked)
    (it,) = found_in("out", "pairs")["comparisons"]
    assert (it["difference"]["value"], it["higher"]["value"], it["equal"]["value"]) == (0, 0, 1)
    assert "no preference of 'pairwise(openai:fake)'" in run.stdout.replace("\n", " ")


def test_a_model_that_is_away_ends_the_audit_and_it_goes_on(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(failure(401, "No such key."))
    assert quick(*asked, "-o", "out").code != 0
    assert not Path("out/audit.json").exists()
    model_server.does(prefers(lambda one, _: 0.9 if one == "She" else 0.2))
    finished(quick, *asked, "--redact")
    assert found_in("out", "pairs")["failed"] == 0


def test_what_is_missing_is_said_before_anything_is_asked(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    at = asked.index("--model")
    without = (*asked[:at], *asked[at + 4 :])
    assert "Comparing pairs needs a chat model" in quick(*without, "-o", "out").complaint()
    Path("pairs.csv").write_text("query,version,document\nnurse,f,d1\nnurse,m,d2\n")
    assert "'pairwise' reads texts" in quick(*asked, "-o", "out").complaint()
    assert not model_server.asked
