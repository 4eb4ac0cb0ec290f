"""Our own door is probed as any endpoint that re-ranks, by the real command and service."""

from __future__ import annotations

from pathlib import Path

from fairqr.agents.ranking.endpoint import EndpointRanker
from fairqr.agents.ranking.rankers import RankerOptions, RankItem
from fairqr.evaluation.probes.listwise import MeasuredListwise
from fairqr.evaluation.probes.measures import measure
from tests.servers.model_server import Main
from tests.servers.service_client import Served, service_of_a_module

service = service_of_a_module("--corpus", "notables", settings="traffic.rate = ''")

DOOR = "/v1/rerank"
BY_GENDER = "notables?attributes=gender&documents=texts&fairness_weight=8"


def test_the_door_puts_lists_of_men_first_in_a_fairer_order(
    quick: Main, clean_environment: Path, service: Served
) -> None:
    """Lists in the discriminatory order come back with a ratio nearer to 1, and none fails."""
    folder = clean_environment / "out"
    ranker = f"rerank:{BY_GENDER}@{service.url}{DOOR}"
    sizes = ["size=8", "queries=6", "order=discriminatory", "personas=neutral", "k=4"]
    sizes += ["shown_to_neural=text"]
    sets = [f"rankers=initial,{ranker}", "sources=gender=female", "cells=balanced", *sizes]
    arguments = [it for each in sets for it in ("--set", each)]
    quick("experiment", "run", "llm_listwise", *arguments, "-o", folder)
    measured = measure(folder)
    assert isinstance(measured, MeasuredListwise)
    lists = measured.lists.set_index("ranker")
    assert (lists.status == "ok").all()
    assert (lists.loc[ranker].asked == 1).all()
    assert not any(lists.warnings)
    distance = (lists.ratio - 1).abs().groupby("ranker").mean()
    assert distance[ranker] < distance["initial"]
    assert (lists.random_precision == 0.5).all()


async def test_a_ranking_is_the_one_that_a_client_gets(service: Served) -> None:
    """Places of the same request, sent by hand."""
    titles = ["Niels Bohr", "Max Planck", "Marie Curie", "Albert Einstein", "Ada Lovelace"]
    items = [RankItem(str(place), title, "") for place, title in enumerate(titles)]
    options = RankerOptions(weights=f"{BY_GENDER}@{service.url}{DOOR}", shown="title")
    found = await EndpointRanker(options).rank("physicist", items)
    body = {"model": BY_GENDER, "query": "physicist", "documents": titles, "top_n": 5}
    results = service.client.post(DOOR, json=body).json()["results"]
    assert list(found.order) == [result["index"] for result in results]
    assert found.repairs == {}
