"""What fairqr needs from a search engine. Every engine implements this one protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import (
    FairqrError,
    IndexUnavailableError,
    InputError,
    SourceError,
    UnsupportedError,
    one_line,
)
from fairqr.retrieval.fairness.claims import Claims, claims_of_rows
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import best_positions
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Attribute, Schema

Capability = Literal[
    "new_queries",
    "read_by_id",
    "rescore",
    "document_frequencies",
    "corpus_shares",
    "within_group",
    "vectors",
    "relevance",
]
"""What an engine may be able to do beyond searching.

``new_queries``: answer any query, as all engines except an exported run do. ``read_by_id``: read
any document by its id, so a document it does not return does not exist. ``rescore``: rank given
documents by a query (``Query.only``). ``document_frequencies``: count the documents that match
(``Query.n = 0``, ``Hits.total``). ``corpus_shares``: the share of each group in all documents.
``within_group``: search among the documents of one group (``Query.within``), for at least one of
the groups. ``vectors``: search by vectors. ``relevance``: it estimates the probability that
a document is relevant (``Hits.relevance``), also of given documents (``Query.only``).
"""

Memberships = Mapping[str, NDArray[Any]]
"""For each attribute of the schema, the share of each group in each document, shape (n, G).

The groups are in the order of ``Attribute.universe``. A row of zeros means that the document has no
label and ``unknown`` is ``exclude``. An open attribute has no such order: its array has the shape
(n,), and each document's entry maps the names of its groups to their shares.
"""


@dataclass(frozen=True, slots=True)
class Query:
    """One search.

    Attributes:
        text: A document matches if it has any of these words, after the engine's analysis.
        n: How many hits to return. 0 only counts the documents that match; with an empty text and
            no ``only``, all documents.
        only: Rank exactly these documents. All that the engine has are hits; one without any of the
            words has score 0. With an empty text, this only looks up their groups.
        every_word: A document matches only if it has all the words.
        within: An attribute and one of its groups, a pair in ``SearchEngine.filterable``. Only
            documents with a share of this group above 0 are hits, and only these are counted. The
            scores are the same as without the filter; but an engine that treats its first documents
            specially does so with the first documents of the group. This combines with all of the
            above: with ``only``, the hits are the given documents of the group, and a query without
            text that only counts gives the size of the group.
        with_titles: Titles of the hits will be asked for (:func:`titles_of`). An engine that can
            return them with the hits at little cost may do so.
        with_claims: Near duplicates will count as one. An engine that has read texts or vectors of
            the hits anyway says which they are (``Hits.claims``).
    """

    text: str
    n: int
    only: tuple[str, ...] | None = None
    every_word: bool = False
    within: tuple[str, str] | None = None
    with_titles: bool = False
    with_claims: bool = False

    @property
    def is_ranking(self) -> bool:
        """Whether this asks for a ranking by its words, rather than for counts or groups."""
        return self.n > 0 and not self.every_word and bool(self.text.strip())


@dataclass(frozen=True, slots=True)
class Hits:
    """What a search found, best first, as parallel sequences.

    Attributes:
        ids: Distinct document ids.
        scores: Never increasing within the engine's own ranking; ties are in order of id.
        memberships: The groups of these documents.
        total: How many documents match, or None if that was not requested.
        relevance: The probability that each document is relevant, shape (n,), from an engine that
            estimates it. It takes for granted that there are relevant documents for the query.
        answerable: The probability that the collection has relevant documents for the query at all;
            1 from an engine that does not estimate it. It is the same for given documents
            (``Query.only``) and within a group.
        own: How many of the hits, from the first, are in the engine's own ranking; the others were
            found by their similarity. All of them by default.
        warnings: Sentences for users, such as that part of the index did not respond.
        claims: Which documents say the same, shape (n,); None if they were not compared.
    """

    ids: list[str]
    scores: list[float]
    memberships: Memberships
    total: int | None = None
    warnings: tuple[str, ...] = field(default=())
    relevance: FloatArray | None = None
    answerable: float = 1.0
    own: int | None = None
    claims: Claims | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def probability(self) -> FloatArray | None:
        """The probability that each document is relevant, whether or not others are."""
        if self.relevance is None:
            return None
        return self.answerable * self.relevance

    def groups(self, row: int, schema: Schema) -> dict[str, dict[str, float]]:
        """Return the groups of a hit with their shares above 0, for each attribute."""
        groups = {}
        for name, shares in self.memberships.items():
            groups[name] = shares_above_zero(schema.attribute(name), shares[row])
        return groups


def shares_above_zero(
    attribute: Attribute, row: FloatArray | Mapping[str, float]
) -> dict[str, float]:
    """Return the groups of a document with their shares above 0.

    Args:
        attribute: The attribute.
        row: The document's row of :data:`Memberships`, or its entry if the attribute is open.
    """
    if not isinstance(row, Mapping):
        row = dict(zip(attribute.universe, row, strict=True))
    return {group: float(share) for group, share in row.items() if share > 0}


ALIKE = 3
"""This many answers of one length, and no longer answer, show that an engine has a limit there."""

PROBED = 60
"""How many queries we send to find a limit."""
PROBED_DEEP = 6
"""How many queries we then send with the greatest number of documents."""
PROBES = PROBED + PROBED_DEEP

NOT_TOLD = "not told"
"""The version of a server that does not show it, because the account lacks the right."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What we know of an engine without searching it.

    Attributes:
        name: Its name in commands.
        engine: ``tantivy``, ``elasticsearch``, ``opensearch``, ``http``, ``run`` or ``langchain``.
        documents: The number of documents, or None if the engine does not say.
        location: A folder, or the address of a server and the index on it, without credentials.
        source: Where the documents, or the description of the source, come from.
        fingerprint: Changes when the documents or their description have noticeably changed.
        server: The product that searches, with its version; :data:`NOT_TOLD` if the server
            withholds it, and empty if the engine is not a server.
    """

    name: str
    engine: str
    documents: int | None
    location: str
    source: str
    fingerprint: str
    server: str = ""


class SearchEngine(Protocol):
    """A search engine over labelled documents; none of its methods writes to it.

    Rankings are repeatable: ties are in order of id. You may use an engine in several event loops
    at once; close it in each of them. Its methods raise
    :class:`fairqr.base.errors.IndexUnavailableError` if the engine cannot be reached, and
    :class:`fairqr.base.errors.UnsupportedError` if it lacks the capability.
    """

    name: str
    """The engine's name in commands."""
    schema: Schema
    """The attributes and groups of its documents."""
    retriever: str
    """How it finds documents: ``bm25``, ``dense:…`` or ``hybrid:…``."""
    in_process: bool
    """Whether it searches within this process, rather than asking another system."""
    capabilities: frozenset[Capability]
    """What it can do beyond searching."""
    filterable: frozenset[tuple[str, str]]
    """The groups that a search can be limited to, as pairs of attribute and group."""

    async def info(self) -> EngineInfo:
        """Return what we know of the engine without searching it."""
        ...

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries in one round trip, each with at most ``n`` hits.

        Behind those of its own ranking, an engine that estimates relevance may return more hits,
        found by their similarity; see ``Hits.own``.
        """
        ...

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the engine lacks are left out."""
        ...

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Return for each attribute the mean membership over all documents, shape (G,).

        The shares sum to 1 minus the unknown mass. An engine on a server needs one request, and may
        leave out attributes that it cannot count.
        """
        ...

    async def aclose(self) -> None:
        """Close files and connections."""
        ...


@runtime_checkable
class TitlingEngine(Protocol):
    """An engine that knows titles of what it found last, and reads the others."""

    async def titles(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Return the titles of these documents by id, without ids that the engine lacks."""
        ...


@runtime_checkable
class SampledEngine(Protocol):
    """An engine that returns random documents.

    Attributes:
        sample_key: Changes when the documents, or the texts that we read of them, may be others.
    """

    sample_key: str

    async def random_documents(self, n: int) -> list[Document]:
        """Return n random documents, or all if there are fewer; the same ones each time."""
        ...


async def titles_of(engine: SearchEngine, ids: Sequence[str]) -> Mapping[str, str]:
    """Return the titles of documents by id, without ids that the engine lacks."""
    if isinstance(engine, TitlingEngine):
        return await engine.titles(ids)
    return {document.id: document.title for document in await engine.documents(ids)}


class EngineOverWords:
    """The common part of engines that rank another engine's documents in their own way.

    Attributes:
        lexical: The engine that matches words over the same documents.
    """

    def __init__(self, lexical: SearchEngine) -> None:
        """Take the documents and groups of an engine."""
        self.lexical = lexical
        self.name = lexical.name
        self.schema = lexical.schema
        self.in_process = lexical.in_process
        self.filterable = lexical.filterable

    async def info(self) -> EngineInfo:
        """Return what we know of the lexical engine."""
        return await self.lexical.info()

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the engine lacks are left out."""
        return await self.lexical.documents(ids)

    async def titles(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Return the titles of these documents by id; see :func:`titles_of`."""
        return await titles_of(self.lexical, ids)

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Return for each attribute the mean membership over all documents."""
        return await self.lexical.corpus_shares()

    async def aclose(self) -> None:
        """Close the lexical engine."""
        await self.lexical.aclose()


async def searched(engine: SearchEngine, queries: Sequence[Query]) -> list[Hits]:
    """Search, and refuse hits that nothing could be computed from.

    Raises:
        SourceError: A hit comes twice, a score is not finite, or a probability is outside [0, 1].
        FairqrError: Any error of the engine.
    """
    results = await engine.search(queries)
    for hits in results:
        fault = _fault_of(hits)
        if fault:
            raise SourceError(f"The engine '{engine.name}' returned {fault}; correct the engine.")
    return results


def _fault_of(hits: Hits) -> str:
    """Return what is wrong with hits; empty if nothing is."""
    if len(set(hits.ids)) < len(hits):
        return "a document twice in one ranking"
    if not np.isfinite(hits.scores).all():
        return "a score that is not a finite number"
    probabilities = np.append(hits.answerable, () if hits.relevance is None else hits.relevance)
    are_probabilities = (probabilities >= 0) & (probabilities <= 1)
    if not are_probabilities.all():
        return "a probability outside of 0 to 1"
    return ""


async def limit_of(engine: SearchEngine, texts: Sequence[str], size: int, deepest: int) -> float:
    """Return how many documents an engine answers at most; infinite if no limit shows.

    A limit shows if :data:`ALIKE` answers or more have the same length, and none is longer.

    Args:
        engine: Asked for at most :data:`PROBES` answers.
        texts: Queries; some of them are asked, evenly from first to last.
        size: How many documents to ask for.
        deepest: How many to ask for in a few queries; an engine may refuse some of them.

    Raises:
        IndexUnavailableError: It cannot be reached.
    """
    limit = math.inf
    for depth, count in ((size, PROBED), (deepest, PROBED_DEEP)):
        step = math.ceil(len(texts) / count) or 1
        lengths = await _lengths_of(engine, texts[::step], depth)
        longest = max(lengths, default=math.inf)
        if longest and lengths.count(longest) >= ALIKE:
            limit = min(limit, longest)
    return limit


async def _lengths_of(engine: SearchEngine, texts: Sequence[str], depth: int) -> list[float]:
    """Return how long an engine's answers are; infinite for those that are as long as we asked.

    Queries that the engine refuses are left out.
    """
    lengths: list[float] = []
    for text in texts:
        try:
            (hits,) = await engine.search([Query(text, depth)])
        except IndexUnavailableError:
            raise
        except FairqrError:
            continue
        lengths.append(len(hits) if len(hits) < depth else math.inf)
    return lengths


def require_engine(engine: object) -> None:
    """Refuse anything that is not an open engine.

    Raises:
        InputError: It is not an engine.
    """
    if not hasattr(engine, "capabilities"):
        raise InputError(
            f"A graph needs an open engine, not {type(engine).__name__}; fairqr.open_engine opens "
            "one, and fairqr.from_langchain wraps a retriever or a vector store."
        )


def require(engine: SearchEngine, capability: Capability, purpose: str, advice: str = "") -> None:
    """Refuse an engine that lacks a capability.

    Args:
        engine: The engine.
        capability: The capability.
        purpose: What needs it, for the message: ``The order 'original_query'``.
        advice: What the user can do instead.

    Raises:
        UnsupportedError: The engine lacks the capability.
    """
    if capability in engine.capabilities:
        return
    ending = f"; {advice}." if advice else "."
    raise UnsupportedError(
        f"{purpose} needs an engine that can {_CAN[capability]}, and '{engine.name}' cannot{ending}"
    )


_CAN: dict[Capability, str] = {
    "new_queries": "answer any query",
    "read_by_id": "read documents by their ids",
    "rescore": "score given documents by a query",
    "document_frequencies": "count the documents that match",
    "corpus_shares": "count the documents of each group",
    "within_group": "search within a group",
    "vectors": "search by vectors",
    "relevance": "estimate relevance",
}


def require_groups(engine: SearchEngine, queries: Sequence[Query]) -> None:
    """Refuse queries within groups that an engine cannot filter by.

    Raises:
        UnsupportedError: The engine cannot filter by groups, or not by this one.
    """
    for query in queries:
        if query.within is None or query.within in engine.filterable:
            continue
        require(engine, "within_group", "A query within a group")
        attribute, group = query.within
        raise UnsupportedError(
            f"'{engine.name}' cannot search within the group '{one_line(group, 60)}' of "
            f"{attribute}; search without 'within', and pick from the hits."
        )


def best_first(
    ids: Sequence[str],
    scores: Sequence[float],
    memberships: Memberships,
    n: int,
    *,
    warnings: Sequence[str] = (),
) -> Hits:
    """Return the best n of these documents as hits; ties in order of id."""
    rows = best_positions(ids, scores)[:n]
    positions = rows.tolist()
    return Hits(
        [ids[position] for position in positions],
        [float(scores[position]) for position in positions],
        {name: shares[rows] for name, shares in memberships.items()},
        warnings=tuple(warnings),
    )


def first_of(hits: Hits, n: int) -> Hits:
    """Return the first n hits."""
    return replace(
        hits,
        ids=hits.ids[:n],
        scores=hits.scores[:n],
        memberships={name: rows[:n] for name, rows in hits.memberships.items()},
        relevance=None if hits.relevance is None else hits.relevance[:n],
        claims=None if hits.claims is None else hits.claims[:n],
    )


def rows_of(hits: Hits, rows: Sequence[int]) -> Hits:
    """Return some of the hits, in the order of their rows."""
    rows = list(rows)
    size_of_own_ranking = len(hits) if hits.own is None else hits.own
    return replace(
        hits,
        ids=[hits.ids[row] for row in rows],
        scores=[hits.scores[row] for row in rows],
        memberships={name: shares[rows] for name, shares in hits.memberships.items()},
        relevance=None if hits.relevance is None else hits.relevance[rows],
        own=sum(row < size_of_own_ranking for row in rows),
        claims=None if hits.claims is None else claims_of_rows(hits.claims, rows),
    )


def lexical_of(engine: SearchEngine) -> SearchEngine:
    """Return the engine that matches words over the same documents.

    For most engines that is the engine itself; for one that searches by vectors, it is another.
    """
    lexical: SearchEngine = getattr(engine, "lexical", engine)
    return lexical
