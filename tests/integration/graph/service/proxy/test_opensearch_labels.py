"""The proxy reads labels of OpenSearch as they are indexed, not as documents write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.graph.service.proxy.proxied import Proxied, proxied
from tests.patience import until
from tests.servers.attached_people import Server

pytestmark = pytest.mark.timeout(600)

INDEX = "opensearch-labels"
COUNT = 40
SEXES = {"female": ["female"], "male": ["male"]}
YEARS = {"old": {"lt": 1970}, "new": {"gte": 1970}}
SECONDS_OF_YEAR = 31_556_952

MAPPINGS: dict[str, dict[str, Any]] = {
    "folded": {"type": "keyword", "normalizer": "folding"},
    "listed": {"type": "keyword"},
    "without_columns": {"type": "keyword", "doc_values": False},
    "filled": {"type": "keyword", "null_value": "male"},
    "milliseconds": {"type": "date", "format": "epoch_millis"},
    "seconds": {"type": "date", "format": "epoch_second"},
    "basic": {"type": "date", "format": "basic_date"},
    "european": {"type": "date", "format": "dd/MM/yyyy"},
}
DATES = {name for name, mapping in MAPPINGS.items() if mapping["type"] == "date"}
ATTRIBUTES = {
    name: {"field": name, "groups": YEARS if name in DATES else SEXES} for name in MAPPINGS
}


def sex_of(number: int) -> str:
    return "male" if number % 3 else "female"


def year_of(number: int) -> int:
    return 1950 + number


def document(number: int) -> dict[str, Any]:
    """Return a person whose fields are written as their mappings allow."""
    sex = sex_of(number)
    year = year_of(number)
    seconds = (year - 1970) * SECONDS_OF_YEAR + 86_400
    return {
        "bio": "physicist " * (number % 7 + 1) + "of renown",
        "folded": (sex.upper(), sex.title(), sex)[number % 3],
        "listed": [sex],
        "without_columns": sex,
        "filled": "female" if sex == "female" else None,
        "milliseconds": seconds * 1000,
        "seconds": seconds,
        "basic": f"{year}0301",
        "european": f"01/03/{year}",
    }


def group_of(number: int, attribute: str) -> str:
    """Return the group that a person was made to have."""
    if attribute in DATES:
        return "old" if year_of(number) < 1970 else "new"
    return sex_of(number)


@pytest.fixture(scope="module")
def proxy(
    opensearch_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Proxied, Path]]:
    folder = tmp_path_factory.mktemp("proxy")
    normalizer = {"folding": {"type": "custom", "filter": ["lowercase"]}}
    mapping = {"properties": {"bio": {"type": "text"}, **MAPPINGS}}
    documents = {str(number): document(number) for number in range(COUNT)}
    attributes = json.loads(json.dumps(ATTRIBUTES))  # YAML would write equal parts as aliases
    source = {
        "engine": "opensearch",
        "index": INDEX,
        "title": "bio",
        "attributes": attributes,
    }
    parameters = {"target": "uniform:1", "attributes": [*ATTRIBUTES], "k": 20}
    index = {"source": "people.yaml", "mode": "fair", "parameters": parameters}
    settings: dict[str, Any] = {"source": source, "indexes": {INDEX: index}, "log": "log"}
    server = Server(opensearch_url)
    analysis = {"normalizer": normalizer}
    with (
        server.client,
        server.index(INDEX, documents, mapping, number_of_shards=1, analysis=analysis),
        proxied(folder, opensearch_url, **settings) as proxy,
    ):
        until(lambda: proxy.outcome(index=INDEX).startswith("re-ranked"))
        yield proxy, folder / "log" / "log.jsonl"


@pytest.mark.parametrize(
    "source",
    [{}, {"_source": False}, {"_source": ["bio"]}, {"fields": ["*"]}],
    ids=["whole documents", "no documents", "a field", "all fields"],
)
def test_groups_are_those_that_people_have(
    proxy: tuple[Proxied, Path], source: dict[str, Any]
) -> None:
    client, log = proxy
    before = len(log.read_text().splitlines())
    body = {"query": {"match": {"bio": f"physicist renown {source}"}}, "size": 20, **source}

    assert client.outcome(index=INDEX, body=body).startswith("re-ranked")
    until(lambda: len(log.read_text().splitlines()) > before)

    record = json.loads(log.read_text().splitlines()[-1])
    numbers = [int(id_) for id_ in record["ids"]]
    assert len(numbers) == COUNT
    assert record["groups"] == {
        attribute: [group_of(number, attribute) for number in numbers] for attribute in MAPPINGS
    }
