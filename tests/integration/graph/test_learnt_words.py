"""What a model said about a query before counts in lists that others found, and none is asked."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.opening import open_language_model
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.integrations.learnt import AskAfterwards, LearntWords
from fairqr.graph.integrations.order import Evidence, Given, fair_list
from fairqr.graph.search.context import Context
from fairqr.retrieval.engines.engine import SearchEngine
from tests.integration.graph.service.proxy.proxied import proxied, write_settings
from tests.patience import until
from tests.servers.attached_people import people
from tests.servers.local_model import ENCODER, linked
from tests.servers.model_server import Answer, Asked, ModelServer, says
from tests.servers.service_client import a_service
from tests.unit.graph.corpora import indexed

TEXTS = {
    "Niels Bohr": "Niels Bohr developed a model of the atom",
    "Max Planck": "Max Planck found the quantum of radiation",
    "Onion soup": "A recipe for onion soup with cheese and bread",
    "Lise Meitner": "Lise Meitner explained how uranium nuclei split",
    "Garden": "How to plant tulips in a garden before winter",
    "Marie Curie": "Marie Curie isolated polonium and radium",
}
GROUPS = {
    "Niels Bohr": "male",
    "Max Planck": "male",
    "Onion soup": "male",
    "Lise Meitner": "female",
    "Garden": "female",
    "Marie Curie": "female",
}
CONTEXT = Context.of(attribute="gender", target="uniform:1", k=3)


def about_physics(asked: Asked) -> Answer:
    """Reply as a large model, to whatever it is asked about."""
    if "<group>" not in asked.last_message:
        return says({"topic": ["physics", "atom", "quantum"], "queries": [], "passage": ""})
    is_female = "female" in asked.last_message
    names = ["Lise Meitner", "Marie Curie"] if is_female else ["Niels Bohr"]
    return says({"phrases": ["atomic nucleus", "radioactivity"], "names": names, "passage": ""})


async def listed(engine: SearchEngine, learnt: LearntWords | None) -> tuple[dict[str, float], str]:
    """Return how likely each document is relevant, and whose words tell it."""
    documents = [
        Given(place, "", text, title, lambda _, title=title: GROUPS[title])  # type: ignore[misc]
        for place, (title, text) in enumerate(TEXTS.items())
    ]
    found, hits, _ = await fair_list(
        engine, CONTEXT, "physicist", documents, Evidence(ListEvidence(), learnt)
    )
    assert hits.relevance is not None
    return dict(zip(TEXTS, hits.relevance.tolist(), strict=True)), found.words_of


@pytest.fixture
def learnt(model_server: ModelServer) -> LearntWords:
    """Words of a model that replies as a large one."""
    model_server.does(about_physics)
    model = open_language_model("openai:fake", base_url=model_server.base_url, api_key="none")
    return LearntWords(model)


@pytest.fixture
async def engine(tmp_path: Path) -> SearchEngine:
    rows = [{"id": title, "text": text, "g": GROUPS[title]} for title, text in TEXTS.items()]
    return await indexed(tmp_path, rows, "attributes: {gender: {field: g, groups: [female, male]}}")


@pytest.mark.model
async def test_words_that_are_kept_count_and_others_are_not_asked_for(
    model_server: ModelServer, minilm_cache: Path, learnt: LearntWords, engine: SearchEngine
) -> None:
    before, by_nobody = await listed(engine, learnt)
    assert by_nobody == ""
    assert model_server.asked == []
    assert (await listed(engine, None)) == (before, "")

    await learnt.learn(engine, CONTEXT, "physicist")
    questions = len(model_server.asked)
    assert questions == 3  # about the topic, and about each group
    after, by_model = await listed(engine, learnt)
    assert by_model == "openai:fake"
    assert len(model_server.asked) == questions
    # What the words speak for gains against what they do not.
    for name in ("Lise Meitner", "Marie Curie", "Niels Bohr"):
        for other in ("Onion soup", "Garden"):
            assert after[name] / before[name] > after[other] / before[other], (name, other)


@pytest.mark.model
async def test_a_model_is_asked_once_about_each_query(
    model_server: ModelServer, minilm_cache: Path, learnt: LearntWords, engine: SearchEngine
) -> None:
    afterwards = AskAfterwards(learnt)
    for _ in range(3):
        afterwards.add(engine, CONTEXT, "physicist")
        afterwards.add(engine, CONTEXT, "chemist")
    assert model_server.asked == []
    while await learnt.of(engine, CONTEXT, "chemist") is None:
        await asyncio.sleep(0.02)
    assert len(model_server.asked) == 6

    model_server.does(says("no JSON at all"))
    afterwards.add(engine, CONTEXT, "botanist")
    while len(model_server.asked) < 6:  # each question is asked twice
        await asyncio.sleep(0.02)
    afterwards.add(engine, CONTEXT, "botanist")
    assert await learnt.of(engine, CONTEXT, "botanist") is None
    assert len(model_server.asked) == 6


@pytest.mark.model
def test_re_ranking_uses_what_searches_learnt(pulled_minilm: Path, tmp_path: Path) -> None:
    linked(ENCODER, pulled_minilm, tmp_path / "cache")
    documents = [
        {"title": title, "text": text, "labels": {"gender": GROUPS[title]}}
        for title, text in TEXTS.items()
    ]
    body = {"model": "people?attributes=gender", "query": "physicist", "documents": documents}
    with a_service(tmp_path) as service:
        service.model.does(about_physics)
        for expected in ("", "openai:fake"):
            answer = service.client.post("/v1/rerank", json=body)
            assert answer.json()["fairqr"]["words_of"] == expected, answer.text
            by = f", words of {expected}" if expected else ""
            assert answer.headers["fairqr"] == f"re-ranked; texts{by}"
            asked = len(service.model.asked)
            assert asked == (3 if expected else 0)
            search = {"query": "physicist", "corpus": "people", "attributes": ["gender"]}
            search |= {"ask": "always", "groups": "all", "max_iterations": 1}
            assert service.client.post("/v1/search", json=search).status_code == 200


@pytest.mark.model
@pytest.mark.elasticsearch
@pytest.mark.xdist_group("people")
def test_the_header_of_the_proxy_says_whose_words_count(
    elasticsearch_url: str, pulled_minilm: Path, tmp_path: Path
) -> None:
    """Nobody is asked; without words the texts alone tell."""
    folder = tmp_path / "proxied"
    linked(ENCODER, pulled_minilm, folder / "CACHE")
    replies = {"physicist": {"topic": ["physics"], "groups": {}}}
    (tmp_path / "words.json").write_text(json.dumps(replies))
    model = f"recorded:{tmp_path / 'words.json'}"

    boosts = itertools.count(1)

    def outcome(word: str) -> str:
        """Ask in a way that was not asked before, since a list is kept for its next pages."""
        query = {"match": {"bio": {"query": word, "boost": next(boosts)}}}
        return proxy.outcome(body={"query": query})

    with (
        people(elasticsearch_url, "people"),
        proxied(folder, elasticsearch_url, model=model) as proxy,
    ):
        proxy.ready()
        until(lambda: outcome("physicist") == "re-ranked; vectors, words of recorded:words.json")
        until(lambda: outcome("opera") == "re-ranked; vectors")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ask": "afterwards"}, "names no model"),
        ({"replies": "replies.sqlite"}, "names no model"),
        ({"model": "recorded:nothing.json"}, "nothing.json"),
    ],
)
def test_a_model_that_cannot_tell_is_refused_at_the_start(
    quick: Any, tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    file = write_settings(tmp_path, "http://127.0.0.1:9", **changes)
    assert sentence in quick("proxy", file).complaint()
