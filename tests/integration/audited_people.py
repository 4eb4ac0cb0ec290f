"""Audits of a small index in which men come first, by the command and with a model."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.model_server import Main, ModelServer, Run, failure

__all__ = [
    "WORDS",
    "arguments",
    "as_killed",
    "finished",
    "found_in",
    "secret_text",
    "verified_alone",
    "write_people",
]

WORDS = ["apple", "birch", "cedar", "daisy", "elder", "fennel", "grape", "hazel"]
"""The queries. Each finds an eighth of the people, who are all relevant."""


def write_people(count: int, text: Callable[[str, int, bool], str]) -> None:
    """Write the index, queries and judgements into the working directory.

    Args:
        count: How many people; the first half are men.
        text: Returns the text of a person, from the word that finds it, the number, and whether it
            is a man.
    """
    people, judged = [], []
    for number in range(count):
        word, is_man, id_ = WORDS[number % 8], number < count // 2, f"d{number:03}"
        person = {"id": id_, "title": f"Person {number}", "text": text(word, number, is_man)}
        people.append(json.dumps(person | {"gender": "male" if is_man else "female"}) + "\n")
        judged.append(f"{word} 0 {id_} 1\n")
    Path("people.jsonl").write_text("".join(people))
    Path("people.schema.yaml").write_text(
        "attributes:\n  gender: {field: gender, groups: [female, male]}\n"
    )
    Path("qrels").write_text("".join(judged))
    Path("queries.csv").write_text("id,query\n" + "".join(f"{w},{w}\n" for w in WORDS))


def secret_text(word: str, number: int, is_man: bool) -> str:
    """Return a text that ranks men first, with a word of its own."""
    return " ".join([word] * (3 if is_man else 1)) + f" secret{number}"


def arguments(server: ModelServer, *options: str) -> tuple[str, ...]:
    """Return the arguments of an audit of these people that asks a model one thing at a time."""
    return (
        *("audit", "--corpus", "people.jsonl", "--queries", "queries.csv", "--qrels", "qrels"),
        *(*options, "--set", "concurrency=1"),
        *("--model", "openai:fake", "--base-url", server.base_url),
    )


def finished(quick: Main, *asked: str, folder: str = "out") -> Run:
    """Carry out an audit to its end."""
    run = quick(*asked, "-o", folder)
    assert run.code == 0, run.stderr
    return run


def found_in(folder: str, part: str) -> dict[str, Any]:
    """Return the figures of a part of an audit."""
    found: dict[str, Any] = json.loads(Path(folder, "audit.json").read_text())[part]
    return found


def verified_alone(quick: Main, server: ModelServer) -> None:
    """Verify an audit, which asks no model."""
    server.does(failure(500))
    assert quick("audit", "verify", "out").code == 0
    assert not server.asked


def as_killed(part: str, records: int) -> None:
    """Copy an audit as a kill leaves it: with some records of a part, and nothing packed."""
    shutil.copytree("out", "half")
    manifest = json.loads(Path("half/manifest.json").read_text())
    Path("half/manifest.json").write_text(json.dumps(manifest | {"finished": "", "files": {}}))
    for name, kept in (("observations", len(WORDS)), (part, records)):
        packed = Path(f"half/raw/{name}.jsonl.gz").read_bytes()
        lines = gzip.decompress(packed).splitlines(keepends=True)
        Path(f"half/raw/{name}.jsonl").write_bytes(b"".join(lines[:kept]))
