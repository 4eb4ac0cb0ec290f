"""How far a search ranks its hits in one way, and how many may be asked for at once.

What is asked of the cluster must find what the client's own search finds. For some searches the
number of hits decides what is found, or only the first hits are ranked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from fairqr.graph.service.proxy.queries import Clause, as_list, clauses_in, retrievers_in
from fairqr.graph.service.proxy.searches import names_of

QUERIES = names_of("queries") | names_of("ranking_queries")
RETRIEVERS = names_of("retrievers")
OF_STANDARD = names_of("standard")
OF_KNN = names_of("knn")
RESCORERS = frozenset(["query", "learning_to_rank", "window_size"])
COLLAPSE = frozenset(["field", "inner_hits", "max_concurrent_group_searches"])

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
        ranked: How many of the first hits are ranked in one way.
        largest_size: The largest size for which the same is found.
        is_page: Another size than the client's own finds something else, so only the hits of a
            first page are re-ranked.
        keeps_last: The last hit of a page says where the next one begins.
    """

    ranked: int = UNBOUNDED
    largest_size: int = UNBOUNDED
    is_page: bool = False
    keeps_last: bool = False

    def narrowed_by(self, bounds: WindowBounds) -> WindowBounds:
        """Return what keeps to both."""
        return WindowBounds(
            ranked=min(self.ranked, bounds.ranked),
            largest_size=min(self.largest_size, bounds.largest_size),
            is_page=self.is_page or bounds.is_page,
            keeps_last=self.keeps_last or bounds.keeps_last,
        )


ANY = WindowBounds()
PAGE = WindowBounds(is_page=True)


def bounds_of(body: Mapping[str, Any], parameters: Mapping[str, str]) -> WindowBounds:
    """Return how far a search ranks its hits.

    Args:
        body: The body.
        parameters: The parameters in the address.

    Raises:
        UnsuitedError: It cannot be re-ranked.
    """
    in_address = filter(None, parameters.get("sort", "").split(","))
    sort = [*as_list(body.get("sort")), *in_address]
    pipeline = parameters.get("search_pipeline", body.get("search_pipeline"))
    bounds = [
        _bounds_of_sort(sort),
        _bounds_of_queries(body),
        _bounds_of_nearest(body),
        _bounds_of_rescorers(as_list(body.get("rescore"))),
        _bounds_of_collapse(body),
        _bounds_of_retriever(body.get("retriever")),
        _bounds_of_rank(body.get("rank")),
        _bounds_of_pipeline(pipeline),
    ]
    return _narrowest(bounds)


def pinned_in(query: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the queries and retrievers that put documents first, where these come first of all."""
    if not isinstance(query, Mapping):
        return
    for kind, options in query.items():
        if not isinstance(options, Mapping):
            continue
        if kind == "pinned":
            yield options
        elif kind == "bool" and "should" not in options:
            for clause in as_list(options.get("must")):
                yield from pinned_in(clause)


def count_of(value: Any, reason: str) -> int:
    """Return a number of hits.

    Raises:
        UnsuitedError: The value is no number, and ``reason`` is the word for that.
    """
    if not NUMBER.fullmatch(str(value)):
        raise UnsuitedError(reason)
    return int(value)


def _narrowest(bounds: Iterable[WindowBounds]) -> WindowBounds:
    return reduce(WindowBounds.narrowed_by, bounds, ANY)


def _check_kinds(clauses: Iterable[Clause], allowed: frozenset[str]) -> None:
    """Check that all queries or retrievers are of these kinds.

    Raises:
        UnsuitedError: One is not.
    """
    kinds = {kind for kind, _ in clauses}
    unknown = kinds - allowed
    if unknown:
        raise UnsuitedError(min(unknown))


def _bounds_of_sort(sort: list[Any]) -> WindowBounds:
    """Return the bounds of hits in order of their scores, the best first.

    A hit has values of its sort only where something follows the score. A client may then go on
    from those of the last hit of a page, so that hit stays where it is.
    """
    keys: list[tuple[str, str]] = []
    for entry in sort:
        keys += _sort_keys(entry)
    if not keys:
        return ANY
    if keys[0] != ("_score", "desc"):
        raise UnsuitedError("sort")
    if len(keys) == 1:
        return ANY
    return WindowBounds(is_page=True, keeps_last=True)


def _sort_keys(entry: Any) -> list[tuple[str, str]]:
    """Return the fields of an entry and their order."""
    if isinstance(entry, str):
        name, _, order = entry.partition(":")
        return [(name, (order or "desc").lower())]
    if isinstance(entry, Mapping):
        return [(name, _sort_order(options)) for name, options in entry.items()]
    raise UnsuitedError("sort")


def _sort_order(options: Any) -> str:
    """Return the order of a field; empty if its options are more than the order."""
    if not isinstance(options, Mapping):
        return str(options).lower()
    if not options.keys() <= {"order"}:
        return ""
    return str(options.get("order", "desc")).lower()


def _bounds_of_queries(body: Mapping[str, Any]) -> WindowBounds:
    """Return the bounds of the queries of a search."""
    query = body.get("query")
    queries = [query, body.get("post_filter")]
    for search in as_list(body.get("sub_searches")):
        if isinstance(search, Mapping):
            queries.append(search.get("query"))
    clauses = [*clauses_in(queries)]
    _check_kinds(clauses, QUERIES)

    kinds = [kind for kind, _ in clauses]
    outer_kinds = [*query] if isinstance(query, Mapping) else []
    if "hybrid" in kinds and outer_kinds != ["hybrid"]:
        raise UnsuitedError("hybrid")
    pinned_first = [*pinned_in(query)]
    if kinds.count("pinned") > len(pinned_first):
        raise UnsuitedError("pinned")
    return _narrowest(_bounds_of_clause(*clause) for clause in clauses)


def _bounds_of_clause(kind: str, options: Any) -> WindowBounds:
    """Return the bounds of a query, whatever is in it."""
    if kind == "hybrid":
        return _bounds_of_hybrid(options)
    if kind == "semantic":
        return PAGE
    if kind == "knn" and _takes_size(options):
        return PAGE
    return ANY


def _takes_size(knn: Any) -> bool:
    """Return whether a query finds more where more is asked for.

    Elasticsearch takes the size of the search for ``k`` where that is missing; OpenSearch, where
    the name of the field comes first, never does.
    """
    if not isinstance(knn, Mapping):
        return False
    is_of_elasticsearch = isinstance(knn.get("field"), str)
    return is_of_elasticsearch and "k" not in knn


def _bounds_of_hybrid(query: Any) -> WindowBounds:
    """Return the bounds of OpenSearch's hybrid query, whose scores depend on what it collects."""
    depth = query.get("pagination_depth") if isinstance(query, Mapping) else None
    if depth is None:
        return PAGE
    return WindowBounds(ranked=count_of(depth, "hybrid"))


def _bounds_of_nearest(body: Mapping[str, Any]) -> WindowBounds:
    """Return the bounds of the nearest vectors, which are all that is found without a query."""
    searches = as_list(body.get("knn"))
    if not searches:
        return ANY
    bounds = [_bounds_of_knn(search) for search in searches]
    is_page = any(single.is_page for single in bounds)
    has_query = "query" in body or "sub_searches" in body
    ranked = UNBOUNDED if has_query else sum(single.ranked for single in bounds)
    return WindowBounds(ranked=ranked, is_page=is_page)


def _bounds_of_knn(search: Any) -> WindowBounds:
    """Return the bounds of one search for the nearest vectors."""
    if not isinstance(search, Mapping) or not search.keys() <= OF_KNN:
        raise UnsuitedError("knn")
    _check_kinds(clauses_in(search.get("filter")), QUERIES)
    if "k" not in search:
        return PAGE
    return WindowBounds(ranked=count_of(search["k"], "knn"))


def _bounds_of_rescorers(rescorers: list[Any]) -> WindowBounds:
    """Return the bounds of what all rescorers have seen; what is below has other scores."""
    if not rescorers:
        return ANY
    sizes = [_rescored_by(rescorer) for rescorer in rescorers]
    return WindowBounds(ranked=min(sizes))


def _rescored_by(rescorer: Any) -> int:
    """Return how many hits a rescorer sees."""
    if not isinstance(rescorer, Mapping) or not rescorer.keys() <= RESCORERS:
        raise UnsuitedError("rescore")
    size = count_of(rescorer.get("window_size", RESCORED), "rescore")
    options = rescorer.get("query")
    if isinstance(options, Mapping):
        _check_kinds(clauses_in(options.get("rescore_query")), QUERIES)
    return size


def _bounds_of_collapse(body: Mapping[str, Any]) -> WindowBounds:
    """Return the bounds of the best hits of groups, which are few hits as any others."""
    collapse = body.get("collapse")
    if collapse is None:
        return ANY
    has_known_options = isinstance(collapse, Mapping) and collapse.keys() <= COLLAPSE
    if not has_known_options or "rescore" in body:
        raise UnsuitedError("collapse")
    return ANY


def _bounds_of_retriever(retriever: Any) -> WindowBounds:
    """Return the bounds of a retriever; what those in it find does not depend on the size."""
    if retriever is None:
        return ANY
    if not isinstance(retriever, Mapping) or len(retriever) != 1:
        raise UnsuitedError("retriever")
    _check_retrievers([*retrievers_in(retriever)])

    ((kind, options),) = retriever.items()
    if kind == "standard":
        search = {name: options[name] for name in options.keys() - {"filter"}}
        return bounds_of(search, {})
    if kind == "knn":
        return _bounds_of_knn(options)
    if kind == "rescorer":
        rescored = _bounds_of_rescorers(as_list(options.get("rescore")))
        return _bounds_of_ranking(rescored.ranked)
    return _bounds_of_ranking(options.get("rank_window_size"))


def _check_retrievers(retrievers: Sequence[Clause]) -> None:
    """Check a retriever, which is the first, and those in it."""
    _check_kinds(retrievers, RETRIEVERS)
    inner_kinds = [kind for kind, _ in retrievers[1:]]
    if "pinned" in inner_kinds:
        raise UnsuitedError("pinned")
    for kind, options in retrievers:
        _check_retriever(kind, options)


def _check_retriever(kind: str, options: Any) -> None:
    """Check the options of a retriever and its queries, not the retrievers in it."""
    if not isinstance(options, Mapping):
        raise UnsuitedError("retriever")
    unknown = options.keys() - OF_STANDARD
    if kind == "standard" and unknown:
        raise UnsuitedError(min(unknown))
    queries = [*as_list(options.get("filter")), *as_list(options.get("query"))]
    _check_kinds(clauses_in(queries), QUERIES - {"pinned"})


def _bounds_of_rank(rank: Any) -> WindowBounds:
    """Return the bounds of the older way to fuse rankings."""
    if rank is None:
        return ANY
    fusion = rank.get("rrf") if isinstance(rank, Mapping) else None
    if not isinstance(fusion, Mapping) or len(rank) > 1:
        raise UnsuitedError("rank")
    size = fusion.get("rank_window_size", fusion.get("window_size"))
    return _bounds_of_ranking(size)


def _bounds_of_ranking(size: Any) -> WindowBounds:
    """Return the bounds of what ranks this many hits itself; a larger size is an error."""
    if size is None:
        return PAGE
    ranked = count_of(size, "retriever")
    return WindowBounds(ranked=ranked, largest_size=ranked)


def _bounds_of_pipeline(pipeline: Any) -> WindowBounds:
    """Return the bounds of a pipeline of OpenSearch, which may do anything with its hits."""
    has_none = pipeline in (None, "_none")
    return ANY if has_none else PAGE
