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
from fairqr.graph.service.proxy.large import without_documents
from fairqr.graph.service.proxy.ordering import IndexOrder, order_shown, tossed
from fairqr.graph.service.proxy.pages import page_of
from fairqr.graph.service.proxy.queries import words_in
from fairqr.graph.service.proxy.requests import (
    LabelFields,
    ProxiedSearch,
    UnavailableError,
    key_of,
    named_by_client,
    planned,
)
from fairqr.graph.service.proxy.settings import ProxiedIndex
from tests.unit.graph.corpora import indexed

QUERY = {"match": {"title": "physicist"}}
NEAREST = {"field": "v", "query_vector": [1.0], "k": 20, "num_candidates": 40}
PINNED = {"pinned": {"ids": ["1", "2"], "organic": QUERY}}
NEURAL = {"neural": {"v": {"query_text": "tennis", "model_id": "a", "k": 9}}}
HYBRID = {"hybrid": {"queries": [QUERY]}}
INDEX = ProxiedIndex(source=Path("people.yaml"), mode="fair", window=50)


@pytest.mark.parametrize(
    ("body", "parameters", "reason"),
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
    body: Any, parameters: dict[str, str], reason: str
) -> None:
    assert planned(body, parameters, INDEX) == reason


@given(name=st.text(), parameter=st.text())
def test_a_header_can_say_why_any_search_passes(name: str, parameter: str) -> None:
    requests: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({name: 1}, {}),
        ({"query": {name: {}}}, {}),
        ({}, {parameter: ""}),
    ]
    for body, parameters in requests:
        plan = planned(body, parameters, INDEX)
        assert isinstance(plan, ProxiedSearch) or re.fullmatch(r"[\w.]{1,50}", plan, re.ASCII)


RANKED = {"rrf": {"retrievers": [], "rank_window_size": 30}}


@pytest.mark.parametrize(
    ("body", "window", "size"),
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
    body: dict[str, Any], window: int, size: int | None
) -> None:
    """Where the size decides what is found, it stays, and so it does where it is missing."""
    plan = planned(body, {}, INDEX)
    assert isinstance(plan, ProxiedSearch)
    assert (plan.window, plan.body.get("size")) == (window, size)
    assert plan.body.keys() - {"from", "size"} == body.keys() - {"from", "size"}


@pytest.mark.parametrize(
    ("collapsed", "added"),
    [("sex", ["born"]), ("place", ["sex", "born"])],
    ids=["a label", "no label"],
)
def test_a_field_by_which_hits_are_collapsed_is_the_clients_own(
    collapsed: str, added: list[str]
) -> None:
    """It is not cut out, and stands beside other columns, which Elasticsearch 8.12 needs."""
    labels = LabelFields(columns=({"field": "sex"}, {"field": "born"}))
    body = {"query": QUERY, "collapse": {"field": collapsed}}
    plan = planned(body, {}, INDEX, labels=labels)

    assert isinstance(plan, ProxiedSearch)
    assert plan.added == {*added}
    assert plan.body["docvalue_fields"] == [collapsed, *({"field": field} for field in added)]


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
def test_large_documents_are_left_out_where_hits_stay_the_same(
    body: dict[str, Any], is_possible: bool
) -> None:
    plan = planned(body, {}, INDEX)
    assert isinstance(plan, ProxiedSearch)
    assert (without_documents(plan, body, {}) is not None) == is_possible


KEPT: dict[str, Any] = {"query": QUERY, "sort": "_score", "aggs": {}, "highlight": {}}


def search_of(body: dict[str, Any] | None, parameters: dict[str, str]) -> ProxiedSearch:
    """Return the plan of a search that is re-ranked."""
    plan = planned(body, parameters, INDEX)
    assert isinstance(plan, ProxiedSearch)
    return plan


def test_the_whole_window_is_asked_for() -> None:
    """What stands within the window is re-ranked, and what is beyond comes as the engine has it."""
    plan = search_of(None, {})
    assert (plan.start, plan.size, plan.body["size"]) == (0, 10, 50)


PAGES = given(start=st.integers(0, 200), size=st.integers(1, 100))


@PAGES
def test_a_page_in_the_body_is_of_the_same_list(start: int, size: int) -> None:
    check_page({**KEPT, "from": start, "size": size}, {}, start, size)


@PAGES
def test_a_page_in_the_parameters_is_of_the_same_list(start: int, size: int) -> None:
    check_page({**KEPT, "from": 3}, {"from": str(start), "size": str(size)}, start, size)


def check_page(body: dict[str, Any], parameters: dict[str, str], start: int, size: int) -> None:
    """Check that a page has its window, and the key and the arm of other pages."""
    if start >= 50:
        assert planned(body, parameters, INDEX) == "from"
        return
    plan = search_of(body, parameters)
    other_page = search_of(KEPT, {"size": "3"})
    assert (plan.start, plan.size) == (start, size)
    assert plan.body == {**KEPT, "from": 0, "size": max(50, start + size)}
    assert (plan.key, plan.fair) == (other_page.key, other_page.fair)


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
    words_of_retriever = [*words_in({"retriever": retriever})]
    assert " ".join(dict.fromkeys(words_of_retriever)) == words
    assert search_of({"query": query}, {}).words == words


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
    assert search_of({"retriever": retriever, "size": 10}, {}).words == "opera"


def numbers_of_fair_queries(share: float) -> set[int]:
    """Return which of 500 queries get fair lists."""
    index = INDEX.model_copy(update={"share": share})
    fair = set()
    for number in range(500):
        plan = planned({"query": {"match": {"title": f"word {number}"}}}, {}, index)
        assert isinstance(plan, ProxiedSearch)
        if plan.fair:
            fair.add(number)
    return fair


def test_shares_of_queries_are_drawn_by_their_hash() -> None:
    few = numbers_of_fair_queries(0.1)
    more = numbers_of_fair_queries(0.3)
    assert 25 < len(few) < 75
    assert few <= more
    assert len(numbers_of_fair_queries(1.0)) == 500
    assert len(numbers_of_fair_queries(0.0)) == 0


UBI = {"query_id": "e2f1", "user_query": "opera", "client_id": "c", "object_id_field": "id"}


def test_what_user_behavior_insights_records_changes_no_list() -> None:
    bare = search_of({"query": QUERY}, {})
    recorded = search_of({"query": QUERY, "ext": {"ubi": UBI}}, {})
    assert recorded.key == bare.key
    assert recorded.body["ext"] == {"ubi": UBI}


@pytest.mark.parametrize(
    ("body", "id_"),
    [
        ({"ext": {"ubi": UBI}}, "e2f1"),
        ({}, ""),
        ([], ""),
        ({"ext": []}, ""),
        ({"ext": {"ubi": {"query_id": 3}}}, ""),
    ],
    ids=["named", "no extension", "no object", "empty", "number"],
)
def test_a_client_may_name_its_query(body: Any, id_: str) -> None:
    assert named_by_client(body) == id_


KEYS = [f"{number:016x}" for number in range(4_000)]


def tosses_of(keys: list[str], share: float, ranks: int) -> list[dict[str, Any]]:
    """Return the tosses for those of the keys for which a coin is tossed."""
    return [toss for key in keys if (toss := tossed(key, share, ranks))]


@pytest.mark.promise("service")
def test_a_coin_falls_evenly_for_a_share_of_the_queries() -> None:
    """For a share of the queries a coin is tossed, which falls evenly and chooses each of the other
    ranks about as often.
    """
    tosses = tosses_of(KEYS, 0.25, 5)
    assert 0.2 < len(tosses) / len(KEYS) < 0.3
    assert 0.4 < sum(toss["is_swapped"] for toss in tosses) / len(tosses) < 0.6

    ranks = Counter(toss["rank"] for toss in tosses)
    assert ranks.keys() == {2, 3, 4, 5}
    assert min(ranks.values()) > 150


def test_a_coin_falls_the_same_way_all_day() -> None:
    assert tosses_of(KEYS, 0.25, 5) == tosses_of(KEYS, 0.25, 5)


def test_no_coin_is_tossed_for_no_query_or_a_single_rank() -> None:
    assert tosses_of(KEYS, 0.0, 5) == []
    assert tosses_of(KEYS, 1.0, 1) == []


def people(number: int) -> list[dict[str, str]]:
    """Return documents of which the first four are of men and all others of women."""
    sexes = ["male"] * 4 + ["female"] * (number - 4)
    return [{"id": f"{id_}", "text": "opera", "g": sex} for id_, sex in enumerate(sexes)]


def hits_of(documents: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{"_id": document["id"]} for document in documents]


@pytest.fixture
async def swapped_lists(tmp_path: Path) -> list[dict[str, Any]]:
    """Lists of 40 queries for each of which a coin was tossed; a page shows three."""
    documents = people(8)
    engine = await indexed(tmp_path, documents)
    context = Context.of(target="uniform:1", k=4)
    order = IndexOrder(None, engine, context, ListEvidence(), None, swap=1.0)
    lists = []
    for number in range(40):
        plan = search_of({"query": {"match": {"text": f"opera {number}"}}, "size": 3}, {})
        lists.append(await order(hits_of(documents), plan, until=math.inf))
    await engine.aclose()
    return lists


async def test_a_later_page_is_never_swapped(tmp_path: Path) -> None:
    documents = people(8)
    engine = await indexed(tmp_path, documents)
    context = Context.of(target="uniform:1", k=4)
    order = IndexOrder(None, engine, context, ListEvidence(), None, swap=1.0)
    later_page = search_of({"query": QUERY, "size": 3, "from": 3}, {})

    assert "swap" not in await order(hits_of(documents), later_page, until=math.inf)

    await engine.aclose()


@pytest.mark.promise("service")
async def test_chance_swaps_the_first_rank_with_another(
    swapped_lists: list[dict[str, Any]],
) -> None:
    """For these queries chance swaps the first rank of what is shown with another rank of the page,
    and no document is lost.
    """
    swaps = [fair_list["swap"] for fair_list in swapped_lists if "swap" in fair_list]
    assert {swap["rank"] for swap in swaps} == {2, 3}  # the fourth is on no page of three
    assert {swap["is_swapped"] for swap in swaps} == {True, False}

    for fair_list in swapped_lists:
        fair = fair_list["order"]
        shown = order_shown(fair_list)
        swap = fair_list.get("swap", {"rank": 1, "is_swapped": False})
        last = swap["rank"] - 1

        assert (shown[0] == fair[last]) == (swap["is_swapped"] or not last)
        assert sorted(shown) == sorted(fair)


async def test_the_exposure_shown_is_that_of_the_swapped_list(
    swapped_lists: list[dict[str, Any]],
) -> None:
    for fair_list in swapped_lists:
        fair = fair_list["order"]
        swap = fair_list.get("swap", {"rank": 1, "is_swapped": False})
        last = swap["rank"] - 1
        is_swap_of_groups = (fair[0] > 3) != (fair[last] > 3) and swap["is_swapped"]
        exposures = fair_list["exposure"]

        assert (exposures["shown"] != exposures["fair"]) == is_swap_of_groups


async def test_a_list_that_comes_too_late_is_no_deficit(tmp_path: Path) -> None:
    documents = people(6)
    engine = await indexed(tmp_path, documents)
    deficit = AmortisedDeficit()
    order = IndexOrder(None, engine, Context.of(target="uniform:1"), ListEvidence(), deficit)
    plan = search_of({"query": QUERY}, {})

    with pytest.raises(UnavailableError, match="slow"):
        await order(hits_of(documents), plan, until=0)
    assert deficit.by_group == {}

    await order(hits_of(documents), plan, until=math.inf)
    assert deficit.by_group

    await engine.aclose()


@pytest.fixture
async def pinned_and_free(tmp_path: Path) -> list[dict[str, Any]]:
    """The list of a query that pins documents, and that of the same query without pins."""
    documents = people(8)
    engine = await indexed(tmp_path, documents)
    context = Context.of(target="uniform:1", k=4)
    order = IndexOrder(None, engine, context, ListEvidence(), None)
    pinned = {"pinned": {"ids": ["1", "9", "0"], "organic": QUERY}}
    lists = []
    for query in (pinned, QUERY):
        plan = search_of({"query": query, "size": 4}, {})
        lists.append(await order(hits_of(documents), plan, until=math.inf))
    await engine.aclose()
    return lists


async def test_pinned_documents_stay_first(pinned_and_free: list[dict[str, Any]]) -> None:
    pinned, _ = pinned_and_free
    assert pinned["order"][:2] == [0, 1]
    assert sorted(pinned["order"]) == [*range(8)]
    assert pinned["order"][2:4] != [2, 3]


async def test_figures_of_a_pinned_list_are_of_what_is_shown(
    pinned_and_free: list[dict[str, Any]],
) -> None:
    pinned, free = pinned_and_free
    shown = pinned["exposure"]["shown"]["gender"]
    assert shown == pinned["exposure"]["fair"]["gender"]
    assert shown["male"] > free["exposure"]["shown"]["gender"]["male"]


async def test_a_pinned_list_has_no_quality_and_no_bound(
    pinned_and_free: list[dict[str, Any]],
) -> None:
    pinned, free = pinned_and_free
    assert pinned["quality"] == {}
    assert free["quality"].keys() == {"engine", "fair"}
    assert pinned["bound"] is None
    assert 0 < free["bound"] <= 1 + 1e-9


async def test_a_list_tells_which_limit_it_does_not_obey(tmp_path: Path) -> None:
    """No list gives each of two groups at most .3 of the exposure."""
    documents = people(8)
    engine = await indexed(tmp_path, documents)
    context = Context.of(target="uniform:1", k=4, at_most=0.3)
    order = IndexOrder(None, engine, context, ListEvidence(), None)
    plan = search_of({"query": QUERY, "size": 4}, {})
    fair_list = await order(hits_of(documents), plan, until=math.inf)
    await engine.aclose()

    (sentence,) = fair_list["broken"]
    assert "more than at_most" in sentence


DIFFERENT_QUERIES = pytest.mark.parametrize(
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
    ids=[
        "sort",
        "sort parameter",
        "least score",
        "boosts",
        "runtime field",
        "no runtime field",
        "routing",
        "pipeline",
        "words",
        "words in a field",
        "words with and",
    ],
)


@DIFFERENT_QUERIES
def test_queries_with_different_lists_have_different_hashes(
    body: dict[str, Any], parameters: dict[str, str]
) -> None:
    searches: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"query": QUERY}, {}),
        ({}, {"q": "opera"}),
        ({}, {}),
    ]
    others = [search for search in searches if search != (body, parameters)]
    key = key_of(body, parameters)

    assert key not in [key_of(*search) for search in others]


@DIFFERENT_QUERIES
def test_all_pages_of_a_query_have_its_hash(
    body: dict[str, Any], parameters: dict[str, str]
) -> None:
    key = key_of(body, parameters)
    paged = {**body, "from": 3, "size": 4, "_source": False, "aggs": {"a": {}}}
    passing = page_of(paged, parameters, INDEX, "people", 0, "name")

    assert key_of(paged, {**parameters, "size": "5", "preference": "me", "pretty": ""}) == key
    assert passing.key == key


@pytest.mark.parametrize(("size", "k"), [(3, 4), (4, 4), (6, 4), (8, 8), (20, 20)])
@pytest.mark.parametrize("sort", [[], ["_score", "date"]], ids=["by score", "then by date"])
@pytest.mark.parametrize("fair", [False, True], ids=["shadow", "fair"])
async def test_the_first_k_ranks_of_the_page_count_in_each_order(
    tmp_path: Path, size: int, k: int, sort: list[str], *, fair: bool
) -> None:
    """Also those that are shown and stay where they are, below what is re-ranked."""
    sexes = ["male", "male", "male", "female", "male", "female", "male", "female"]
    documents = [{"id": f"{number}", "text": "opera", "g": sex} for number, sex in enumerate(sexes)]
    engine = await indexed(tmp_path, documents)
    context = Context.of(target="uniform:1", k=k)
    order = IndexOrder(None, engine, context, ListEvidence(), None)
    index = INDEX.model_copy(update={"mode": "fair" if fair else "shadow"})
    plan = planned({"query": QUERY, "size": size, "sort": sort}, {}, index)

    assert isinstance(plan, ProxiedSearch)

    fair_list = await order(hits_of(documents), plan, until=math.inf)
    page = await order.measured(hits_of(documents[:size]))
    await engine.aclose()

    def share_of_women(order: list[int]) -> float:
        """Compute by hand which share of the exposure women have."""
        weights = [1 / math.log2(rank + 2) for rank in range(min(k, size, len(sexes)))]
        of_women = 0.0
        for weight, position in zip(weights, order, strict=False):
            if sexes[position] == "female":
                of_women += weight
        return of_women / sum(weights)

    women = {name: shares["gender"]["female"] for name, shares in fair_list["exposure"].items()}
    unchanged = [*range(8)]
    rest = unchanged[len(fair_list["order"]) :]

    assert women["engine"] == pytest.approx(share_of_women(unchanged))
    assert women["fair"] == pytest.approx(share_of_women([*fair_list["order"], *rest]))
    assert women["shown"] == women["fair" if fair else "engine"]
    assert page["exposure"]["shown"]["gender"]["female"] == pytest.approx(women["engine"])
    assert fair_list["k"] == page["k"] == k
    assert fair_list["page"] == page["page"] == min(size, 8)
    assert len(fair_list["ids"]) == len(fair_list["order"]) >= min(size, k, 8)
