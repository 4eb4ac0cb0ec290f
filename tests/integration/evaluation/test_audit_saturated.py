"""An audit of an index in which whole groups stand below all that one looks at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.attached_people import Server
from tests.integration.evaluation.cvs import SCHEMA, SKILLS, cvs, write
from tests.integration.local_model import share_vectors
from tests.integration.model_server import Main

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


@pytest.mark.model
@pytest.mark.parametrize(
    ("arguments", "verdict", "within"),
    [
        (("--qrels", "cvs/qrels.txt"), "less", 1e-6),
        # Estimates look until relevance falls.
        ((), "less", 0.02),
        # Who does not look so far cannot tell.
        (("--set", "widen=false"), "saturated", None),
    ],
)
def test_nobody_over_fifty_is_shown_and_who_looks_far_enough_says_so(
    clean_environment: Path,
    server: Server,
    quick: Main,
    minilm_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    verdict: str,
    within: float | None,
) -> None:
    monkeypatch.chdir(clean_environment)
    share_vectors(minilm_cache)
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
    Path("cvs.yaml").write_text(json.dumps(source))
    write(Path("cvs"))
    asked = ("audit", "--corpus", "cvs.yaml", "--queries", "cvs/queries.tsv", "-o", "out")
    done = quick(*asked, *arguments, FAIRQR_CACHE_DIR=str(minilm_cache))
    assert done.code == 0, done.stderr
    found = json.loads(Path("out/audit.json").read_text())
    groups = {group["group"]: group for group in found["groups"]}
    assert groups["from 50"]["exposure"]["value"] == 0
    assert groups["from 50"]["verdict"] == verdict
    if within is not None:
        assert groups["from 50"]["lean"]["value"] == pytest.approx(DUE, abs=within)
    else:
        assert {group["verdict"] for group in groups.values()} == {"saturated"}
        assert {group["detectable"] for group in groups.values()} == {None}
        assert "more relevant documents than were looked at" in " ".join(done.stdout.split())
