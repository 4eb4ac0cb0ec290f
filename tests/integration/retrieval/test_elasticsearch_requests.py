"""How often one fair search asks Elasticsearch, counted by a proxy that all requests pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairqr import FairSearch, SearchResult
from fairqr.agents.refiner import FeedbackRefiner, Refinement, RefinementRequest
from fairqr.api import open_engine
from fairqr.retrieval.engines.elasticsearch.attaching import draft
from fairqr.retrieval.engines.opening import check_source
from fairqr.retrieval.sources.source import Source
from tests.integration.counting_proxy import CountingProxy, counting_proxy
from tests.integration.model_server import clean_environment, write_people
from tests.patience import PATIENCE

__all__ = ["clean_environment"]

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "counted-people"
ROUNDS = 2
WORDS = {
    "female": ("woman", "laboratory", "she"),
    "male": ("man", "workshop", "he"),
    "Asia": ("Tokyo", "Asia"),
    "Africa": ("Cairo", "Africa"),
}
OTHERS = ("Berlin", "laboratory", "Tokyo", "Cairo", "workshop")
DECADES = {f"{year}s": {"gte": year, "lt": year + 5} for year in range(1900, 1960, 5)}


class EagerRefiner:
    """Proposes a word for each group in each round, whatever the query."""

    name = "eager"
    prompt = None

    async def start(self) -> None:
        """Nothing is missing."""

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        """Propose the first word that the group has not had."""
        for word in WORDS.get(request.group, OTHERS):
            if word not in request.keywords:
                return Refinement("ok", keywords=(word,))
        return Refinement("repeated", message="No new word.")


@pytest.fixture
def proxy(elasticsearch_url: str, tmp_path: Path) -> Iterator[CountingProxy]:
    """A proxy before a server with the people, each with a year of birth."""
    people = [json.loads(line) for line in write_people(tmp_path).read_text().splitlines()]
    with httpx.Client(base_url=elasticsearch_url, timeout=PATIENCE, trust_env=False) as client:
        client.delete(f"/{INDEX}")
        keyword = {"type": "keyword"}
        fields = {"gender": keyword, "continent": keyword, "born": {"type": "integer"}}
        client.put(f"/{INDEX}", json={"mappings": {"properties": fields}}).raise_for_status()
        lines = []
        for number, person in enumerate(people):
            lines.append(json.dumps({"index": {"_id": person.pop("id")}}))
            lines.append(json.dumps({**person, "born": 1900 + number}))
        headers = {"Content-Type": "application/x-ndjson"}
        body = "\n".join(lines) + "\n"
        client.post(f"/{INDEX}/_bulk?refresh=true", content=body, headers=headers)
        with counting_proxy(elasticsearch_url) as proxy:
            yield proxy
        client.delete(f"/{INDEX}")


ATTRIBUTES = [["gender"], ["gender", "continent", "decade"]]


@pytest.mark.parametrize("method", ["fairqr", "fair-qr"])
@pytest.mark.parametrize("attributes", ATTRIBUTES)
async def test_a_round_is_two_requests_and_texts_are_one(
    proxy: CountingProxy, attributes: list[str], method: str
) -> None:
    """However many attributes and groups there are."""
    result, asked = await searched(proxy, attributes, method)
    assert len(result.iterations) == 1 + ROUNDS, result.stop_reason
    assert any(round_.refinements for round_ in result.iterations)
    assert len(asked) <= 2 * len(result.iterations) + 1, asked
    assert result.ranking[0].title


@pytest.mark.parametrize("attributes", ATTRIBUTES)
async def test_relevance_feedback_adds_texts_and_counts_to_a_round(
    proxy: CountingProxy, attributes: list[str]
) -> None:
    """One request each, for all groups together."""
    result, asked = await searched(proxy, attributes, "fairqr", by_feedback=True)
    assert len(result.iterations) > 1, "no round was refined"
    assert len(asked) <= 2 * (1 + ROUNDS) + 1 + 2 * ROUNDS, asked


async def test_a_check_is_seven_requests_and_a_draft_two(proxy: CountingProxy) -> None:
    """As the page on Elasticsearch says."""
    await check_source(described(proxy))
    assert len(proxy.passed) == 7, [(one.method, one.path) for one in proxy.passed]
    proxy.clear()
    await draft(proxy.url, INDEX)
    assert [one.path.rpartition("/")[2] for one in proxy.passed] == [INDEX, "_msearch"]


async def searched(
    proxy: CountingProxy, attributes: list[str], method: str, *, by_feedback: bool = False
) -> tuple[SearchResult, list[tuple[str, str]]]:
    """Return the result of a search with two rounds, and what was asked for it."""
    engine = await open_engine(described(proxy))
    try:
        proxy.clear()
        refiner = FeedbackRefiner(engine) if by_feedback else EagerRefiner()
        # The default asks about one group a round, and only if that is expected to help.
        # Whatever comes of it, both rounds are searched.
        several: dict[str, Any] = {"threshold": 0}
        if method == "fairqr":
            several = {"groups": "lacking", "ask": "always", "fairness_weight": 0}
        result = await FairSearch(engine, refiner).search(
            "physicist",
            attributes=attributes,
            method=method,
            target="retrieved:0.5,uniform:0.5",
            k=10,
            patience=9,
            max_iterations=ROUNDS,
            **several,
        )
    finally:
        await engine.aclose()
    return result, [(one.method, one.path) for one in proxy.passed]


def described(proxy: CountingProxy) -> Source:
    """Return a source over the people behind a proxy."""
    groups = {"gender": ["female", "male"], "continent": ["Asia", "Europe", "Africa"]}
    return Source.model_validate(
        {
            "name": "counted",
            "engine": "elasticsearch",
            "url": proxy.url,
            "index": INDEX,
            "title": "title",
            "text": "text",
            "attributes": {
                **{name: {"field": name, "groups": given} for name, given in groups.items()},
                "decade": {"field": "born", "groups": DECADES},
            },
        }
    )
