"""How far a search ranks its hits in one way, and how many may be asked for at once.

What is asked of the cluster must find what the client's own search finds. For some searches the
number of hits decides what is found, or at most so many are ranked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from fairqr.graph.service.proxy.queries import Clause, clauses_in, listed, retrievers_in
from fairqr.graph.service.proxy.searches import names_of

QUERIES = names_of("queries") | names_of("ranking_queries")
RETRIEVERS = names_of("retrievers")
OF_STANDARD = names_of("standard")
OF_KNN = names_of("knn")
RESCORERS = frozenset({"query", "learning_to_rank", "window_size"})
COLLAPSE = frozenset({"field", "inner_hits", "max_concurrent_group_searches"})

NUMBER = re.compile("0|[1-9][0-9]{0,8}")
"""What all clusters take for a number; what only some do passes."""

RESCORED = 10
"""How many hits are rescored where a client does not say."""

UNBOUNDED = 10**9


class UnsuitedError(Exception):
    """A search cannot be re-ranked; the text is one word that says why."""


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """Bounds of what may be asked for and re-ranked.

    Attributes:
        ranked: So many of the first hits are ranked in one way.
        most: The largest size for which the same is found.
        is_page: Another size than the client's own finds something else, so only the hits of a
            first page are re-ranked.
        keeps_last: The last hit of a page says where the next one begins.
    """

    ranked: int = UNBOUNDED
    most: int = UNBOUNDED
    is_page: bool = False
    keeps_last: bool = False

    def within(self, other: WindowBounds) -> WindowBounds:
        """Return what keeps to both."""
        return WindowBounds(
            min(self.ranked, other.ranked),
            min(self.most, other.most),
            self.is_page or other.is_page,
            self.keeps_last or other.keeps_last,
        )


ANY = WindowBounds()
PAGE = WindowBounds(is_page=True)


def bounds_of(asked: Mapping[str, Any], parameters: Mapping[str, str]) -> WindowBounds:
    """Return how far a search ranks its hits.

    Args:
        asked: The body.
        parameters: The parameters in the address.

    Raises:
        UnsuitedError: It cannot be re-ranked.
    """
    in_address = [entry for entry in parameters.get("sort", "").split(",") if entry]
    bounds = [
        _of_sort([*listed(asked.get("sort")), *in_address]),
        _of_queries(asked),
        _of_nearest(asked),
        _of_rescorers(listed(asked.get("rescore"))),
        _of_collapse(asked),
        _of_retriever(asked.get("retriever")),
        _of_rank(asked.get("rank")),
        _of_pipeline(parameters.get("search_pipeline", asked.get("search_pipeline"))),
    ]
    return _narrowest(bounds)


def pinned_in(query: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the queries and retrievers that put documents first, where these come first of all."""
    for kind, inner in query.items() if isinstance(query, Mapping) else ():
        if kind == "pinned" and isinstance(inner, Mapping):
            yield inner
        elif kind == "bool" and isinstance(inner, Mapping) and "should" not in inner:
            for one in listed(inner.get("must")):
                yield from pinned_in(one)


def _narrowest(bounds: Iterable[WindowBounds]) -> WindowBounds:
    return reduce(WindowBounds.within, bounds, ANY)


def number(value: Any, why: str) -> int:
    """Return a number of hits.

    Raises:
        UnsuitedError: It is none, and ``why`` is the word for that.
    """
    if not NUMBER.fullmatch(str(value)):
        raise UnsuitedError(why)
    return int(value)


def _of_sort(sort: list[Any]) -> WindowBounds:
    """Return the bounds of hits in order of their scores, the best first.

    A hit has values of its sort only where something follows the score. A client may then go on
    from those of the last hit of a page, so that hit stays where it is.
    """
    keys = [key for entry in sort for key in _sort_keys(entry)]
    if not keys:
        return ANY
    if keys[0] != ("_score", "desc"):
        raise UnsuitedError("sort")
    return WindowBounds(is_page=True, keeps_last=True) if len(keys) > 1 else ANY


def _sort_keys(entry: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of an entry and their order."""
    if isinstance(entry, str):
        name, _, order = entry.partition(":")
        yield name, (order or "desc").lower()
    elif isinstance(entry, Mapping):
        for name, options in entry.items():
            order = options
            if isinstance(options, Mapping):
                order = options.get("order", "desc") if options.keys() <= {"order"} else ""
            yield name, str(order).lower()
    else:
        raise UnsuitedError("sort")


def _of_queries(asked: Mapping[str, Any]) -> WindowBounds:
    """Return the bounds of the queries of a search."""
    query = asked.get("query")
    kinds = [*query] if isinstance(query, Mapping) else []
    beside = [
        it.get("query") for it in listed(asked.get("sub_searches")) if isinstance(it, Mapping)
    ]
    clauses = [*clauses_in([query, asked.get("post_filter"), *beside])]
    _check_kinds(clauses, QUERIES)
    if "hybrid" in dict(clauses) and kinds != ["hybrid"]:
        raise UnsuitedError("hybrid")
    if sum(kind == "pinned" for kind, _ in clauses) > len([*pinned_in(query)]):
        raise UnsuitedError("pinned")
    return _narrowest(_of_clause(*clause) for clause in clauses)


def _of_clause(kind: str, inner: Any) -> WindowBounds:
    """Return the bounds of a query, whatever is in it."""
    if kind == "hybrid":
        return _of_hybrid(inner)
    if kind == "semantic" or (kind == "knn" and _takes_size(inner)):
        return PAGE
    return ANY


def _check_kinds(clauses: Iterable[Clause], known: frozenset[str]) -> None:
    if unknown := {kind for kind, _ in clauses} - known:
        raise UnsuitedError(min(unknown))


def _takes_size(knn: Any) -> bool:
    """Return whether a query finds more where more is asked for.

    Elasticsearch takes the size of the search for ``k`` where that is missing; OpenSearch, where
    the name of the field comes first, never does.
    """
    return isinstance(knn, Mapping) and isinstance(knn.get("field"), str) and "k" not in knn


def _of_hybrid(query: Any) -> WindowBounds:
    """Return the bounds of OpenSearch's hybrid query, whose scores depend on what it collects."""
    depth = query.get("pagination_depth") if isinstance(query, Mapping) else None
    return PAGE if depth is None else WindowBounds(ranked=number(depth, "hybrid"))


def _of_nearest(asked: Mapping[str, Any]) -> WindowBounds:
    """Return the bounds of the nearest vectors, which are all that is found without a query."""
    searches = listed(asked.get("knn"))
    if not searches:
        return ANY
    bounds = [_of_knn(search) for search in searches]
    is_alone = asked.keys().isdisjoint({"query", "sub_searches"})
    found = sum(one.ranked for one in bounds) if is_alone else UNBOUNDED
    return WindowBounds(ranked=found, is_page=any(one.is_page for one in bounds))


def _of_knn(search: Any) -> WindowBounds:
    """Return the bounds of one search for the nearest vectors."""
    if not isinstance(search, Mapping) or not search.keys() <= OF_KNN:
        raise UnsuitedError("knn")
    _check_kinds(clauses_in(search.get("filter")), QUERIES)
    return WindowBounds(ranked=number(search["k"], "knn")) if "k" in search else PAGE


def _of_rescorers(rescorers: list[Any]) -> WindowBounds:
    """Return the bounds of what all rescorers have seen; what is below has other scores."""
    sizes = list[int]()
    for rescorer in rescorers:
        if not isinstance(rescorer, Mapping) or not rescorer.keys() <= RESCORERS:
            raise UnsuitedError("rescore")
        sizes.append(number(rescorer.get("window_size", RESCORED), "rescore"))
        by_query = rescorer.get("query")
        if isinstance(by_query, Mapping):
            _check_kinds(clauses_in(by_query.get("rescore_query")), QUERIES)
    return WindowBounds(ranked=min(sizes)) if sizes else ANY


def _of_collapse(asked: Mapping[str, Any]) -> WindowBounds:
    """Return the bounds of the best hits of groups, which are few hits as any others."""
    collapse = asked.get("collapse")
    if collapse is None:
        return ANY
    is_known = isinstance(collapse, Mapping) and collapse.keys() <= COLLAPSE
    if not is_known or "rescore" in asked:
        raise UnsuitedError("collapse")
    return ANY


def _of_retriever(retriever: Any) -> WindowBounds:
    """Return the bounds of a retriever; what those in it find does not depend on the size."""
    if retriever is None:
        return ANY
    if not isinstance(retriever, Mapping) or len(retriever) != 1:
        raise UnsuitedError("retriever")
    _check_retrievers([*retrievers_in(retriever)])
    ((kind, inner),) = retriever.items()
    if kind == "standard":
        return bounds_of({name: inner[name] for name in inner.keys() - {"filter"}}, {})
    if kind == "knn":
        return _of_knn(inner)
    if kind == "rescorer":
        return _of_ranked(_of_rescorers(listed(inner.get("rescore"))).ranked)
    return _of_ranked(inner.get("rank_window_size"))


def _check_retrievers(retrievers: Sequence[Clause]) -> None:
    """Check a retriever, which is the first, and those in it."""
    _check_kinds(retrievers, RETRIEVERS)
    if "pinned" in [kind for kind, _ in retrievers[1:]]:
        raise UnsuitedError("pinned")
    for kind, inner in retrievers:
        if not isinstance(inner, Mapping):
            raise UnsuitedError("retriever")
        if kind == "standard" and (unknown := inner.keys() - OF_STANDARD):
            raise UnsuitedError(min(unknown))
        queries = [*listed(inner.get("filter")), *listed(inner.get("query"))]
        _check_kinds(clauses_in(queries), QUERIES - {"pinned"})


def _of_rank(rank: Any) -> WindowBounds:
    """Return the bounds of the older way to fuse rankings."""
    if rank is None:
        return ANY
    fusion = rank.get("rrf") if isinstance(rank, Mapping) else None
    if not isinstance(fusion, Mapping) or len(rank) > 1:
        raise UnsuitedError("rank")
    return _of_ranked(fusion.get("rank_window_size", fusion.get("window_size")))


def _of_ranked(size: Any) -> WindowBounds:
    """Return the bounds of what ranks so many hits itself; a larger size is an error."""
    if size is None:
        return PAGE
    ranked = number(size, "retriever")
    return WindowBounds(ranked=ranked, most=ranked)


def _of_pipeline(pipeline: Any) -> WindowBounds:
    """Return the bounds of a pipeline of OpenSearch, which may do anything with its hits."""
    return ANY if pipeline in (None, "_none") else PAGE
