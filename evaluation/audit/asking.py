"""Asking an engine the queries of an audit: what it answers, and what it could have answered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import NamedTuple

from fairqr.base.errors import (
    FairqrError,
    IndexUnavailableError,
    ModelError,
    ModelUnavailableError,
    one_line,
)
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.records import Observation
from fairqr.evaluation.experiments.engine import Done
from fairqr.evaluation.qrels import Qrels
from fairqr.retrieval.engines.engine import (
    PROBES,
    Hits,
    Memberships,
    Query,
    SearchEngine,
    lexical_of,
    limit_of,
    searched,
)
from fairqr.retrieval.engines.hybrid.texts import Estimates, TextRelevance, end_of
from fairqr.retrieval.engines.run import RunEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.fairness.table import DocumentTable, coded
from fairqr.retrieval.sources.documents import ProgressFunction, chunks
from fairqr.retrieval.sources.schema import Attribute

LOOKED_UP = 500
"""How many judged documents are looked up at a time."""

WIDENED_BY = 20
"""How many documents a group's own query asks for at first."""

WIDER, WIDENINGS = 4, 3
"""A search that ends among likely relevant documents asks for four times as many, so often at most.
"""

HIDDEN = 0.1
"""Where more of the judged relevant documents are hidden, too few are known to say what is due."""

Group = tuple[str, str]
"""An attribute and one of its groups."""


def memberships_of(
    table: DocumentTable, attributes: Iterable[Attribute], ids: Sequence[str]
) -> Memberships:
    """Return the memberships of documents in single attributes."""
    return {it.name: table.memberships(Dimension(it, (it,)), ids) for it in attributes}


RUN_ENDING = (ModelError, ModelUnavailableError)
"""Errors that say nothing of one query: the run decides what they mean."""


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


@dataclass
class Asker:
    """Asks an engine, and gathers all that the figures of a query need.

    Attributes:
        engine: The audited one. Its own ranking and scores say what it shows, and nothing else.
        attributes: The attributes whose groups are looked at.
        depth: How many documents a query asks for.
        qrels: Judgements by query id, if there are any. A query without judgements has no known
            relevant document, and is left out of the figures that need them. Beside ``texts`` they
            only say how far the estimate is off.
        texts: Estimates relevance; None if judgements say what is relevant, or nothing does.
        widened: The groups to search within.
        deepens: Whether to search on where a search ends among likely relevant documents.
    """

    engine: SearchEngine
    attributes: tuple[Attribute, ...]
    depth: int
    qrels: Qrels | None = None
    texts: TextRelevance | None = None
    widened: tuple[Group, ...] = ()
    deepens: bool = True
    _judged: DocumentTable = field(default_factory=DocumentTable, init=False, repr=False)
    _looked_up: set[str] = field(default_factory=set, init=False, repr=False)
    _limit: float = field(default=math.inf, init=False, repr=False)

    @cached_property
    def _rankings(self) -> Mapping[str, Ranking]:
        """The rankings of a run, which is asked by the ids of its queries."""
        engine = lexical_of(self.engine)
        return engine.rankings if isinstance(engine, RunEngine) else {}

    def requests(self, queries: Sequence[AuditQuery], every: int) -> int:
        """Return how many searches and reads these of all queries take at most.

        Some go together.
        """
        looked_up = math.ceil(len(self._to_look_up(queries)) / LOOKED_UP)
        if self.texts is None:
            return len(queries) + looked_up
        searches = {it for attribute in self.attributes for it in self._searches_of(attribute)}
        per_query = 2 + len(self.widened) + (1 + len(searches)) * WIDENINGS * self.deepens
        return len(queries) * per_query + looked_up + min(PROBES, 3 * every)

    async def find_limit(self, queries: Sequence[AuditQuery]) -> None:
        """Find out where the engine cuts its answers off, from queries of the whole audit.

        Otherwise a short answer would seem to hold all that there is. A run ends with its longest
        ranking.

        Raises:
            IndexUnavailableError: The engine cannot be reached.
        """
        if self._rankings:
            self._limit = max(len(it.ids) for it in self._rankings.values())
        elif self.texts is not None:
            deepest = self.depth * WIDER**WIDENINGS if self.deepens else self.depth
            texts = [it.text for it in queries]
            self._limit = await limit_of(self.engine, texts, self.depth, deepest)

    async def look_up(self, queries: Sequence[AuditQuery], progress: ProgressFunction) -> None:
        """Read the groups of all documents that are judged relevant to these queries.

        An engine may refuse an id, which then counts as hidden. Engines that only give what they
        answered to any query are not asked: what they know would depend on the order of the
        queries.

        Raises:
            FairqrError: The engine cannot be reached.
        """
        await self._look_up(self._to_look_up(queries), LOOKED_UP, progress)

    def _to_look_up(self, queries: Iterable[AuditQuery]) -> list[str]:
        if self.qrels is None or not ("read_by_id" in self.engine.capabilities or self._rankings):
            return []
        relevant = {id_ for it in queries for id_ in relevant_in(self.qrels.get(it.id, {}))}
        return sorted(relevant - self._looked_up)

    async def _look_up(self, ids: Sequence[str], at_once: int, progress: ProgressFunction) -> None:
        for chunk in chunks(ids, at_once):
            try:
                (hits,) = await searched(self.engine, [Query("", len(chunk), only=tuple(chunk))])
            except FairqrError as error:
                if isinstance(error, IndexUnavailableError):
                    raise
                if at_once > 1:
                    await self._look_up(chunk, 1, progress)
                continue
            self._judged.add(hits.ids, hits.memberships)
            self._looked_up.update(chunk)
            progress(len(self._looked_up))

    async def observe(self, query: AuditQuery) -> Done[Observation]:
        """Ask one query; that the engine refuses it is an observation, too.

        Raises:
            ModelError: An encoder fails.
            ModelUnavailableError: It is not there.
        """
        try:
            return await self._observed(query)
        except RUN_ENDING:
            raise
        except FairqrError as error:
            record = Observation(query=query.id, status="failed", message=one_line(error))
            return Done((record,), away=error if isinstance(error, IndexUnavailableError) else None)

    async def _observed(self, query: AuditQuery) -> Done[Observation]:
        words = query.id if query.id in self._rankings else query.text
        (hits,) = await searched(self.engine, [Query(words, self.depth)])
        pool = DocumentTable()
        pool.add(hits.ids, hits.memberships)
        relevance: dict[str, tuple[float, ...]] = {}
        levels: dict[str, float] = {}
        relevant = set(relevant_in((self.qrels or {}).get(query.id, {})))
        known = sorted(it for it in relevant if it in self._judged)
        judged = memberships_of(self._judged, self.attributes, known)
        # What cannot be read by its id is not in the index, so no ranking could show it.
        readable = self._looked_up if "read_by_id" in self.engine.capabilities else frozenset[str]()
        missing = relevant.difference(known, pool.ids)
        absent, hidden = len(missing & readable), len(missing - readable)
        if self.texts is not None:
            found, levels = await self._widen(pool, query, words, hits)
            if found is not None:
                relevance = {name: (*it.tolist(),) for name, it in found._asdict().items()}
            judged, hidden, absent = (judged if known and not hidden else {}), 0, 0
        elif self.qrels is not None and query.id in self.qrels:
            pool.add(known, judged)
            relevance = {"relevance": tuple(float(id_ in relevant) for id_ in pool.ids)}
            judged = {}
        if hidden > HIDDEN * len(relevant):
            levels = dict.fromkeys((it.name for it in self.attributes), 1.0)
        groups = memberships_of(pool, self.attributes, pool.ids)
        observation = Observation(
            query=query.id,
            status="ok" if hits.ids else "empty",
            message=one_line(" ".join(hits.warnings)),
            ids=tuple(hits.ids),
            others=tuple(pool.ids[len(hits.ids) :]),
            **relevance,
            groups=coded(groups, groups),
            levels=levels,
            judged=coded(judged, judged),
            absent=absent,
            hidden=hidden,
        )
        return Done((observation,), hits.warnings)

    async def _widen(
        self, pool: DocumentTable, query: AuditQuery, words: str, answer: Hits
    ) -> tuple[Estimates | None, dict[str, float]]:
        """Add documents to a pool until no search ends among likely relevant documents.

        Each group has a search of its own, where the engine can search within it, unless the answer
        has as many of the group. An attribute with a group that has none depends on the plain
        search.

        Args:
            pool: Of what the engine answered.
            query: What was asked.
            words: In these words.
            answer: What the engine answered.

        Returns:
            The estimated relevance of the pool, None if there are no texts; and by attribute, from
            which estimate on the pool has its groups alike.
        """
        if self.texts is None or not answer.ids:
            return None, {}
        is_cut_off = len(answer) >= min(self.depth, self._limit)
        reached: dict[Group | None, _Reach] = {None: _Reach(self.depth, answer.ids, is_cut_off)}
        wanted: dict[Group | None, int] = dict.fromkeys(self.widened, WIDENED_BY)
        estimated: Estimates | None = None
        levels: dict[str, float] = {}
        groups = memberships_of(pool, self.attributes, answer.ids)
        answered: dict[Group | None, list[str]] = {
            (it.name, group): [*compress(answer.ids, groups[it.name][:, place] > 0)]
            for it in self.attributes
            for place, group in enumerate(it.universe)
        }
        for _ in range(1 + WIDENINGS):
            # What the answer has enough of is not searched for.
            for group in [it for it in wanted if len(answered.get(it, ())) >= wanted[it]]:
                size = wanted.pop(group)
                reached[group] = _Reach(size, answered[group][:size], is_cut_off=True)
            asked = [Query(words, size, within=group) for group, size in wanted.items()]
            try:
                found = await searched(self.engine, asked) if asked else []
            except FairqrError as error:
                if estimated is None or isinstance(error, IndexUnavailableError):
                    raise
                break  # The engine answers no search that is so deep.
            for (group, size), hits in zip(wanted.items(), found, strict=True):
                # An engine that finds no more of four times as many has a limit of its own.
                is_limited = group in reached and len(hits) == len(reached[group].ids)
                is_cut_off = is_limited or len(hits) >= min(size, self._limit)
                reached[group] = _Reach(size, hits.ids, is_cut_off)
                pool.add(hits.ids, hits.memberships)
            ids = pool.ids
            estimated = await self.texts.estimate_ids(query.text, ids)
            if estimated is None:
                return None, {}
            places = dict(zip(ids, range(len(ids)), strict=True))
            ends = {
                group: end_of(estimated.relevance, [*map(places.__getitem__, it.ids)])
                for group, it in reached.items()
                if it.is_cut_off
            }
            levels, wanted = {}, {}
            for attribute in self.attributes:
                for group in filter(ends.__contains__, self._searches_of(attribute)):
                    levels[attribute.name] = max(ends[group], levels.get(attribute.name, 0.0))
                    if self.deepens and ends[group] >= LIKELY:
                        wanted[group] = reached[group].size * WIDER
            if not wanted:
                break
        return estimated, levels

    def _searches_of(self, attribute: Attribute) -> list[Group | None]:
        """Return the searches that find the groups of an attribute; None is the plain one.

        They have an order, as documents enter the pool in it.
        """
        own = [(attribute.name, group) for group in attribute.universe]
        within: list[Group | None] = [group for group in own if group in self.widened]
        return within if len(within) == len(own) else [*within, None]


def relevant_in(judged: Mapping[str, int]) -> list[str]:
    """Return the documents that were judged relevant."""
    return [id_ for id_, grade in judged.items() if grade > 0]
