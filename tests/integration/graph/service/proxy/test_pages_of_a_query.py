"""All pages of a query are of one order, whatever becomes of lists in between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.integration.graph.service.proxy.proxied import Proxied, frozen, proxied
from tests.patience import until
from tests.servers.attached_people import Server, people

pytestmark = [
    pytest.mark.elasticsearch,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("people"),
]

SEARCH = {"query": {"match": {"bio": "opera tennis"}}, "_source": False}
SIZE = 10
PAGES = 13


@pytest.fixture(scope="module")
def cluster(elasticsearch_url: str) -> Iterator[Server]:
    with people(elasticsearch_url, "people") as server:
        yield server


def page(proxy: Proxied, number: int, search: Any = SEARCH) -> tuple[str, list[str]]:
    """Return what became of a search for a page, and the ids in it."""
    reply = proxy.search({**search, "from": number * SIZE, "size": SIZE})
    return reply.headers["fairqr"], [hit["_id"] for hit in reply.json()["hits"]["hits"]]


def whole(cluster: Server) -> list[str]:
    """Return the ids of all pages in the cluster's order."""
    reply = cluster.ask("POST", "/people/_search", {**SEARCH, "size": PAGES * SIZE})
    return [hit["_id"] for hit in reply["hits"]["hits"]]


def ids_in(pages: list[tuple[str, list[str]]]) -> list[str]:
    """Return the ids of pages, one after the other."""
    return list(chain.from_iterable(ids for _, ids in pages))


def test_after_a_late_first_page_all_are_in_the_clusters_order(
    tmp_path: Path, cluster: Server
) -> None:
    with proxied(tmp_path, cluster.url, within=0.5) as proxy:
        worker = proxy.ready()
        with frozen(worker):
            first = page(proxy, 0)
        assert first[0] == "passed; slow"

        until(lambda: proxy.outcome().startswith("re-ranked"))
        later = [page(proxy, number) for number in range(1, PAGES)]
        assert {outcome for outcome, _ in later} == {"passed; from"}
        assert ids_in([first, *later]) == whole(cluster)
        assert page(proxy, 0)[0] == "re-ranked; ranks"  # the next who asks sees the fair list
        assert page(proxy, 1)[0] == "re-ranked; ranks"


def test_all_pages_are_cut_from_the_fair_list_of_the_first(tmp_path: Path, cluster: Server) -> None:
    """Even if no list can be made meanwhile."""
    with proxied(tmp_path, cluster.url, within=0.5) as proxy:
        worker = proxy.ready()
        fair = [page(proxy, number) for number in range(PAGES)]
        with frozen(worker):
            assert page(proxy, 0, {"query": {"match": {"bio": "river"}}})[0] == "passed; slow"

            again = [page(proxy, number) for number in range(1, PAGES)]

        assert again == fair[1:]
        assert {outcome for outcome, _ in fair[:10]} == {"re-ranked; ranks"}

        ids = ids_in(fair)
        assert len({*ids}) == len(ids)
        assert {*ids} == {*whole(cluster)}
        assert ids != whole(cluster)


def test_pages_of_hits_that_have_changed_are_cut_from_a_new_list(
    tmp_path: Path, elasticsearch_url: str
) -> None:
    with (
        people(elasticsearch_url, "people") as cluster,
        proxied(tmp_path, cluster.url) as proxy,
    ):
        proxy.ready()
        before = page(proxy, 0)
        gone = before[1][0]
        cluster.client.delete(f"/people/_doc/{gone}?refresh=true")
        outcome, ids = page(proxy, 1)

        assert outcome == "re-ranked; ranks"
        assert gone not in ids
