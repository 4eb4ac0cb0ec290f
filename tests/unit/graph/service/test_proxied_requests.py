"""Which searches a proxy re-ranks, and what it asks of the cluster."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.graph.integrations.amortised import AmortisedDeficit
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.search.context import Context
from fairqr.graph.service.proxy.label_fields import LabelFields
from fairqr.graph.service.proxy.large import without_documents
from fairqr.graph.service.proxy.ordering import IndexOrder
from fairqr.graph.service.proxy.pages import page_of
from fairqr.graph.service.proxy.queries import words_in
from fairqr.graph.service.proxy.requests import (
    ProxiedSearch,
    UnavailableError,
    key_of,
    named_by_client,
    planned,
)
from fairqr.graph.service.proxy.settings import ProxiedIndex
from fairqr.graph.service.proxy.swaps import order_shown, tossed
from tests.unit.graph.corpora import indexed

QUERY = {"match": {"title": "physicist"}}
NEAREST = {"field": "v", "query_vector": [1.0], "k": 20, "num_candidates": 40}
PINNED = {"pinned": {"ids": ["1", "2"], "organic": QUERY}}
NEURAL = {"neural": {"v": {"query_text": "tennis", "model_id": "a", "k": 9}}}
HYBRID = {"hybrid": {"queries": [QUERY]}}
INDEX = ProxiedIndex(source=Path("people.yaml"), mode="fair", window=50)


@pytest.mark.parametrize(
    ("body", "parameters", "why"),
    [
        ({"query": QUERY, "sort": ["date"]}, {}, "sort"),
        ({"query": QUERY, "sort": ["date"]}, {"sort": "_score"}, "sort"),
        ({"query": QUERY}, {"sort": "_score:asc"}, "sort"),
        ({"query": QUERY, "sort": {"_score": {"mode": "max"}}}, {}, "sort"),
        ({"query": QUERY, "sort": [["_score"]]}, {}, "sort"),
        ({"query": QUERY, "of_next_year": 1}, {}, "of_next_year"),
        ({"query": {"bool": {"filter": {"of_next_year": {}}}}}, {}, "of_next_year"),
        ({"query": {"knn": {"v": {"filter": {"of_next_year": {}}}}}}, {}, "of_next_year"),
        ({"query": {"rule": {"organic": QUERY}}}, {}, "rule"),
        ({"query": {"dis_max": {"queries": [PINNED]}}}, {}, "pinned"),
        ({"query": {"bool": {"must": PINNED, "should": QUERY}}}, {}, "pinned"),
        ({"query": {"bool": {"must": HYBRID}}}, {}, "hybrid"),
        ({"query": {"hybrid": {"queries": [QUERY], "pagination_depth": "deep"}}}, {}, "hybrid"),
        ({"knn": {**NEAREST, "of_next_year": 1}}, {}, "knn"),
        ({"knn": {**NEAREST, "k": -1}}, {}, "knn"),
        ({"knn": {**NEAREST, "filter": {"of_next_year": {}}}}, {}, "of_next_year"),
        ({"query": QUERY, "rescore": {"of_next_year": {}}}, {}, "rescore"),
        ({"query": QUERY, "rescore": {"window_size": 1}}, {}, "size"),
        ({"query": QUERY, "rescore": {"query": {"rescore_query": {"sltr": {}}}}}, {}, "sltr"),
        ({"query": QUERY, "collapse": {"field": "a", "of_next_year": 1}}, {}, "collapse"),
        ({"query": QUERY, "collapse": {"field": "a"}, "rescore": {}}, {}, "collapse"),
        ({"query": QUERY, "rank": {"of_next_year": {}}}, {}, "rank"),
        ({"retriever": {"of_next_year": {}}}, {}, "of_next_year"),
        ({"retriever": {"standard": {}, "knn": {}}}, {}, "retriever"),
        ({"retriever": {"rrf": 1}}, {}, "retriever"),
        ({"retriever": {"standard": {"query": QUERY, "sort": ["date"]}}}, {}, "sort"),
        (
            {"retriever": {"standard": {"query": QUERY, "terminate_after": 9}}},
            {},
            "terminate_after",
        ),
        ({"retriever": {"standard": {"filter": {"of_next_year": {}}}}}, {}, "of_next_year"),
        ({"retriever": {"rrf": {"retrievers": [{"pinned": {}}]}}}, {}, "pinned"),
        ({"retriever": {"rrf": {"retrievers": [{"rule": {}}]}}}, {}, "rule"),
        ({"retriever": {"rrf": {"rank_window_size": 20}}, "size": 30}, {}, "size"),
        ({"retriever": {"rrf": {"rank_window_size": 20}}, "from": 5}, {}, "from"),
        ({"query": QUERY}, {"source": "{}"}, "source"),
        ({"query": QUERY, "size": 0}, {}, "size"),
        ({"query": QUERY, "size": "many"}, {}, "size"),
        ({"query": QUERY, "from": -1}, {}, "size"),
        ({"query": QUERY, "from": 50}, {}, "from"),
        ({"query": QUERY}, {"scroll": "1m"}, "scroll"),
        ({"query": QUERY, "ext": {"ubi": {}, "of_next_year": {}}}, {}, "ext"),
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
        assert isinstance(why, ProxiedSearch) or re.fullmatch(r"[\w.]{1,50}", why, re.ASCII)


RANKED = {"rrf": {"retrievers": [], "rank_window_size": 30}}


@pytest.mark.parametrize(
    ("body", "window", "asked"),
    [
        ({"query": QUERY, "sort": {"_score": {"order": "DESC"}}}, 50, 50),
        ({"query": QUERY, "sort": [], "size": 80}, 50, 80),
        ({"query": QUERY, "sort": ["_score", "date"], "size": 12}, 11, 12),
        ({"query": QUERY, "collapse": {"field": "a"}}, 50, 50),
        ({"query": QUERY, "rescore": {}}, 10, 10),
        ({"query": QUERY, "rescore": [{"window_size": 30}, {"window_size": 40}]}, 30, 30),
        ({"query": QUERY, "rescore": {"window_size": 30}, "from": 25}, 30, 35),
        ({"knn": NEAREST}, 20, 20),
        ({"knn": [NEAREST, NEAREST]}, 40, 40),
        ({"knn": NEAREST, "query": QUERY}, 50, 50),
        ({"knn": {"field": "v"}}, 10, None),
        ({"knn": {"field": "v"}, "query": QUERY, "size": 20}, 20, 20),
        ({"query": {"knn": NEAREST}}, 50, 50),
        ({"query": {"bool": {"must": [QUERY, {"knn": {"field": "v"}}]}}}, 10, None),
        ({"query": QUERY, "post_filter": {"knn": {"field": "v"}}}, 10, None),
        ({"query": {"knn": {"v": {"vector": [1.0], "k": 3}}}}, 50, 50),
        ({"query": {"semantic": {"field": "v", "query": "opera"}}}, 10, None),
        ({"query": HYBRID}, 10, None),
        ({"query": NEURAL}, 50, 50),
        ({"query": {"hybrid": {"queries": [QUERY], "pagination_depth": 40}}}, 40, 40),
        ({"query": QUERY, "search_pipeline": "a"}, 10, None),
        ({"query": QUERY, "search_pipeline": "_none"}, 50, 50),
        ({"query": PINNED}, 50, 50),
        ({"query": QUERY, "rank": {"rrf": {"window_size": 40}}, "size": 10}, 40, 40),
        ({"retriever": {"standard": {"query": QUERY}}}, 50, 50),
        ({"retriever": {"knn": NEAREST}}, 20, 20),
        ({"retriever": RANKED, "size": 10}, 30, 30),
        ({"retriever": RANKED, "size": 10, "from": 25}, 30, 30),
        ({"retriever": RANKED}, 30, None),
        ({"retriever": {"rrf": {"retrievers": []}}, "size": 8}, 8, 8),
    ],
)
def test_no_more_is_asked_for_than_a_search_ranks(
    body: dict[str, Any], window: int, asked: int | None
) -> None:
    """Where the size decides what is found, it stays, and so it does where it is missing."""
    plan = planned(body, {}, INDEX)
    assert isinstance(plan, ProxiedSearch)
    assert (plan.window, plan.body.get("size")) == (window, asked)
    assert plan.body.keys() - {"from", "size"} == body.keys() - {"from", "size"}


def test_a_field_by_which_hits_are_collapsed_is_the_clients_own() -> None:
    """It is not cut out, and stands beside other columns, which Elasticsearch 8.12 needs."""
    labels = LabelFields(columns=({"field": "sex"}, {"field": "born"}))
    for name, added in ("sex", {"born"}), ("place", {"sex", "born"}):
        plan = planned({"query": QUERY, "collapse": {"field": name}}, {}, INDEX, labels=labels)
        assert isinstance(plan, ProxiedSearch)
        assert plan.added == added
        columns = plan.body["docvalue_fields"]
        assert columns == [name, *({"field": field} for field in ("sex", "born") if field in added)]


@pytest.mark.parametrize(
    ("body", "is_possible"),
    [
        ({"query": QUERY}, True),
        ({"query": QUERY, "sort": "_score"}, True),
        ({"query": QUERY, "sort": ["_score", "date"]}, False),
        ({"query": {"knn": {"v": {"vector": [1.0], "k": 3}}}}, False),
        ({"query": PINNED}, False),
        ({"query": QUERY, "collapse": {"field": "a"}}, False),
        ({"query": QUERY, "rescore": {"window_size": 30}}, False),
        ({"retriever": {"standard": {"query": QUERY}}}, False),
    ],
)
def test_large_documents_are_left_out_only_where_another_search_finds_the_same_hits(
    body: dict[str, Any], is_possible: bool
) -> None:
    plan = planned(body, {}, INDEX)
    assert isinstance(plan, ProxiedSearch)
    assert (without_documents(plan, body, {}) is not None) == is_possible


KEPT: dict[str, Any] = {"query": QUERY, "sort": "_score", "aggs": {}, "highlight": {}}


@given(start=st.integers(0, 200), size=st.integers(1, 100))
def test_the_whole_window_is_asked_for_and_pages_of_a_query_are_of_one_kind(
    start: int, size: int
) -> None:
    """What stands within the window is re-ranked, and what is beyond comes as the engine has it."""
    first = planned(None, {}, INDEX)
    assert isinstance(first, ProxiedSearch)
    assert (first.start, first.size, first.body["size"]) == (0, 10, 50)
    for body, parameters in (
        ({**KEPT, "from": start, "size": size}, {}),
        ({**KEPT, "from": 3}, {"from": str(start), "size": str(size)}),
    ):
        plan, other = planned(body, parameters, INDEX), planned(KEPT, {"size": "3"}, INDEX)
        if start >= 50:
            assert plan == "from"
            continue
        assert isinstance(plan, ProxiedSearch)
        assert isinstance(other, ProxiedSearch)
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
        (PINNED, "physicist"),
        (
            {"hybrid": {"queries": [QUERY, {"neural": {"v": {"query_text": "tennis"}}}]}},
            "physicist tennis",
        ),
        ({"semantic": {"field": "v", "query": "opera"}}, "opera"),
        ({"sparse_vector": {"field": "v", "inference_id": "a", "query": "opera"}}, "opera"),
        ({"text_expansion": {"v": {"model_id": "a", "model_text": "opera"}}}, "opera"),
    ],
)
def test_the_words_of_a_query_are_found(query: Any, words: str) -> None:
    """Also where it stands in a retriever."""
    retriever = {
        "rrf": {"retrievers": [{"retriever": {"standard": {"query": query}}, "weight": 1}]}
    }
    found = [*words_in({"retriever": retriever})]
    assert " ".join(dict.fromkeys(found)) == words
    plan = planned({"query": query}, {}, INDEX)
    assert isinstance(plan, ProxiedSearch)
    assert plan.words == words


@pytest.mark.parametrize(
    "retriever",
    [
        {"rrf": {"query": "opera", "fields": ["a", "b"]}},
        {"linear": {"query": "opera", "fields": ["a"], "normalizer": "minmax"}},
        {"text_similarity_reranker": {"inference_text": "opera", "retriever": {"knn": NEAREST}}},
        {
            "knn": {
                "query_vector_builder": {"text_embedding": {"model_text": "opera"}},
                "field": "v",
            }
        },
        {"standard": {"query": {"match": {"a": "opera"}}, "filter": {"match": {"b": "person"}}}},
    ],
)
def test_the_words_of_a_retriever_are_found(retriever: Any) -> None:
    plan = planned({"retriever": retriever, "size": 10}, {}, INDEX)
    assert isinstance(plan, ProxiedSearch)
    assert plan.words == "opera"


def test_shares_of_queries_are_drawn_by_their_hash() -> None:
    queries = [{"query": {"match": {"title": f"word {number}"}}} for number in range(500)]
    few, more, every, none = (
        [planned(it, {}, INDEX.model_copy(update={"share": share})).fair for it in queries]  # type: ignore[union-attr]
        for share in (0.1, 0.3, 1.0, 0.0)
    )
    assert 0.05 < sum(few) / 500 < 0.15
    assert all(more for less, more in zip(few, more, strict=True) if less)
    assert (sum(every), sum(none)) == (500, 0)


def test_what_user_behavior_insights_records_changes_no_list() -> None:
    ubi = {"query_id": "e2f1", "user_query": "opera", "client_id": "c", "object_id_field": "id"}
    bare = planned({"query": QUERY}, {}, INDEX)
    named = planned({"query": QUERY, "ext": {"ubi": ubi}}, {}, INDEX)
    assert isinstance(bare, ProxiedSearch)
    assert isinstance(named, ProxiedSearch)
    assert named.key == bare.key
    assert named.body["ext"] == {"ubi": ubi}
    assert named_by_client({"ext": {"ubi": ubi}}) == "e2f1"
    for other in ({}, [], {"ext": []}, {"ext": {"ubi": {"query_id": 3}}}):
        assert named_by_client(other) == ""


def test_a_coin_is_tossed_for_a_share_of_the_queries_and_falls_evenly() -> None:
    keys = [f"{number:016x}" for number in range(4_000)]
    tosses = [toss for key in keys if (toss := tossed(key, 0.25, 5))]
    assert 0.2 < len(tosses) / 4_000 < 0.3
    assert 0.4 < sum(it["is_swapped"] for it in tosses) / len(tosses) < 0.6
    ranks = Counter(it["rank"] for it in tosses)
    assert ranks.keys() == {2, 3, 4, 5}
    assert min(ranks.values()) > 150
    again = [toss for key in keys if (toss := tossed(key, 0.25, 5))]
    assert again == tosses  # all day
    assert not any(tossed(key, 0.0, 5) or tossed(key, 1.0, 1) for key in keys)


async def test_chance_swaps_the_first_rank_with_another_in_what_is_shown(tmp_path: Path) -> None:
    labels = [{"id": f"{it}", "text": "opera", "g": ("male", "female")[it > 3]} for it in range(8)]
    engine = await indexed(tmp_path, labels)
    hits = [{"_id": one["id"]} for one in labels]
    context = Context.of(target="uniform:1", k=4)
    order = IndexOrder(None, engine, context, ListEvidence(), None, swap=1.0)
    told = list[Any]()
    for number in range(40):
        body = {"query": {"match": {"text": f"opera {number}"}}, "size": 3}
        plan = planned(body, {}, INDEX)
        assert isinstance(plan, ProxiedSearch)
        told.append(await order(hits, plan, until=math.inf))
    later = planned({"query": QUERY, "size": 3, "from": 3}, {}, INDEX)
    assert isinstance(later, ProxiedSearch)
    assert "swap" not in await order(hits, later, until=math.inf)
    await engine.aclose()
    swaps = [it["swap"] for it in told if "swap" in it]
    assert {it["rank"] for it in swaps} == {2, 3}  # the fourth is on no page of three
    assert {it["is_swapped"] for it in swaps} == {True, False}
    for it in told:
        fair = it["order"]
        shown = order_shown(it)
        swap = it.get("swap", {"rank": 1, "is_swapped": False})
        last = swap["rank"] - 1
        assert (shown[0] == fair[last]) == (swap["is_swapped"] or not last)
        assert sorted(shown) == sorted(fair)
        exposures = it["exposure"]
        is_swap_of_groups = (fair[0] > 3) != (fair[last] > 3) and swap["is_swapped"]
        assert (exposures["shown"] != exposures["fair"]) == is_swap_of_groups


async def test_a_list_that_comes_too_late_is_no_deficit(tmp_path: Path) -> None:
    labels = [{"id": f"{it}", "text": "opera", "g": ("male", "female")[it > 3]} for it in range(6)]
    engine, plan = await indexed(tmp_path, labels), planned({"query": QUERY}, {}, INDEX)
    assert isinstance(plan, ProxiedSearch)
    context, hits = Context.of(target="uniform:1"), [{"_id": one["id"]} for one in labels]
    order = IndexOrder(None, engine, context, ListEvidence(), deficit := AmortisedDeficit())
    with pytest.raises(UnavailableError, match="slow"):
        await order(hits, plan, until=0)
    assert deficit.by_group == {}
    await order(hits, plan, until=math.inf)
    assert deficit.by_group
    await engine.aclose()


async def test_pinned_documents_stay_first_and_figures_are_of_what_is_shown(tmp_path: Path) -> None:
    labels = [{"id": f"{it}", "text": "opera", "g": ("male", "female")[it > 3]} for it in range(8)]
    engine = await indexed(tmp_path, labels)
    pinned = {"pinned": {"ids": ["1", "9", "0"], "organic": QUERY}}
    hits = [{"_id": one["id"]} for one in labels]
    order = IndexOrder(None, engine, Context.of(target="uniform:1", k=4), ListEvidence(), None)
    told = list[Any]()
    for query in (pinned, QUERY):
        plan = planned({"query": query, "size": 4}, {}, INDEX)
        assert isinstance(plan, ProxiedSearch)
        told.append(await order(hits, plan, until=math.inf))
    await engine.aclose()
    held, free = told
    assert held["order"][:2] == [0, 1]
    assert sorted(held["order"]) == [*range(8)]
    assert held["order"][2:4] != [2, 3]
    shown = held["exposure"]["shown"]["gender"]
    assert shown == held["exposure"]["fair"]["gender"]
    assert shown["male"] > free["exposure"]["shown"]["gender"]["male"]
    assert (held["quality"].keys(), free["quality"].keys()) == (set(), {"engine", "fair"})
    assert held["bound"] is None
    assert 0 < free["bound"] <= 1 + 1e-9


async def test_a_list_tells_which_limit_it_does_not_obey(tmp_path: Path) -> None:
    """No list gives each of two groups at most .3 of the exposure."""
    labels = [{"id": f"{it}", "text": "opera", "g": ("male", "female")[it > 3]} for it in range(8)]
    engine = await indexed(tmp_path, labels)
    context = Context.of(target="uniform:1", k=4, at_most=0.3)
    order = IndexOrder(None, engine, context, ListEvidence(), None)
    plan = planned({"query": QUERY, "size": 4}, {}, INDEX)
    assert isinstance(plan, ProxiedSearch)
    told = await order([{"_id": one["id"]} for one in labels], plan, until=math.inf)
    await engine.aclose()
    (sentence,) = told["broken"]
    assert "more than at_most" in sentence


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        ({"query": QUERY, "sort": ["_score", "date"]}, {}),
        ({"query": QUERY}, {"sort": "_score,date"}),
        ({"query": QUERY, "min_score": 1}, {}),
        ({"query": QUERY, "indices_boost": [{"people": 2}]}, {}),
        ({"query": QUERY, "runtime_mappings": {"a": {"type": "long"}}}, {}),
        ({"query": QUERY, "runtime_mappings": None}, {}),
        ({"query": QUERY}, {"routing": "a"}),
        ({"query": QUERY}, {"search_pipeline": "a"}),
        ({}, {"q": "opera"}),
        ({}, {"q": "opera", "df": "title"}),
        ({}, {"q": "opera", "default_operator": "and"}),
    ],
    ids=str,
)
def test_the_hash_of_a_query_tells_apart_what_changes_its_list(
    body: dict[str, Any], parameters: dict[str, str]
) -> None:
    others = [({"query": QUERY}, {}), ({}, {"q": "opera"}), ({}, {})]
    own = key_of(body, parameters)
    assert own not in [key_of(*it) for it in others if it != (body, parameters)]
    paged = {**body, "from": 3, "size": 4, "_source": False, "aggs": {"a": {}}}
    assert key_of(paged, {**parameters, "size": "5", "preference": "me", "pretty": ""}) == own
    page = page_of(paged, parameters, INDEX, "people", 0, "name")  # one that passes
    assert page.key == own


@pytest.mark.parametrize(("size", "k"), [(3, 4), (4, 4), (6, 4), (8, 8), (20, 20)])
@pytest.mark.parametrize("sort", [[], ["_score", "date"]], ids=["by score", "then by date"])
@pytest.mark.parametrize("fair", [False, True], ids=["shadow", "fair"])
async def test_the_first_k_ranks_of_the_page_count_in_each_order(
    tmp_path: Path, size: int, k: int, sort: list[str], *, fair: bool
) -> None:
    """Also those that are shown and stay where they are, below what is re-ranked."""
    sexes = ["male", "male", "male", "female", "male", "female", "male", "female"]
    labels = [{"id": f"{place}", "text": "opera", "g": sex} for place, sex in enumerate(sexes)]
    engine = await indexed(tmp_path, labels)
    context = Context.of(target="uniform:1", k=k)
    order = IndexOrder(None, engine, context, ListEvidence(), None)
    how = INDEX.model_copy(update={"mode": "fair" if fair else "shadow"})
    plan = planned({"query": QUERY, "size": size, "sort": sort}, {}, how)
    assert isinstance(plan, ProxiedSearch)
    told = await order([{"_id": one["id"]} for one in labels], plan, until=math.inf)
    page = await order.measured([{"_id": one["id"]} for one in labels[:size]])
    await engine.aclose()

    def by_hand(places: list[int]) -> float:
        weights = [1 / math.log2(rank + 2) for rank in range(min(k, size, len(sexes)))]
        women = [weight for weight, at in zip(weights, places, strict=False) if at in (3, 5, 7)]
        return sum(women) / sum(weights)

    women = {name: own["gender"]["female"] for name, own in told["exposure"].items()}
    unchanged = [*range(8)]
    rest = unchanged[len(told["order"]) :]
    assert women["engine"] == pytest.approx(by_hand(unchanged))
    assert women["fair"] == pytest.approx(by_hand([*told["order"], *rest]))
    assert women["shown"] == women["fair" if fair else "engine"]
    assert page["exposure"]["shown"]["gender"]["female"] == pytest.approx(women["engine"])
    assert (told["k"], told["page"]) == (page["k"], page["page"]) == (k, min(size, 8))
    assert len(told["ids"]) == len(told["order"]) >= min(size, k, 8)
