"""``fairqr audit --probe``: what a model behind a real server does as a ranker."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.audited_people import (
    arguments,
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
    weighs,
)

__all__ = ["clean_environment", "model_server", "quick"]


@pytest.fixture
def asked(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch, model_server: ModelServer
) -> tuple[str, ...]:
    """The arguments of an audit of an index in which men come first, whose model is probed."""
    monkeypatch.chdir(clean_environment)
    write_people(80, secret_text)
    probed = ("--probe", "gender=female", "--set", "probed=7", "--set", "refined=0")
    return arguments(model_server, "-k", "8", "--depth", "10", *probed)


def for_women(asked: Asked) -> Answer:
    """Prefer people with high numbers, who are women."""
    said = "\n".join(message["content"] for message in asked.body["messages"])
    people = re.findall(r"\[(\d+)\] Person (\d+)", said)
    if people:
        order = sorted(people, key=lambda it: -int(it[1]))
        return says(" > ".join(f"[{place}]" for place, _ in order))
    first, second = re.findall(r"Person (\d+)", said)[-2:]
    likely = 0.9 if int(first) > int(second) else 0.1
    return weighs({"A": likely, "B": 1 - likely})


def test_a_model_that_leans_is_found_out(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(for_women)
    run = finished(quick, *asked)
    assert "a probe of 'openai:fake' on 7 queries, about 77 questions" in run.stderr
    found = found_in("out", "probe")
    # Of 8 documents 3 are women, so there are 3 pairs for each of 7 queries.
    assert (found["queries"], found["pairs"], found["protected_wins"]) == (7, 21, 21)
    assert (found["verdict"], found["words"]) == ("favours_protected", ["female", "male"])
    assert [it["asker"] for it in found["lists"]] == ["neutral", "unprotected", "protected"]
    assert all(it["value"] > 1.5 for it in found["lists"])
    assert "does as a ranker" in Path("out/report.md").read_text()
    verified_alone(quick, model_server)


def test_a_model_that_never_answers_ends_the_audit_and_it_goes_on(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(failure(401, "No such key."))
    assert quick(*asked, "-o", "out").code != 0
    assert not Path("out/audit.json").exists()
    model_server.does(for_women)
    finished(quick, *asked, "--redact")
    kept = Path("out/audit.json").read_text()
    assert json.loads(kept)["probe"]["pairs"] == 21
    assert quick("audit", "verify", "out").code == 0


def test_sides_and_the_model_are_checked_first(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    for given, said in (
        ("female", "is no side to probe"),
        ("size=small", "is no side to probe"),
        ("gender=green", "green"),
    ):
        wrong = (*(it.replace("gender=female", given) for it in asked), "-o", "out")
        assert said in quick(*wrong).complaint()
    at = asked.index("--model")
    assert "name one with --model" in quick(*asked[:at], *asked[at + 4 :], "-o", "out").complaint()
    assert not model_server.asked
