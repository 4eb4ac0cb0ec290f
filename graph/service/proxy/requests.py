"""Which searches are re-ranked, and what is asked of the cluster for them.

A search is re-ranked if only the order of its hits would change. Everything else passes, also what
is not listed here: what clusters learn tomorrow passes until somebody lists it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_HARMLESS = (
    "query from size _source fields docvalue_fields stored_fields script_fields highlight aggs "
    "aggregations track_total_hits track_scores explain version seq_no_primary_term min_score "
    "post_filter indices_boost runtime_mappings stats suggest profile timeout"
)
HARMLESS = frozenset(_HARMLESS.split())
"""What may stand in a body: it orders no hits, and says the same however many are asked for."""

_PARAMETERS = (
    "from size q df default_operator analyzer analyze_wildcard lenient routing preference "
    "search_type _source _source_includes _source_excludes stored_fields docvalue_fields "
    "track_total_hits track_scores explain version seq_no_primary_term stats pretty human "
    "ignore_unavailable allow_no_indices expand_wildcards ignore_throttled request_cache "
    "typed_keys rest_total_hits_as_int allow_partial_search_results batched_reduce_size "
    "ccs_minimize_roundtrips max_concurrent_shard_requests pre_filter_shard_size timeout"
)
PARAMETERS = frozenset(_PARAMETERS.split())
"""Likewise in the address."""

SCORED = ("_score", ["_score"], {"_score": "desc"}, [{"_score": "desc"}])
"""Orders that are none."""

SIZE = 10
"""How many hits a search returns that does not say."""

WORDS = (
    "match",
    "multi_match",
    "query_string",
    "simple_query_string",
    "match_phrase",
    "combined_fields",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A search that is re-ranked.

    Attributes:
        body: What the cluster is asked: the whole window, and the page if that reaches beyond.
        start: How many hits to skip.
        size: How many to return.
        window: How many of the first hits are re-ranked.
        words: What was searched for, empty if the query has no words.
        key: Stands for the query, whatever the page.
    """

    body: dict[str, Any]
    start: int
    size: int
    window: int
    words: str
    key: str

    @property
    def draw(self) -> float:
        """A number in [0, 1) that is the same for all pages of a query."""
        return int(self.key, 16) / 2**64


def planned(body: Any, parameters: Mapping[str, str], window: int) -> Plan | str:
    """Return how to re-rank a search, or why it passes.

    Args:
        body: The body as JSON; None if there is none.
        parameters: The parameters in the address, which win over the body's.
        window: How many of the first hits to re-rank.
    """
    asked = {} if body is None else body
    if not isinstance(asked, Mapping):
        return "body"
    if "sort" in asked and asked["sort"] in SCORED:
        asked = {name: value for name, value in asked.items() if name != "sort"}
    unknown = [*(asked.keys() - HARMLESS), *(parameters.keys() - PARAMETERS)]
    if unknown:
        return str(min(unknown))
    try:
        start = int(parameters.get("from", asked.get("from", 0)))
        size = int(parameters.get("size", asked.get("size", SIZE)))
    except (TypeError, ValueError):
        return "size"
    if size < 1 or start < 0:
        return "size"
    if start >= window:
        return "from"
    query = {name: asked[name] for name in ("query", "min_score", "post_filter") if name in asked}
    told = json.dumps([query, parameters.get("q", "")], sort_keys=True)
    return Plan(
        body={**asked, "from": 0, "size": max(window, start + size)},
        start=start,
        size=size,
        window=window,
        words=parameters.get("q", "") or " ".join(dict.fromkeys(words_in(asked.get("query")))),
        key=hashlib.sha256(told.encode()).hexdigest()[:16],
    )


def words_in(query: Any) -> Iterator[str]:
    """Yield what a query searches texts for; filters and exclusions are left out."""
    if isinstance(query, list):
        for one in query:
            yield from words_in(one)
    if not isinstance(query, Mapping):
        return
    for name, inner in query.items():
        if name in ("filter", "must_not", "negative"):
            continue
        if name in WORDS and isinstance(inner, Mapping):
            if isinstance(inner.get("query"), str):
                yield inner["query"]
                continue
            for field in inner.values():
                text = field.get("query") if isinstance(field, Mapping) else field
                if isinstance(text, str):
                    yield text
        else:
            yield from words_in(inner)


@dataclass(frozen=True, slots=True)
class Search:
    """A search that can be re-ranked.

    Attributes:
        place: Its place among several; None if it is alone.
        index: The index, as the client names it.
        plan: How to re-rank it.
        fair: Whether the fair list is shown; otherwise it is only recorded.
    """

    place: int | None
    index: str
    plan: Plan
    fair: bool

    @property
    def asked(self) -> dict[str, Any]:
        """What is asked of whoever re-ranks it."""
        plan: dict[str, Any] = {
            "start": self.plan.start,
            "size": self.plan.size,
            "window": self.plan.window,
        }
        plan |= {"words": self.plan.words, "fair": self.fair}
        return {"place": self.place, "index": self.index, **plan}
