"""Which searches are re-ranked, what is asked of the cluster for them, and the hits in its reply.

A search is re-ranked if only the order of its hits would change. Everything else passes, also what
is not listed in ``searches.yaml``: what clusters learn tomorrow passes until somebody lists it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from fairqr.graph.service.proxy.bounds import (
    UNBOUNDED,
    UnsuitedError,
    WindowBounds,
    bounds_of,
    number,
    pinned_in,
)
from fairqr.graph.service.proxy.queries import listed, words_in
from fairqr.graph.service.proxy.searches import names_of
from fairqr.graph.service.proxy.settings import ProxiedIndex

BODY = names_of("body") | names_of("ranking")
PARAMETERS = names_of("parameters")
COUNTED = names_of("counted")

ASIDE = names_of("aside")
"""What may stand in a body and changes no list."""

CHOOSING = names_of("choosing")
"""The parameters in the address by which hits are chosen or ranked."""

SEARCHED = ("query", "knn", "retriever")
"""What may have the words of a search."""

UBI = "ubi"
"""What User Behavior Insights calls itself; it changes no list."""

LONGEST_ID = 100
"""Characters that are kept of an id which a client gives a search."""

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
        own = [*listed(asked.get("docvalue_fields")), *listed(asked.get("fields"))]
        own += collapsed_in(asked)
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


def collapsed_in(asked: Mapping[str, Any]) -> list[str]:
    """Return the field by which hits are collapsed, which they have as well."""
    retriever = asked.get("retriever") or {}
    collapses = [asked.get("collapse"), retriever.get("standard", {}).get("collapse")]
    return [str(collapse["field"]) for collapse in collapses if collapse and "field" in collapse]


class UnavailableError(Exception):
    """Nothing is re-ranked; the text is one word that says why."""


@dataclass(frozen=True, slots=True)
class ProxiedSearch:
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
        pinned: The ids of documents that come first where they are found, as the client wishes.
        id: Names this one search in the log.
        share: The chance that its query is one of those that get fair lists.
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
    pinned: frozenset[str] = frozenset()
    id: str = ""
    share: float = 0.0


def planned(
    body: Any,
    parameters: Mapping[str, str],
    index: ProxiedIndex,
    name: str = "",
    place: int = 0,
    labels: LabelFields = NO_FIELDS,
) -> ProxiedSearch | str:
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
    try:
        if unknown := (asked.keys() - BODY) | (parameters.keys() - PARAMETERS):
            raise UnsuitedError(min(unknown))
        if not _extended_by(asked).keys() <= {UBI}:
            raise UnsuitedError("ext")
        page = _page_of(asked, parameters, bounds_of(asked, parameters), index.window)
    except UnsuitedError as error:
        # Clients choose these words, and a header takes few characters.
        return re.sub(r"[^\w.]+", "_", str(error), flags=re.ASCII)[:50] or "_"
    runtime = asked.get("runtime_mappings")
    if isinstance(runtime, Mapping) and labels.names & runtime.keys():
        return "runtime_mappings"  # the client means something else by the name of a label

    added = labels.beside(asked, parameters)
    whole = {**asked, **_with_fields(asked, parameters, added), "from": 0, "size": page.asked}
    if page.asked is None:
        del whole["size"]

    key = key_of(asked, parameters)
    return ProxiedSearch(
        index=name,
        place=place,
        body=whole,
        start=page.start,
        size=page.size,
        window=page.window,
        words=words_of(asked, parameters),
        key=key,
        fair=is_fair(key, index),
        share=share_of(index),
        added=added.names,
        pinned=_pinned(asked),
    )


def _extended_by(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what plugins of the cluster are asked for."""
    extended = asked.get("ext")
    return extended if isinstance(extended, Mapping) else {}


def named_by_client(asked: Any) -> str:
    """Return the id that a client gives a search for User Behavior Insights; empty if none."""
    ubi = _extended_by(asked).get(UBI) if isinstance(asked, Mapping) else None
    id_ = ubi.get("query_id") if isinstance(ubi, Mapping) else None
    return id_[:LONGEST_ID] if isinstance(id_, str) else ""


def read_once(text: bytes | str) -> Any:
    """Return what is written as JSON.

    Raises:
        ValueError: It is no JSON, or an object has a member twice, which clusters refuse.
    """
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("twice")
    return found


def key_of(asked: Mapping[str, Any], parameters: Mapping[str, str]) -> str:
    """Return what stands for a query in logs: a hash of all that its list depends on but the page.

    Args:
        asked: The body.
        parameters: The parameters in the address.
    """
    query = {name: asked[name] for name in asked.keys() - ASIDE}
    chosen = {name: parameters[name] for name in parameters.keys() & CHOOSING}
    told = json.dumps([query, chosen], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def is_fair(key: str, index: ProxiedIndex) -> bool:
    """Return whether a query is one of those that get fair lists."""
    return int(key, 16) / 2**64 < share_of(index)


def share_of(index: ProxiedIndex) -> float:
    """Return the share of queries that get fair lists."""
    return index.share if index.mode == "fair" else 0.0


def words_of(asked: Mapping[str, Any], parameters: Mapping[str, str]) -> str:
    """Return what a search is for; empty if it has no words."""
    searched = [asked[name] for name in SEARCHED if name in asked]
    return parameters.get("q", "") or " ".join(dict.fromkeys(words_in(searched)))


@dataclass(frozen=True, slots=True)
class _Page:
    """What a client sees of a search, and what is asked for it.

    Attributes:
        start: How many hits to skip.
        size: How many to return.
        window: How many of the first hits are re-ranked.
        asked: How many hits the cluster is asked for; None leaves it to the cluster.
    """

    start: int
    size: int
    window: int
    asked: int | None


def _page_of(
    asked: Mapping[str, Any], parameters: Mapping[str, str], own: WindowBounds, most: int
) -> _Page:
    """Return what a client sees.

    Args:
        asked: The body.
        parameters: The parameters in the address.
        own: How far the search ranks its hits.
        most: How many hits are re-ranked at most.

    Raises:
        UnsuitedError: Nothing of it is re-ranked.
    """
    start = number(parameters.get("from", asked.get("from", 0)), "size")
    size = number(parameters.get("size", asked.get("size", SIZE)), "size")
    is_sized = "size" in parameters or "size" in asked
    is_page = own.is_page
    if not is_sized and own.most < UNBOUNDED:
        # Some clusters then return all that a retriever ranks.
        is_page = True
        size = own.most
    if size == 0 or size > own.most:
        raise UnsuitedError("size")

    window = min(most, own.ranked)
    if is_page:
        window = min(window, size - own.keeps_last)
    if window < 2:
        raise UnsuitedError("size")
    if start >= window or (is_page and start):
        raise UnsuitedError("from")
    wanted: int | None = min(max(window, start + size), own.most)
    if is_page:
        wanted = size if is_sized else None
    return _Page(start, size, window, wanted)


def _with_fields(
    asked: Mapping[str, Any], parameters: Mapping[str, str], added: LabelFields
) -> dict[str, Any]:
    """Return the options of a body by which a search has these fields beside the client's own."""
    options = dict[str, Any]()
    columns = [*listed(asked.get("docvalue_fields")), *added.columns]
    if added.columns and "docvalue_fields" not in asked.keys() | parameters.keys():
        # Without it, Elasticsearch 8.12 fails where there are other columns.
        columns = [*collapsed_in(asked), *columns]
    if added.columns:
        options["docvalue_fields"] = columns
    if added.others:
        options["fields"] = [*listed(asked.get("fields")), *added.others]
    return options


def _pinned(asked: Mapping[str, Any]) -> frozenset[str]:
    ids = set[str]()
    for pinned in (*pinned_in(asked.get("query")), *pinned_in(asked.get("retriever"))):
        ids.update(str(id_) for id_ in listed(pinned.get("ids")))
        ids.update(
            str(it.get("_id")) for it in listed(pinned.get("docs")) if isinstance(it, Mapping)
        )
    return frozenset(ids)


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


def windows_in(text: str, searches: Sequence[ProxiedSearch]) -> list[Window]:
    """Return what a reply has for each of these searches.

    Raises:
        UnavailableError: This is no reply, or a search failed.
    """
    found = list[Window]()
    try:
        replies = _replies_in(json.loads(text))
        begins = [0]
        name, begin = _first_of(text, 0, ("responses", "response", "hits"))
        if name == "responses":
            begins = [begin for begin, *_ in parts_of(text, begin).values()]
        elif name == "response":  # of an asynchronous search
            begins = [begin]
        for search in searches:
            number = search.place // 2
            reply = replies[number]
            _, outer = _first_of(text, begins[number], ("hits",))
            _, begin = _first_of(text, outer, ("hits",))
            is_partial = reply["timed_out"] or reply["_shards"].get("failed")
            found.append(Window([*parts_of(text, begin).values()], bool(is_partial)))
    except (ValueError, LookupError):
        raise UnavailableError("reply") from None
    return found


def _replies_in(whole: Any) -> list[Any]:
    """Return the replies to single searches.

    Raises:
        ValueError: This is no object.
    """
    if not isinstance(whole, dict):
        raise ValueError("no object")
    if "responses" in whole:
        return list(whole["responses"])
    return [whole.get("response", whole)]


def with_page(text: str, search: ProxiedSearch, hits: Sequence[Part], order: Sequence[int]) -> str:
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
        return rewritten(text, begin, end, {"fields": None})
    first, last, _ = parts_of(text, begin)["fields"]
    fields = rewritten(text, first, last, dict.fromkeys(added))
    return text[begin:first] + fields + text[last:end]


def rewritten(text: str, begin: int, end: int, members: Mapping[Any, str | None]) -> str:
    """Return an object or array in a text with new members, and all else as it is written.

    Args:
        text: The text.
        begin: Where the object begins.
        end: Where it ends.
        members: The new text of members, or None to leave one out.
    """
    kept: list[str] = []
    before = begin + 1
    for name, (first, after, _) in parts_of(text, begin).items():
        new = members.get(name, text[first:after])
        if new is not None:
            member = _between(text, before).end()  # after the comma
            separator = (
                text[before:member] if kept else text[begin : _between(text, begin + 1).end()]
            )
            kept.append(separator + text[member:first] + new)
        before = after
    return "".join(kept) + text[before:end]


def _first_of(text: str, at: int, names: Sequence[str]) -> tuple[str, int]:
    """Return which of these members an object has first, and where its value begins.

    What comes after it is not read.

    Raises:
        LookupError: It has none of them.
    """
    at = _between(text, at + 1).end()
    while text[at] not in "]}":
        name, at = _value(text, at)
        at = _between(text, at).end()
        if name in names:
            return name, at
        _, end = _value(text, at)
        at = _between(text, end).end()
    raise LookupError(names)


def parts_of(text: str, at: int) -> dict[Any, Part]:
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
