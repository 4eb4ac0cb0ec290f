"""All pages of a query are of one order, whatever becomes of lists in between."""

from __future__ import annotations

from collections.abc import Iterator
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

ASKED = {"query": {"match": {"bio": "opera tennis"}}, "_source": False}
SIZE = 10
PAGES = 13


@pytest.fixture(scope="module")
def cluster(elasticsearch_url: str) -> Iterator[Server]:
    with people(elasticsearch_url, "people") as server:
        yield server


def page(proxy: Proxied, number: int, asked: Any = ASKED) -> tuple[str, list[str]]:
    """Return what became of a search for a page, and the ids in it."""
    reply = proxy.search({**asked, "from": number * SIZE, "size": SIZE})
    return reply.headers["fairqr"], [hit["_id"] for hit in reply.json()["hits"]["hits"]]


def whole(cluster: Server, asked: Any = ASKED) -> list[str]:
    """Return the ids of all pages in the cluster's order."""
    found = cluster.ask("POST", "/people/_search", {**asked, "size": PAGES * SIZE})
    return [hit["_id"] for hit in found["hits"]["hits"]]


def test_after_a_first_page_that_was_late_all_pages_are_in_the_order_of_the_cluster(
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
        ids = [id_ for _, its in [first, *later] for id_ in its]
        assert ids == whole(cluster)
        assert page(proxy, 0)[0] == "re-ranked; ranks"  # the next who asks sees the fair list
        assert page(proxy, 1)[0] == "re-ranked; ranks"


def test_after_a_first_page_of_a_fair_list_all_pages_are_cut_from_it_even_if_no_list_is_made(
    tmp_path: Path, cluster: Server
) -> None:
    with proxied(tmp_path, cluster.url, within=0.5) as proxy:
        worker = proxy.ready()
        fair = [page(proxy, number) for number in range(PAGES)]
        with frozen(worker):
            assert page(proxy, 0, {"query": {"match": {"bio": "river"}}})[0] == "passed; slow"
            again = [page(proxy, number) for number in range(1, PAGES)]
        assert again == fair[1:]
        assert {outcome for outcome, _ in fair[:10]} == {"re-ranked; ranks"}
        ids = [id_ for _, its in fair for id_ in its]
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
