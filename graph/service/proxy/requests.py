"""Which searches are re-ranked, what is asked of the cluster for them, and the hits in its reply.

A search is re-ranked if only the order of its hits would change. Everything else passes, also what
is not listed in ``searches.yaml``: what clusters learn tomorrow passes until somebody lists it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fairqr.graph.service.proxy.settings import ProxiedIndex

_LISTS = yaml.safe_load(Path(__file__).with_name("searches.yaml").read_text(encoding="utf-8"))
HARMLESS, PARAMETERS, QUERIES, WORDS, COUNTED = (
    frozenset(_LISTS[name].split())
    for name in ("body", "parameters", "queries", "words", "counted")
)
_CLAUSES = "must should must_not filter query queries positive negative"
CLAUSES = frozenset(_CLAUSES.split())
"""The fields in which queries hold other queries."""

SCORED = ("_score", ["_score"], {"_score": "desc"}, [{"_score": "desc"}])
"""Values of ``sort`` that keep the order by score."""

NUMBER = re.compile("0|[1-9][0-9]{0,8}")
"""What all clusters take for a number; what only some do passes."""

SIZE = 10
"""How many hits a search returns that does not say."""


@dataclass(frozen=True, slots=True)
class LabelFields:
    """What is asked for with each window, so that labels are read as searches and audits read them.

    Attributes:
        columns: Entries of ``docvalue_fields``.
        others: Entries of ``fields``, for what has no columns.
    """

    columns: tuple[dict[str, str], ...] = ()
    others: tuple[dict[str, str], ...] = ()

    def beside(self, asked: Mapping[str, Any], parameters: Mapping[str, str]) -> LabelFields:
        """Return those that a client does not ask for itself."""
        own = [*_listed(asked.get("docvalue_fields")), *_listed(asked.get("fields"))]
        own += [name for name in parameters.get("docvalue_fields", "").split(",") if name]
        patterns = [str(it["field"]) if isinstance(it, Mapping) else str(it) for it in own]

        def is_new(entry: dict[str, str]) -> bool:
            return not any(fnmatchcase(entry["field"], pattern) for pattern in patterns)

        return LabelFields(tuple(filter(is_new, self.columns)), tuple(filter(is_new, self.others)))

    @property
    def names(self) -> frozenset[str]:
        """The names of all fields."""
        return frozenset(entry["field"] for entry in (*self.columns, *self.others))


NO_FIELDS = LabelFields()


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


class UnavailableError(Exception):
    """Nothing is re-ranked; the text is one word that says why."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search that can be re-ranked.

    Attributes:
        index: The index, as the client names it.
        place: The line of the body that has it.
        body: What the cluster is asked: the whole window, and the page if that reaches beyond.
        start: How many hits to skip.
        size: How many to return.
        window: How many of the first hits are re-ranked.
        words: What was searched for, empty if the query has no words.
        key: Stands for the query, whatever the page.
        fair: Whether the fair list is shown; otherwise it is only recorded.
        added: The fields that were asked for beside those of the client, and are cut out again.
    """

    index: str
    place: int
    body: dict[str, Any]
    start: int
    size: int
    window: int
    words: str
    key: str
    fair: bool
    added: frozenset[str] = frozenset()


def planned(
    body: Any,
    parameters: Mapping[str, str],
    index: ProxiedIndex,
    name: str = "",
    place: int = 0,
    labels: LabelFields = NO_FIELDS,
) -> Search | str:
    """Return how to re-rank a search, or why it passes.

    Args:
        body: The body as JSON; None if there is none.
        parameters: The parameters in the address, which win over the body's.
        index: What to do with its searches; all pages of a query are of one kind.
        name: The index, as the client names it.
        place: The line of the body that has it.
        labels: The fields of labels.
    """
    asked = {} if body is None else body
    if not isinstance(asked, Mapping):
        return "body"
    harmless = HARMLESS | {"sort"} if asked.get("sort") in SCORED else HARMLESS
    kinds = {*kinds_in([asked.get("query"), asked.get("post_filter")])}
    if unknown := (asked.keys() - harmless) | (parameters.keys() - PARAMETERS) | (kinds - QUERIES):
        # Clients choose these words, and a header takes few characters.
        return re.sub(r"[^\w.]+", "_", min(unknown), flags=re.ASCII)[:50] or "_"
    usual = {"from": 0, "size": SIZE}
    page = [str(parameters.get(name, asked.get(name, it))) for name, it in usual.items()]
    if not all(map(NUMBER.fullmatch, page)) or page[1] == "0":
        return "size"
    start, size = map(int, page)
    if start >= index.window:
        return "from"
    query = {name: asked[name] for name in ("query", "min_score", "post_filter") if name in asked}
    key = key_of(query, parameters.get("q", ""))
    whole = {**asked, "from": 0, "size": max(index.window, start + size)}
    if labels.names & {*asked.get("runtime_mappings", {})}:
        return "runtime_mappings"  # the client means something else by the name of a label
    added = labels.beside(asked, parameters)
    for option, entries in (("docvalue_fields", added.columns), ("fields", added.others)):
        if entries:
            whole[option] = [*_listed(asked.get(option)), *entries]
    return Search(
        index=name,
        place=place,
        body=whole,
        start=start,
        size=size,
        window=index.window,
        words=words_of(asked, parameters),
        key=key,
        fair=is_fair(key, index),
        added=added.names,
    )


def key_of(query: Mapping[str, Any], text: str) -> str:
    """Return what stands for a query in logs: a hash of it and of the text in the address."""
    told = json.dumps([query, text], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def is_fair(key: str, index: ProxiedIndex) -> bool:
    """Return whether a query is one of those that get fair lists."""
    return index.mode == "fair" and int(key, 16) / 2**64 < index.share


def words_of(asked: Mapping[str, Any], parameters: Mapping[str, str]) -> str:
    """Return what a search is for; empty if it has no words."""
    return parameters.get("q", "") or " ".join(dict.fromkeys(words_in(asked.get("query"))))


def kinds_in(query: Any) -> Iterator[str]:
    """Yield the kinds of one or several queries and of those in them, such as match and bool."""
    for one in query if isinstance(query, list) else [query]:
        for kind, inner in one.items() if isinstance(one, Mapping) else ():
            yield kind
            for name in CLAUSES & inner.keys() if isinstance(inner, Mapping) else ():
                yield from kinds_in(inner[name])


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


Part = tuple[int, int, Any]
"""Where a value begins and ends in a text, and the value."""

_value = json.JSONDecoder().raw_decode
_between: Any = re.compile(r"[\s,:]*").match


class Window(NamedTuple):
    """What a reply has for a search.

    Attributes:
        hits: The hits.
        is_partial: Whether only a part of the shards answered, or not in time.
    """

    hits: list[Part]
    is_partial: bool


def windows_in(text: str, searches: Sequence[Search]) -> list[Window]:
    """Return what a reply has for each of these searches.

    Raises:
        UnavailableError: This is no reply, or a search failed.
    """
    begins, found = [0], list[Window]()
    try:
        whole = _parts(text, 0)
        if "responses" in whole:
            begins = [begin for begin, *_ in _parts(text, whole["responses"][0]).values()]
        for search in searches:
            reply = _parts(text, begins[search.place // 2])
            hits = _parts(text, _parts(text, reply["hits"][0])["hits"][0])
            is_partial = reply["timed_out"][2] or reply["_shards"][2].get("failed")
            found.append(Window([*hits.values()], bool(is_partial)))
    except (ValueError, LookupError):
        raise UnavailableError("reply") from None
    return found


def with_page(text: str, search: Search, hits: Sequence[Part], order: Sequence[int]) -> str:
    """Return a reply with a page of these hits, in a new order; those it lacks follow."""
    if not hits:
        return text
    ordered = [*(hits[number] for number in order), *hits[len(order) :]]
    page = ordered[search.start : search.start + search.size]
    written = ",".join(_without_added(text, hit, search.added) for hit in page)
    return text[: hits[0][0]] + written + text[hits[-1][1] :]


def _without_added(text: str, hit: Part, added: frozenset[str]) -> str:
    """Return a hit as it would be without the fields that the client did not ask for."""
    begin, end, value = hit
    there = value.get("fields", {}).keys()
    if not added & there:
        return text[begin:end]
    if there <= added:
        return _without(text, begin, end, {"fields"})
    first, last, _ = _parts(text, begin)["fields"]
    return text[begin:first] + _without(text, first, last, added) + text[last:end]


def _without(text: str, begin: int, end: int, names: Collection[str]) -> str:
    """Return an object in a text without some members, and all else as it is written."""
    kept: list[str] = []
    before = begin + 1
    for name, (_, after, _) in _parts(text, begin).items():
        if name not in names:
            member = _between(text, before).end()  # after the comma
            separator = (
                text[before:member] if kept else text[begin : _between(text, begin + 1).end()]
            )
            kept.append(separator + text[member:after])
        before = after
    return "".join(kept) + text[before:end]


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
