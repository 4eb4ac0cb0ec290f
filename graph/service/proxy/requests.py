"""Which searches are re-ranked, what is asked of the cluster for them, and the hits in its reply.

A search is re-ranked if only the order of its hits would change. Everything else passes, also what
is not listed here: what clusters learn tomorrow passes until somebody lists it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
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
    "ccs_minimize_roundtrips max_concurrent_shard_requests pre_filter_shard_size timeout "
    "max_concurrent_searches index"
)
PARAMETERS = frozenset(_PARAMETERS.split())
"""Likewise in the address."""

SCORED = ("_score", ["_score"], {"_score": "desc"}, [{"_score": "desc"}])
"""Orders that are none."""

NUMBER = re.compile("0|[1-9][0-9]{0,8}")
"""What all clusters take for a number; what only some do passes."""

SIZE = 10
"""How many hits a search returns that does not say."""

_WORDS = "match multi_match query_string simple_query_string match_phrase combined_fields"
WORDS = frozenset(_WORDS.split())


class UnavailableError(Exception):
    """Nothing is re-ranked; the text is one word that says why."""


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
    harmless = HARMLESS | {"sort"} if asked.get("sort") in SCORED else HARMLESS
    unknown = [*(asked.keys() - harmless), *(parameters.keys() - PARAMETERS)]
    if unknown:
        return str(min(unknown))
    page = [
        str(parameters.get(name, asked.get(name, usual)))
        for name, usual in (("from", 0), ("size", SIZE))
    ]
    if not all(NUMBER.fullmatch(it) for it in page) or page[1] == "0":
        return "size"
    start, size = map(int, page)
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
            for field in [inner] if "query" in inner else inner.values():
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


Part = tuple[int, int, Any]
"""Where a value begins and ends in a text, and the value."""

_value = json.JSONDecoder().raw_decode
_between: Any = re.compile(r"[\s,:]*").match


def hits_in(text: str, search: Search) -> list[Part]:
    """Return the hits of a search.

    Raises:
        UnavailableError: The search failed, or only a part of the shards answered in time: perhaps
            because we asked for more than the client.
    """
    try:
        whole = _parts(text, 0)
        if search.place is not None:
            whole = _parts(text, _parts(text, whole["responses"][0])[search.place][0])
        if whole["timed_out"][2] or whole["_shards"][2].get("failed"):
            raise UnavailableError("partial")
        return [*_parts(text, _parts(text, whole["hits"][0])["hits"][0]).values()]
    except (ValueError, KeyError, IndexError):
        raise UnavailableError("reply") from None


def with_page(text: str, search: Search, hits: Sequence[Part], order: Sequence[int]) -> str:
    """Return a reply with a page of these hits, in a new order; those it lacks follow."""
    if not hits:
        return text
    ordered = [*(hits[number] for number in order), *hits[len(order) :]]
    page = ordered[search.plan.start : search.plan.start + search.plan.size]
    written = ",".join(text[begin:end] for begin, end, _ in page)
    return text[: hits[0][0]] + written + text[hits[-1][1] :]


def in_pages(reply: bytes, searches: Sequence[Search]) -> bytes:
    """Return a reply to whole windows as the cluster would have given pages of them.

    Raises:
        UnavailableError: See :func:`hits_in`.
    """
    text = reply.decode("utf-8", "surrogateescape")
    for search in searches:
        text = with_page(text, search, hits_in(text, search), ())
    return text.encode("utf-8", "surrogateescape")


def _parts(text: str, at: int) -> dict[Any, Part]:
    """Return the members of the object, or the elements of the array, that starts there."""
    parts, is_object = dict[Any, Part](), text[at] == "{"
    at = _between(text, at + 1).end()
    while text[at] not in "]}":
        name: Any = len(parts)
        if is_object:
            name, at = _value(text, at)
            at = _between(text, at).end()
        value, end = _value(text, at)
        parts[name] = at, end, value
        at = _between(text, end).end()
    return parts
