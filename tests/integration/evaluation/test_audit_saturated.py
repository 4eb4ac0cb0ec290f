"""An audit of an index in which whole groups stand below all that one looks at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.attached_people import Server
from tests.integration.evaluation.cvs import SCHEMA, SKILLS, cvs, write
from tests.integration.model_server import Main, clean_environment, quick

__all__ = ["clean_environment", "quick"]

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "audited-cvs"
CVS = cvs()
OF_EACH = {job: [cv for cv in CVS.values() if cv["occupation"] == job] for job in SKILLS}
DUE = sum(sum(cv["age"] >= 50 for cv in of) / len(of) for of in OF_EACH.values()) / len(OF_EACH)
"""The share of people from fifty among the relevant ones, by hand."""


@pytest.fixture(scope="module")
def server(elasticsearch_url: str) -> Iterator[Server]:
    held = Server(elasticsearch_url)
    text = {"type": "text"}
    mapping = {"properties": {"title": text, "text": text, "age": {"type": "integer"}}}
    with held.client, held.index(INDEX, CVS, mapping, number_of_shards=1):
        yield held


@pytest.fixture
def audited(clean_environment: Path, server: Server, quick: Main) -> Any:
    """Audits the index with these arguments and returns its figures by group."""
    source = {
        "name": "cvs",
        "engine": "elasticsearch",
        "url": server.url,
        "index": INDEX,
        "title": "title",
        "text": ["text"],
        "body": {"size": "{{size}}", "query": {"match": {"title": "{{query}}"}}},
        **SCHEMA,
    }
    (clean_environment / "cvs.yaml").write_text(json.dumps(source))
    write(clean_environment / "cvs")

    def audit(*arguments: str, **environment: str) -> Any:
        out = clean_environment / "out"
        done = quick(
            *("audit", "--corpus", clean_environment / "cvs.yaml"),
            *("--queries", clean_environment / "cvs/queries.tsv", "-o", out, *arguments),
            **environment,
        )
        assert done.code == 0, done.stderr
        found = json.loads((out / "audit.json").read_text())
        return done, {group["group"]: group for group in found["groups"]}

    return audit


def test_nobody_over_fifty_is_shown_and_judgements_say_so(
    audited: Any, clean_environment: Path
) -> None:
    _, groups = audited("--qrels", str(clean_environment / "cvs/qrels.txt"))
    old = groups["from 50"]
    assert old["exposure"]["value"] == 0
    assert old["lean"]["value"] == pytest.approx(DUE, abs=1e-6)
    assert old["verdict"] == "less"


@pytest.mark.model
def test_estimates_look_until_relevance_falls_and_say_so_too(
    audited: Any, minilm_cache: Path
) -> None:
    _, groups = audited(FAIRQR_CACHE_DIR=str(minilm_cache))
    old = groups["from 50"]
    assert old["exposure"]["value"] == 0
    assert old["lean"]["value"] == pytest.approx(DUE, abs=0.02)
    assert old["verdict"] == "less"


@pytest.mark.model
def test_who_does_not_look_so_far_cannot_tell(audited: Any, minilm_cache: Path) -> None:
    done, groups = audited("--set", "widen=false", FAIRQR_CACHE_DIR=str(minilm_cache))
    assert {group["verdict"] for group in groups.values()} == {"saturated"}
    assert {group["detectable"] for group in groups.values()} == {None}
    assert "more relevant documents than were looked at" in " ".join(done.stdout.split())
