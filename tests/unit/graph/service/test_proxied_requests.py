"""Which searches a proxy re-ranks, and what it asks of the cluster."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.graph.integrations.amortised import AmortisedDeficit
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.search.context import Context
from fairqr.graph.service.proxy.ordering import IndexOrder
from fairqr.graph.service.proxy.requests import Search, UnavailableError, planned
from fairqr.graph.service.proxy.settings import ProxiedIndex
from tests.unit.graph.corpora import indexed

QUERY = {"match": {"title": "physicist"}}
INDEX = ProxiedIndex(source=Path("people.yaml"), mode="fair", window=50)


@pytest.mark.parametrize(
    ("body", "parameters", "why"),
    [
        ({"query": QUERY, "sort": ["date"]}, {}, "sort"),
        ({"knn": {"field": "v"}}, {}, "knn"),
        ({"query": QUERY, "of_next_year": 1}, {}, "of_next_year"),
        ({"query": {"bool": {"must": [QUERY, {"knn": {"field": "v"}}]}}}, {}, "knn"),
        ({"query": {"bool": {"filter": {"of_next_year": {}}}}}, {}, "of_next_year"),
        ({"query": QUERY, "post_filter": {"knn": {"field": "v"}}}, {}, "knn"),
        ({"query": {"pinned": {"ids": ["1"], "organic": QUERY}}}, {}, "pinned"),
        ({"query": QUERY, "size": 0}, {}, "size"),
        ({"query": QUERY, "size": "many"}, {}, "size"),
        ({"query": QUERY, "from": -1}, {}, "size"),
        ({"query": QUERY, "from": 50}, {}, "from"),
        ({"query": QUERY}, {"scroll": "1m"}, "scroll"),
        ({"query": QUERY}, {"size": "0"}, "size"),
        ([1], {}, "body"),
    ],
)
def test_what_would_change_more_than_an_order_passes(
    body: Any, parameters: dict[str, str], why: str
) -> None:
    assert planned(body, parameters, INDEX) == why


@given(name=st.text(), parameter=st.text())
def test_whatever_clients_ask_for_a_header_can_say_it(name: str, parameter: str) -> None:
    for body, parameters in ({name: 1}, {}), ({"query": {name: {}}}, {}), ({}, {parameter: ""}):
        why = planned(body, parameters, INDEX)
        assert isinstance(why, Search) or re.fullmatch(r"[\w.]{1,50}", why, re.ASCII)


KEPT: dict[str, Any] = {"query": QUERY, "sort": "_score", "aggs": {}, "highlight": {}}


@given(start=st.integers(0, 200), size=st.integers(1, 100))
def test_the_whole_window_is_asked_for_and_pages_of_a_query_are_of_one_kind(
    start: int, size: int
) -> None:
    """What stands within the window is re-ranked, and what is beyond comes as the engine has it."""
    first = planned(None, {}, INDEX)
    assert isinstance(first, Search)
    assert (first.start, first.size, first.body["size"]) == (0, 10, 50)
    for body, parameters in (
        ({**KEPT, "from": start, "size": size}, {}),
        ({**KEPT, "from": 3}, {"from": str(start), "size": str(size)}),
    ):
        plan, other = planned(body, parameters, INDEX), planned(KEPT, {"size": "3"}, INDEX)
        if start >= 50:
            assert plan == "from"
            continue
        assert isinstance(plan, Search)
        assert isinstance(other, Search)
        assert (plan.start, plan.size) == (start, size)
        assert plan.body == {**KEPT, "from": 0, "size": max(50, start + size)}
        assert (plan.key, plan.fair) == (other.key, other.fair)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (QUERY, "physicist"),
        ({"multi_match": {"query": "opera", "fields": ["a", "b"]}}, "opera"),
        ({"bool": {"must": [QUERY], "filter": {"match": {"kind": "person"}}}}, "physicist"),
        ({"bool": {"should": [QUERY, QUERY], "must_not": [{"match": {"a": "b"}}]}}, "physicist"),
        ({"function_score": {"query": {"query_string": {"query": "tennis"}}}}, "tennis"),
        ({"match_all": {}}, ""),
    ],
)
def test_the_words_of_a_query_are_found(query: Any, words: str) -> None:
    plan = planned({"query": query}, {}, INDEX)
    assert isinstance(plan, Search)
    assert plan.words == words


def test_shares_of_queries_are_drawn_by_their_hash() -> None:
    queries = [{"query": {"match": {"title": f"word {number}"}}} for number in range(500)]
    few, more, every, none = (
        [planned(it, {}, INDEX.model_copy(update={"share": share})).fair for it in queries]  # type: ignore[union-attr]
        for share in (0.1, 0.3, 1.0, 0.0)
    )
    assert 0.05 < sum(few) / 500 < 0.15
    assert all(more for less, more in zip(few, more, strict=True) if less)
    assert (sum(every), sum(none)) == (500, 0)


async def test_a_list_that_comes_too_late_is_no_deficit(tmp_path: Path) -> None:
    labels = [{"id": f"{it}", "text": "opera", "g": ("male", "female")[it > 3]} for it in range(6)]
    engine, plan = await indexed(tmp_path, labels), planned({"query": QUERY}, {}, INDEX)
    assert isinstance(plan, Search)
    context, hits = Context.of(target="uniform:1"), [{"_id": one["id"]} for one in labels]
    order = IndexOrder(None, engine, context, ListEvidence(), deficit := AmortisedDeficit())
    with pytest.raises(UnavailableError, match="slow"):
        await order(hits, plan, until=0)
    assert deficit.by_group == {}
    await order(hits, plan, until=math.inf)
    assert deficit.by_group
    await engine.aclose()
