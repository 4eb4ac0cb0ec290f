"""Asking an engine the queries of an audit: what it answers, and what it could have answered."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from fairqr.base.errors import (
    FairqrError,
    IndexUnavailableError,
    ModelError,
    ModelUnavailableError,
    one_line,
)
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.records import Observation
from fairqr.evaluation.experiments.engine import Done, failure_of
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine
from fairqr.retrieval.engines.run import RunEngine
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.relevance import LIKELY
from fairqr.retrieval.relevance_of_texts import end_of
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.table import CodedMemberships, coded

LOOKED_UP = 100
"""Up to so many relevant documents of several queries are looked up at a time."""

WIDENED_BY = 20
"""How many documents a group's own query asks for at first."""

WIDER, WIDENINGS = 4, 3
"""A search that ends among likely relevant documents asks for four times as many, so often at most.
"""

Group = tuple[str, str]
"""An attribute and one of its groups."""


class RelevanceOfTexts(Protocol):
    """Estimates how likely documents are relevant, from texts alone."""

    async def estimate_ids(self, query: str, ids: Sequence[str]) -> FloatArray | None:
        """Return the probability that each document is relevant; None if there are no texts."""
        ...


class Pace:
    """Lets requests begin at a steady rate.

    Args:
        rate: The most requests a second; no limit by default.
    """

    def __init__(self, rate: float | None = None) -> None:
        self._gap = 1 / rate if rate else 0.0
        self._next = 0.0
        self._turn = asyncio.Lock()

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._gap > 0

    async def wait(self) -> None:
        """Wait until a request may begin."""
        if not self._gap:
            return
        async with self._turn:
            now = time.monotonic()
            await asyncio.sleep(max(0.0, self._next - now))
            self._next = max(self._next, now) + self._gap


class _PacedEngine:
    """An engine whose requests begin when a pace allows it."""

    def __init__(self, engine: SearchEngine, pace: Pace) -> None:
        self._engine, self._pace = engine, pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        if not self._pace.is_limited:
            return await self._engine.search(queries)
        found = []
        for query in queries:  # An engine may need a request for each.
            await self._pace.wait()
            found += await self._engine.search([query])
        return found

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        await self._pace.wait()
        return await self._engine.documents(ids)


def paced(engine: SearchEngine, pace: Pace) -> SearchEngine:
    """Return an engine for a graph that knows no pace; each of its requests waits for its turn."""
    return cast("SearchEngine", _PacedEngine(engine, pace))


class _Pool:
    """The documents of a query, each once, with their groups.

    Args:
        hits: Those that were answered.

    Attributes:
        ids: In the order in which they came.
        known: The same ids.
    """

    def __init__(self, hits: Hits) -> None:
        self.ids = list(hits.ids)
        self.known = set(hits.ids)
        self._memberships = [hits.memberships]

    def add(self, hits: Hits) -> None:
        """Add the documents that are not there yet."""
        new = [row for row, id_ in enumerate(hits.ids) if id_ not in self.known]
        self.ids += [hits.ids[row] for row in new]
        self.known.update(hits.ids)
        self._memberships.append({name: held[new] for name, held in hits.memberships.items()})

    def groups(self, attributes: Iterable[Attribute]) -> dict[str, CodedMemberships]:
        """Return the memberships of all documents in these attributes."""
        names = [attribute.name for attribute in attributes]
        members = {name: [part[name] for part in self._memberships] for name in names}
        return coded({name: np.concatenate(parts) for name, parts in members.items()}, names)


class RelevantDocuments:
    """Looks up relevant documents that were not answered, those of several queries at a time.

    Args:
        engine: Has them.
        qrels: Judgements by query id.
        order: The ids of the queries, in the order in which they are asked.
        pace: Of the requests.
    """

    def __init__(
        self,
        engine: SearchEngine,
        qrels: Mapping[str, Mapping[str, int]],
        order: Sequence[str],
        pace: Pace,
    ) -> None:
        self._engine, self._qrels, self._order, self._pace = engine, qrels, order, pace
        self._places = {query: place for place, query in enumerate(order)}
        self._turn = asyncio.Lock()
        self._looked_up: frozenset[str] = frozenset()
        self._found = Hits([], [], {})

    async def of(self, query: str, ids: Collection[str]) -> Hits:
        """Return those of the relevant documents of a query that the engine gives by their ids.

        Raises:
            FairqrError: The engine fails.
        """
        async with self._turn:
            if not self._looked_up.issuperset(ids):
                wanted = self._with_following(query, ids)
                try:
                    await self._look_up(wanted)
                except FairqrError as error:
                    if len(wanted) == len(ids) or isinstance(error, IndexUnavailableError):
                        raise
                    # The documents of another query may be to blame.
                    await self._look_up(dict.fromkeys(ids))
            found = self._found
        rows = [row for row, id_ in enumerate(found.ids) if id_ in ids]
        return Hits(
            [found.ids[row] for row in rows],
            [found.scores[row] for row in rows],
            {name: held[rows] for name, held in found.memberships.items()},
        )

    def _with_following(self, query: str, ids: Collection[str]) -> dict[str, None]:
        """Return these documents, and what the queries that are asked next may need."""
        wanted = dict.fromkeys(ids)
        for following in self._order[self._places.get(query, len(self._order)) + 1 :]:
            relevant = relevant_in(self._qrels.get(following, {}))
            if len(wanted) + len(relevant) > LOOKED_UP:
                break
            wanted.update(dict.fromkeys(relevant))
        return wanted

    async def _look_up(self, wanted: Mapping[str, None]) -> None:
        await self._pace.wait()
        (found,) = await self._engine.search([Query("", len(wanted), only=tuple(wanted))])
        self._looked_up, self._found = frozenset(wanted), found


class _Reach(NamedTuple):
    """How far down a search went.

    Attributes:
        size: How many documents it asked for.
        ids: What it found, best first.
        is_cut_off: Whether there may be more.
    """

    size: int
    ids: Sequence[str]
    is_cut_off: bool


def relevant_in(judged: Mapping[str, int]) -> list[str]:
    """Return the documents that were judged relevant."""
    return [id_ for id_, grade in judged.items() if grade > 0]


def _text_of(query: AuditQuery) -> str:
    return query.text


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks an engine, and gathers all that the figures of a query need.

    Attributes:
        engine: The audited one. Its own ranking and scores say what it shows, and nothing else.
        attributes: The attributes whose groups are looked at.
        depth: How many documents a query asks for.
        order: The ids of all queries, in the order in which they are asked.
        qrels: Judgements by query id, if there are any. A query without judgements has no known
            relevant document, and is left out of the figures that need them.
        texts: Estimates relevance where there are no judgements; None if that is impossible.
        widened: The groups to search within.
        deepens: Whether to search on where a search ends among likely relevant documents.
        twice: The ids of the queries to ask a second time.
        words: Returns what the engine is asked for a query: its text by default.
        pace: Of the requests.
    """

    engine: SearchEngine
    attributes: tuple[Attribute, ...]
    depth: int
    order: Sequence[str] = ()
    qrels: Mapping[str, Mapping[str, int]] | None = None
    texts: RelevanceOfTexts | None = None
    widened: tuple[Group, ...] = ()
    deepens: bool = True
    twice: Collection[str] = frozenset()
    words: Callable[[AuditQuery], str] = _text_of
    pace: Pace = field(default_factory=Pace)
    _relevant: RelevantDocuments = field(init=False)
    _longest: float = field(init=False)

    def __post_init__(self) -> None:
        relevant = RelevantDocuments(self.engine, self.qrels or {}, self.order, self.pace)
        object.__setattr__(self, "_relevant", relevant)
        # A run was cut off where its longest ranking ends.
        rankings = self.engine.rankings.values() if isinstance(self.engine, RunEngine) else ()
        longest = max((len(it.ids) for it in rankings), default=math.inf)
        object.__setattr__(self, "_longest", longest)

    async def observe(self, query: AuditQuery) -> Done[Observation]:
        """Ask one query; a failure of the engine is an observation, too.

        Raises:
            ModelError: An encoder fails.
            ModelUnavailableError: It is not there.
        """
        begun = time.perf_counter()
        try:
            record, warnings = await self._observed(query, begun)
        except (ModelError, ModelUnavailableError):
            raise
        except FairqrError as error:
            failed = Observation(
                query=query.id,
                status="failed",
                message=one_line(error),
                seconds=time.perf_counter() - begun,
            )
            return failure_of(error, failed)
        return Done(record, (None,), warnings)

    async def _observed(
        self, query: AuditQuery, begun: float
    ) -> tuple[Observation, tuple[str, ...]]:
        words = self.words(query)
        (hits,) = await self._search([Query(words, self.depth)])
        seconds = time.perf_counter() - begun
        again: tuple[str, ...] | None = None
        if query.id in self.twice:
            (second,) = await self._search([Query(words, self.depth)])
            again = tuple(second.ids)
        pool = _Pool(hits)
        levels: dict[str, float] = {}
        hidden = 0
        warnings = hits.warnings
        if self.qrels is not None:
            relevant = relevant_in(self.qrels.get(query.id, {}))
            missing = dict.fromkeys(id_ for id_ in relevant if id_ not in pool.known)
            if missing and self._knows_others:
                pool.add(await self._relevant.of(query.id, missing))
            hidden = self._hidden(pool, relevant)
            if hidden:
                warnings += (
                    f"'{self.engine.name}' gives only documents that it answered, so the groups of "
                    "other judged documents are not known and these are left out; what it hides is "
                    "not seen.",
                )
            relevance = self._judged(query, pool)
        else:
            relevance, levels = await self._widen(pool, query, hits)
        observation = Observation(
            query=query.id,
            status="ok" if hits.ids else "empty",
            message=one_line(" ".join(warnings)),
            ids=tuple(hits.ids),
            scores=tuple(hits.scores),
            again=again,
            others=tuple(pool.ids[len(hits.ids) :]),
            relevance=relevance,
            groups=pool.groups(self.attributes),
            levels=levels,
            hidden=hidden,
            seconds=seconds,
        )
        return observation, warnings

    def _judged(self, query: AuditQuery, pool: _Pool) -> tuple[float, ...] | None:
        """Return 1 for relevant documents of a pool and 0 for others; None without judgements."""
        judged = (self.qrels or {}).get(query.id)
        if judged is None:
            return None
        relevant = set(relevant_in(judged))
        return tuple(float(id_ in relevant) for id_ in pool.ids)

    @property
    def _knows_others(self) -> bool:
        """Whether the engine gives the groups of documents that it did not answer.

        Engines that only give what they answered to any query are not asked: what they know would
        depend on the order of the queries.
        """
        return "read_by_id" in self.engine.capabilities or isinstance(self.engine, RunEngine)

    def _hidden(self, pool: _Pool, relevant: Sequence[str]) -> int:
        """Return how many relevant documents the engine may have, but does not give."""
        if "read_by_id" in self.engine.capabilities:
            return 0  # They are not in the index, so no ranking could show them.
        return sum(id_ not in pool.known for id_ in relevant)

    async def _search(self, queries: Sequence[Query]) -> list[Hits]:
        if not queries:
            return []
        await self.pace.wait()
        return await self.engine.search(queries)

    async def _widen(
        self, pool: _Pool, query: AuditQuery, answer: Hits
    ) -> tuple[tuple[float, ...] | None, dict[str, float]]:
        """Add documents to a pool until no search ends among likely relevant documents.

        Each group has a search of its own, where the engine can search within it. An attribute with
        a group that has none depends on the plain search.

        Args:
            pool: Of what the engine answered.
            query: What was asked.
            answer: What the engine answered.

        Returns:
            The estimated relevance of the pool, None if there are no texts; and by attribute, from
            which estimate on the pool has its groups alike.
        """
        if self.texts is None or not pool.ids:
            return None, {}
        plain = _Reach(self.depth, answer.ids, len(answer) >= min(self.depth, self._longest))
        reached: dict[Group | None, _Reach] = {None: plain}
        wanted: dict[Group | None, int] = dict.fromkeys(self.widened, WIDENED_BY)
        relevance: tuple[float, ...] | None = None
        levels: dict[str, float] = {}
        for _ in range(1 + WIDENINGS):
            if not wanted and relevance is not None:
                break
            words = self.words(query)
            asked = [Query(words, size, within=group) for group, size in wanted.items()]
            try:
                found = await self._search(asked)
            except FairqrError as error:
                if relevance is None or isinstance(error, IndexUnavailableError):
                    raise
                break  # The engine answers no search that is so deep.
            for (group, size), hits in zip(wanted.items(), found, strict=True):
                before = reached.get(group)
                # An engine that finds no more of four times as many has a limit of its own.
                is_cut_off = len(hits) == size or (
                    before is not None and len(hits) == len(before.ids)
                )
                reached[group] = _Reach(size, hits.ids, is_cut_off)
                pool.add(hits)
            await self.pace.wait()
            estimated = await self.texts.estimate_ids(query.text, pool.ids)
            if estimated is None:
                return None, {}
            relevance = tuple(estimated.tolist())
            places = {id_: place for place, id_ in enumerate(pool.ids)}
            ends = {
                group: end_of(estimated, [places[id_] for id_ in it.ids])
                for group, it in reached.items()
                if it.is_cut_off
            }
            levels = {}
            wanted = {}
            for attribute in self.attributes:
                for group in self._searches_of(attribute) & ends.keys():
                    levels[attribute.name] = max(ends[group], levels.get(attribute.name, 0.0))
                    if self.deepens and ends[group] >= LIKELY:
                        wanted[group] = reached[group].size * WIDER
        return relevance, levels

    def _searches_of(self, attribute: Attribute) -> set[Group | None]:
        """Return the searches that find the groups of an attribute; None is the plain one."""
        own = {(attribute.name, group) for group in attribute.groups}
        within = own.intersection(self.widened)
        return {*within} if within == own else {*within, None}
