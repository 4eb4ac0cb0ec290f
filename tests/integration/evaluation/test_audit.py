"""Audits of indices that fairqr did not make: a planted bias is found, and nothing is written."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.evaluation import cvs
from tests.servers.attached_people import Server, state
from tests.servers.local_model import share_vectors
from tests.servers.model_server import Main

pytestmark = [pytest.mark.elasticsearch, pytest.mark.model]

INDEX, CVS = "audited-people-v7", "audited-cvs"
TOPICS = [f"topic{number:03}" for number in range(120)]
ASKED = 60
K, DEPTH = 10, 40
SEX = {"field": "person.sex", "groups": {"female": ["F"], "male": ["M"]}}
MAPPING = {
    "properties": {"bio": {"type": "text"}, "person": {"properties": {"sex": {"type": "keyword"}}}}
}
PLANTED = {"x097": 0.97, "x05": 0.5, "x13": 1.3, "plain": 1.0, "random": None}
"""What the scores of women are multiplied by; None for an order by chance."""


def documents() -> dict[str, dict[str, Any]]:
    """Forty relevant documents for each topic, by men and women who write alike."""
    draw = random.Random(11)
    found = {}
    for topic in TOPICS:
        for number in range(40):
            words = [topic] * draw.randint(1, 6) + ["filler"] * draw.randint(0, 6)
            sex = "F" if draw.random() < 0.4 else "M"
            found[f"{topic}-{number:02}"] = {"bio": " ".join(words), "person": {"sex": sex}}
    return found


PEOPLE = documents()


def body(factor: float | None) -> dict[str, Any]:
    """The engine's own request; it may multiply the scores of women, or rank by chance."""
    words: dict[str, Any] = {"match": {"bio": "{{query}}"}}
    scored: dict[str, Any] = {"query": words}
    if factor is None:
        scored |= {"random_score": {"seed": 7, "field": "_seq_no"}, "boost_mode": "replace"}
    else:
        weight = {"filter": {"term": {"person.sex": "F"}}, "weight": factor}
        scored |= {"functions": [weight], "boost_mode": "multiply"}
    return {"size": "{{size}}", "query": words if factor == 1 else {"function_score": scored}}


@pytest.fixture(scope="module")
def server(elasticsearch_url: str) -> Iterator[Server]:
    held = Server(elasticsearch_url)
    text = {"type": "text"}
    titled = {"properties": {"title": text, "text": text, "age": {"type": "integer"}}}
    with (
        held.client,
        held.index(INDEX, PEOPLE, MAPPING, number_of_shards=1),
        held.index(CVS, cvs.cvs(), titled, number_of_shards=1),
    ):
        yield held


@pytest.fixture
def inputs(clean_environment: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources with and without a bias, queries, and judgements, in the folder where tests are."""
    monkeypatch.chdir(clean_environment)
    index = {"engine": "elasticsearch", "url": server.url, "index": INDEX, "text": ["bio"]}
    for name, factor in PLANTED.items():
        source = {"name": name, **index, "body": body(factor), "attributes": {"gender": SEX}}
        Path(f"{name}.yaml").write_text(json.dumps(source))
    asked = random.Random(5).sample(TOPICS, ASKED)
    Path("queries.tsv").write_text("id\tquery\n" + "".join(f"{it}\t{it}\n" for it in asked))
    Path("qrels").write_text("".join(f"{i[:8]} 0 {i} 1\n" for i in PEOPLE))
    titles = {"body": {"size": "{{size}}", "query": {"match": {"title": "{{query}}"}}}}
    source = {"name": "cvs", **index, "index": CVS, "title": "title", "text": ["text"]}
    Path("cvs.yaml").write_text(json.dumps(source | titles | cvs.SCHEMA))
    cvs.write(Path("cvs"))


@pytest.fixture
def audited(quick: Main, inputs: None, minilm_cache: Path) -> Any:
    """Run an audit by the command, and return what it said and wrote."""
    share_vectors(minilm_cache)

    def audit(name: str, queries: str, *arguments: str, code: int = 0) -> tuple[str, Any]:
        asked = ("audit", "--corpus", f"{name}.yaml", "--queries", queries, "-o", "out")
        done = quick(*asked, *arguments, FAIRQR_CACHE_DIR=str(minilm_cache))
        assert done.code == code, done.stderr
        return done.stdout, json.loads(Path("out/audit.json").read_text())

    return audit


def true_gap(server: Server, name: str) -> float:
    """The mean gap against women over all queries, by hand from what the server ranks."""
    discounts = [1 / math.log2(rank + 1) for rank in range(1, K + 1)]
    gaps, request = [], json.dumps(body(PLANTED[name])).replace('"{{size}}"', str(K))
    for topic in TOPICS:
        search = json.loads(request.replace("{{query}}", topic))
        hits = server.ask("POST", f"/{INDEX}/_search", search)["hits"]["hits"]
        shown = [hit["_source"]["person"]["sex"] == "F" for hit in hits]
        given = [weight * sex for weight, sex in zip(discounts, shown, strict=True)]
        sexes = [PEOPLE[f"{topic}-{number:02}"]["person"]["sex"] for number in range(40)]
        gaps.append(sexes.count("F") / 40 - sum(given) / sum(discounts))
    return sum(gaps) / len(gaps)


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("name", "verdict", "is_judged"),
    [
        *(("x097", "less", True), ("x13", "more", True), ("plain", "", True), ("random", "", True)),
        *(("x05", "less", False), ("x13", "more", False), ("plain", "", False)),
    ],
)
def test_a_planted_bias_is_found_with_its_size(
    server: Server, audited: Any, name: str, verdict: str, is_judged: bool
) -> None:
    """A planted bias is found with its size, an engine without one is not accused, and an audit
    keeps to `--rate` and writes nothing to the engine.

    By judgements the interval holds the true gap, and a gate of less than that is met.
    """
    before = state(server, INDEX)
    # Of 60 queries the interval of the gap is 8 points wide, and by chance ends at 7 for men here.
    line = {"x097": 0.05, "plain": 0.1}.get(name)
    gate = ("--fail-if", f"ranking_gap > {line}", "--sure") if line and is_judged else ()
    judged = ("--qrels", "qrels", *gate) if is_judged else ()
    how = ("--attribute", "gender", "-k", str(K), "--depth", str(DEPTH), *judged)
    said, audit = audited(name, "queries.tsv", *how, code=3 if name == "x097" else 0)
    assert state(server, INDEX) == before
    female, male = audit["groups"]
    assert audit["relevance"] == ("judged" if is_judged else "estimated")
    assert female["verdict"] == (verdict or "cannot_tell")
    assert male["verdict"] == {"less": "more", "more": "less"}.get(verdict, "cannot_tell")
    assert verdict or "fair" not in said.split("report:")[0].lower()
    if is_judged:
        low, high = female["ranking_gap"]["interval"]
        assert low <= true_gap(server, name) <= high
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert manifest["versions"]["server"] == "Elasticsearch 8.12.2"


@pytest.mark.promise("audit")
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
def test_an_audit_that_looks_far_enough_finds_who_is_hidden(
    audited: Any, arguments: tuple[str, ...], verdict: str, within: float | None
) -> None:
    """An audit looks until estimated relevance falls, with a search for each group, and cannot tell
    where there is more than it looked at.

    Their mean share among the relevant ones is their target share.
    """
    said, found = audited("cvs", "cvs/queries.tsv", *arguments)
    groups = {group["group"]: group for group in found["groups"]}
    assert groups["from 50"]["exposure"]["value"] == 0
    assert groups["from 50"]["verdict"] == verdict
    if within is not None:
        every = cvs.cvs().values()
        jobs = [[cv["age"] >= 50 for cv in every if cv["occupation"] == it] for it in cvs.SKILLS]
        share = sum(sum(job) / len(job) for job in jobs) / len(jobs)
        assert groups["from 50"]["ranking_gap"]["value"] == pytest.approx(share, abs=within)
    else:
        assert {group["verdict"] for group in groups.values()} == {"saturated"}
        assert {group["detectable_gap"] for group in groups.values()} == {None}
        assert "more relevant documents than were looked at" in " ".join(said.split())
