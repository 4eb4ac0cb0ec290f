"""An audit of an index that fairqr did not make: it finds a planted lean."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.attached_people import Server, state
from tests.integration.local_model import share_vectors
from tests.integration.model_server import Main

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "audited-people-v7"
TOPICS = [f"topic{number:03}" for number in range(120)]
ASKED = 60
K, DEPTH = 10, 40
SEX = {"field": "person.sex", "groups": {"female": ["F"], "male": ["M"]}}
MAPPING = {
    "properties": {"bio": {"type": "text"}, "person": {"properties": {"sex": {"type": "keyword"}}}}
}
PLANTED = {"leaning": 0.97, "plain": 1.0, "x07": 0.7, "x05": 0.5, "x13": 1.3, "random": None}
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
    with held.client, held.index(INDEX, PEOPLE, MAPPING, number_of_shards=1):
        yield held


@pytest.fixture
def inputs(clean_environment: Path, server: Server) -> Path:
    """Sources with and without a lean, queries, and judgements."""
    index = {"engine": "elasticsearch", "url": server.url, "index": INDEX, "text": ["bio"]}
    for name, factor in PLANTED.items():
        source = {"name": name, **index, "body": body(factor), "attributes": {"gender": SEX}}
        (clean_environment / f"{name}.yaml").write_text(json.dumps(source))
    asked = random.Random(5).sample(TOPICS, ASKED)
    rows = "".join(f"{topic}\t{topic}\n" for topic in asked)
    (clean_environment / "queries.tsv").write_text("id\tquery\n" + rows)
    (clean_environment / "qrels").write_text("".join(f"{i[:8]} 0 {i} 1\n" for i in PEOPLE))
    return clean_environment


def true_lean(server: Server) -> float:
    """The mean lean against women over all queries, by hand from what the server ranks."""
    discounts = [1 / math.log2(rank + 1) for rank in range(1, K + 1)]
    leans, asked = [], json.dumps(body(PLANTED["leaning"])).replace('"{{size}}"', str(K))
    for topic in TOPICS:
        request = json.loads(asked.replace("{{query}}", topic))
        hits = server.ask("POST", f"/{INDEX}/_search", request)["hits"]["hits"]
        shown = [hit["_source"]["person"]["sex"] == "F" for hit in hits]
        given = [weight * sex for weight, sex in zip(discounts, shown, strict=True)]
        sexes = [PEOPLE[f"{topic}-{number:02}"]["person"]["sex"] for number in range(40)]
        leans.append(sexes.count("F") / 40 - sum(given) / sum(discounts))
    return sum(leans) / len(leans)


def asked(inputs: Path, name: str, *, is_judged: bool = True) -> list[str]:
    qrels = ("--qrels", str(inputs / "qrels")) if is_judged else ()
    return [
        *("audit", "--corpus", str(inputs / f"{name}.yaml"), "--attribute", "gender"),
        *("--queries", str(inputs / "queries.tsv"), *qrels),
        *("-k", str(K), "-o", str(inputs / "out"), "--depth", str(DEPTH)),
    ]


def found_in(inputs: Path) -> Any:
    """The figures, and those of women and men."""
    audit = json.loads((inputs / "out/audit.json").read_text())
    return audit, *audit["groups"]


def test_a_planted_lean_is_found_with_its_size(inputs: Path, server: Server, quick: Main) -> None:
    before = state(server, INDEX)
    done = quick(*asked(inputs, "leaning"), "--fail-if", "ranking_gap > 0.05", "--sure")
    assert done.code == 3, done.stderr
    assert state(server, INDEX) == before
    _, female, male = found_in(inputs)
    assert (female["verdict"], male["verdict"]) == ("less", "more")
    manifest = json.loads((inputs / "out/manifest.json").read_text())
    assert manifest["versions"]["server"] == "Elasticsearch 8.12.2"
    low, high = female["lean"]["interval"]
    assert 0.02 < low <= true_lean(server) <= high < 0.35
    assert "female gets" in done.stdout


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "verdict"),
    [("x07", "less"), ("x05", "less"), ("x13", "more"), ("plain", ""), ("random", "")],
)
@pytest.mark.parametrize("is_judged", [True, False])
def test_what_is_planted_is_found_and_an_engine_without_a_lean_is_not_accused(
    inputs: Path, quick: Main, minilm_cache: Path, name: str, verdict: str, is_judged: bool
) -> None:
    # Of 60 queries the interval of the lean is 8 points wide, and by chance ends at 7 for men here.
    gate = ("--fail-if", "ranking_gap > 0.1", "--sure") if is_judged and name == "plain" else ()
    arguments = (*asked(inputs, name, is_judged=is_judged), *gate)
    share_vectors(minilm_cache)
    done = quick(*arguments, FAIRQR_CACHE_DIR=str(minilm_cache))
    assert done.code == 0, done.stderr
    audit, female, male = found_in(inputs)
    assert audit["relevance"] == ("judged" if is_judged else "estimated")
    assert female["verdict"] == (verdict or "cannot_tell")
    assert verdict or male["verdict"] == "cannot_tell"
    assert verdict or "fair" not in done.stdout.split("report:")[0].lower()
