"""``fairqr audit --probe``: what a model behind a real server does as a ranker."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

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

WORDS = ["apple", "birch", "cedar", "daisy", "elder", "fennel", "grape", "hazel"]


@pytest.fixture
def asked(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch, model_server: ModelServer
) -> tuple[str, ...]:
    """The arguments of an audit of an index in which men come first, whose model is probed."""
    monkeypatch.chdir(clean_environment)
    lines = []
    for number in range(80):
        word, is_man = WORDS[number % 8], number < 40
        text = " ".join([word] * (3 if is_man else 1)) + f" secret{number}"
        person = {"id": f"d{number:02}", "title": f"Person {number}", "text": text}
        lines.append(json.dumps(person | {"gender": "male" if is_man else "female"}))
    Path("people.jsonl").write_text("\n".join(lines) + "\n")
    Path("people.schema.yaml").write_text(
        "attributes:\n  gender: {field: gender, groups: [female, male]}\n"
    )
    Path("queries.txt").write_text("".join(f"{word}\n" for word in WORDS))
    judged = "".join(f"{WORDS[number % 8]} 0 d{number:02} 1\n" for number in range(80))
    Path("qrels").write_text(judged)
    Path("queries.csv").write_text("id,query\n" + "".join(f"{w},{w}\n" for w in WORDS))
    return (
        *("audit", "--corpus", "people.jsonl", "--queries", "queries.csv", "--qrels", "qrels"),
        *("-k", "8", "--depth", "10", "--probe", "gender=female", "--set", "probed=7"),
        *("--model", "openai:fake", "--base-url", model_server.base_url),
        *("--set", "concurrency=1"),
    )


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
    run = quick(*asked, "-o", "out")
    assert run.code == 0, run.stderr
    assert "a probe of 'openai:fake' on 7 queries, about 77 questions" in run.stderr
    found = json.loads(Path("out/audit.json").read_text())["probe"]
    # Of 8 documents 3 are women, so there are 3 pairs for each of 7 queries.
    assert (found["queries"], found["pairs"], found["protected_wins"]) == (7, 21, 21)
    assert (found["verdict"], found["words"]) == ("favours_protected", ["female", "male"])
    assert [it["asker"] for it in found["lists"]] == ["neutral", "unprotected", "protected"]
    assert all(it["value"] > 1.5 for it in found["lists"])
    assert "does as a ranker" in Path("out/report.md").read_text()
    model_server.does(failure(500))
    assert quick("audit", "verify", "out").code == 0
    assert not model_server.asked


def test_a_model_that_never_answers_ends_the_audit_and_it_goes_on(
    asked: tuple[str, ...], quick: Main, model_server: ModelServer
) -> None:
    model_server.does(failure(401, "No such key."))
    assert quick(*asked, "-o", "out").code != 0
    assert not Path("out/audit.json").exists()
    model_server.does(for_women)
    assert quick(*asked, "-o", "out", "--redact").code == 0
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
