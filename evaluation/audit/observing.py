"""Asks an engine the queries of an audit, and gathers all that the figures need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import NamedTuple

from fairqr.base.errors import FairqrError, IndexUnavailableError, one_line
from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.experiments.tasks import Done
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
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.fairness.table import DocumentTable, coded
from fairqr.retrieval.sources.documents import ProgressFunction, chunks
from fairqr.retrieval.sources.schema import Attribute

LOOKED_UP = 500
"""How many judged documents are looked up at a time."""

WIDENED_BY = 20
"""How many documents a group's own query asks for at first."""

WIDER = 4
WIDENINGS = 3
"""If the last documents found are likely relevant, we ask for 4 times as many, up to 3 times."""

HIDDEN = 0.1
"""If a greater share of relevant documents is hidden, too few are known to tell target shares."""

Group = tuple[str, str]
"""An attribute and one of its groups."""


def listed_groups(attributes: Iterable[Attribute]) -> list[Group]:
    """Return the groups that attributes list, attribute by attribute."""
    return [(attribute.name, group) for attribute in attributes for group in attribute.listed]


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


class _Judgements(NamedTuple):
    """What judgements say of one query.

    Attributes:
        relevant: The documents that were judged relevant.
        known: Those whose groups were looked up, in the order of their ids.
        absent: How many of the others the engine does not hold.
        hidden: How many of the others the engine does not give.
    """

    relevant: set[str]
    known: list[str]
    absent: int
    hidden: int


@dataclass
class _RelevanceEvidence:
    """What is known of the relevance of a pool, as an observation has it."""

    relevance: tuple[float, ...] | None = None
    by_words: tuple[float, ...] | None = None
    by_similarity: tuple[float, ...] | None = None
    levels: dict[str, float] = field(default_factory=dict)
    judged: Memberships = field(default_factory=dict)
    absent: int = 0
    hidden: int = 0


@dataclass
class Observer:
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

    @property
    def _reads_by_id(self) -> bool:
        return "read_by_id" in self.engine.capabilities

    def requests(self, queries: Sequence[AuditQuery], all_queries: int) -> int:
        """Return how many searches and reads some queries take at most; some go together.

        Args:
            queries: The queries to ask.
            all_queries: How many queries the audit has; some of these show the engine's limit.
        """
        lookups = math.ceil(len(self.to_look_up(queries)) / LOOKED_UP)
        if self.texts is None:
            return len(queries) + lookups
        searches: set[Group | None] = set()
        for attribute in self.attributes:
            searches.update(self.searches_of(attribute))
        widenings = WIDENINGS if self.deepens else 0
        per_query = 2 + len(self.widened) + (1 + len(searches)) * widenings
        probes = min(PROBES, 3 * all_queries)
        return len(queries) * per_query + lookups + probes

    async def find_limit(self, queries: Sequence[AuditQuery]) -> None:
        """Find out where the engine cuts its answers off, from queries of the whole audit.

        Otherwise a short answer would seem to hold all that there is. A run ends with its longest
        ranking.

        Raises:
            IndexUnavailableError: The engine cannot be reached.
        """
        if self._rankings:
            self._limit = max(len(ranking.ids) for ranking in self._rankings.values())
        elif self.texts is not None:
            deepest = self.depth * WIDER**WIDENINGS if self.deepens else self.depth
            texts = [query.text for query in queries]
            self._limit = await limit_of(self.engine, texts, self.depth, deepest)

    def to_look_up(self, queries: Iterable[AuditQuery]) -> list[str]:
        """Return the documents that are judged relevant to these queries, and were not looked up.

        Engines that only give what they answered to any query are not asked: what they know would
        depend on the order of the queries.
        """
        can_look_up = self._reads_by_id or bool(self._rankings)
        if self.qrels is None or not can_look_up:
            return []
        relevant: set[str] = set()
        for query in queries:
            relevant |= self._relevant_to(query)
        return sorted(relevant - self._looked_up)

    def _relevant_to(self, query: AuditQuery) -> set[str]:
        """Return the documents that were judged relevant to a query."""
        grades = (self.qrels or {}).get(query.id, {})
        return {id_ for id_, grade in grades.items() if grade > 0}

    async def look_up(
        self, ids: Sequence[str], progress: ProgressFunction, at_once: int = LOOKED_UP
    ) -> None:
        """Read the groups of documents; an engine may refuse an id, which then counts as hidden.

        Raises:
            IndexUnavailableError: The engine cannot be reached.
        """
        for chunk in chunks(ids, at_once):
            try:
                (hits,) = await searched(self.engine, [Query("", len(chunk), only=tuple(chunk))])
            except FairqrError as error:
                if isinstance(error, IndexUnavailableError):
                    raise
                if at_once > 1:
                    await self.look_up(chunk, progress, 1)
                continue
            self._judged.add(hits.ids, hits.memberships)
            self._looked_up.update(chunk)
            progress(len(self._looked_up))

    async def observe(self, query: AuditQuery) -> Done[Observation]:
        """Ask one query; that the engine refuses it is an observation, too.

        Raises:
            ModelError: An encoder fails.
            ModelUnavailableError: An encoder is not there.
        """
        try:
            return await self._observed(query)
        except FairqrError as error:
            return Observation.failed(query.id, error)

    async def _observed(self, query: AuditQuery) -> Done[Observation]:
        words = query.id if query.id in self._rankings else query.text
        (hits,) = await searched(self.engine, [Query(words, self.depth)])
        pool = DocumentTable()
        pool.add(hits.ids, hits.memberships)
        judgements = self._judgements_of(query, pool)
        if self.texts is not None:
            evidence = await self._by_texts(self.texts, pool, query.text, words, hits)
            if judgements.known and not judgements.hidden:
                evidence.judged = self._groups(self._judged, judgements.known)
        else:
            evidence = self._by_judgements(pool, query, judgements)
        groups = self._groups(pool, pool.ids)
        observation = Observation(
            query=query.id,
            status="ok" if hits.ids else "empty",
            message=one_line(" ".join(hits.warnings)),
            ids=tuple(hits.ids),
            others=tuple(pool.ids[len(hits.ids) :]),
            relevance=evidence.relevance,
            by_words=evidence.by_words,
            by_similarity=evidence.by_similarity,
            groups=coded(groups, groups),
            levels=evidence.levels,
            judged=coded(evidence.judged, evidence.judged),
            absent=evidence.absent,
            hidden=evidence.hidden,
        )
        return Done((observation,), hits.warnings)

    def _judgements_of(self, query: AuditQuery, pool: DocumentTable) -> _Judgements:
        """Return what judgements say of a query, and of how many documents nothing is known."""
        relevant = self._relevant_to(query)
        known = sorted(id_ for id_ in relevant if id_ in self._judged)
        missing = relevant.difference(known, pool.ids)
        # What cannot be read by its id is not in the index, so no ranking could show it.
        readable = self._looked_up if self._reads_by_id else frozenset[str]()
        return _Judgements(relevant, known, len(missing & readable), len(missing - readable))

    def _by_judgements(
        self, pool: DocumentTable, query: AuditQuery, judgements: _Judgements
    ) -> _RelevanceEvidence:
        """Return what judgements say is relevant, and add the judged documents to the pool."""
        judged = self._groups(self._judged, judgements.known)
        evidence = _RelevanceEvidence(
            judged=judged, absent=judgements.absent, hidden=judgements.hidden
        )
        if self.qrels is not None and query.id in self.qrels:
            pool.add(judgements.known, judged)
            relevance = [float(id_ in judgements.relevant) for id_ in pool.ids]
            evidence.relevance = tuple(relevance)
            evidence.judged = {}
        if judgements.hidden > HIDDEN * len(judgements.relevant):
            evidence.levels = {attribute.name: 1.0 for attribute in self.attributes}
        return evidence

    async def _by_texts(
        self, texts: TextRelevance, pool: DocumentTable, text: str, words: str, answer: Hits
    ) -> _RelevanceEvidence:
        """Return what texts say is relevant, and add to the pool what may be relevant, too.

        Args:
            texts: Estimates relevance.
            pool: What the engine answered.
            text: The query.
            words: What the engine was asked.
            answer: What it answered.
        """
        if not answer.ids:
            return _RelevanceEvidence()
        widening = _Widening(self, texts, pool, words, answer)
        estimates = await widening.estimate(text)
        if estimates is None:
            return _RelevanceEvidence()
        return _RelevanceEvidence(
            relevance=tuple(estimates.relevance.tolist()),
            by_words=tuple(estimates.by_words.tolist()),
            by_similarity=tuple(estimates.by_similarity.tolist()),
            levels=widening.levels,
        )

    def _groups(self, table: DocumentTable, ids: Sequence[str]) -> Memberships:
        return {attribute.name: table.rows(attribute, ids) for attribute in self.attributes}

    def is_cut_off(self, hits: Hits, size: int) -> bool:
        """Return whether there may be more than a search for so many documents found."""
        return len(hits) >= min(size, self._limit)

    def searches_of(self, attribute: Attribute) -> list[Group | None]:
        """Return the searches that find an attribute's groups; None is the one without a group.

        They have an order, since documents enter the pool in it.
        """
        if attribute.open:
            return [None]
        groups = [(attribute.name, group) for group in attribute.universe]
        within: list[Group | None] = [group for group in groups if group in self.widened]
        return within if len(within) == len(groups) else [*within, None]


class _Widening:
    """Adds documents to a pool until no search ends among likely relevant documents.

    Each group has a search of its own, where the engine can search within it, unless the answer
    has as many of the group. An attribute with a group that has none depends on the search without
    a group.

    Args:
        observer: What asks the engine.
        texts: Estimates relevance.
        pool: What the engine answered.
        words: What the engine was asked.
        answer: What it answered.

    Attributes:
        levels: By attribute, from which estimate on the pool has its groups alike.
    """

    def __init__(
        self,
        observer: Observer,
        texts: TextRelevance,
        pool: DocumentTable,
        words: str,
        answer: Hits,
    ) -> None:
        self.levels: dict[str, float] = {}
        self._observer = observer
        self._texts = texts
        self._pool = pool
        self._words = words
        of_answer = _Reach(observer.depth, answer.ids, observer.is_cut_off(answer, observer.depth))
        self._reached: dict[Group | None, _Reach] = {None: of_answer}
        self._wanted: dict[Group | None, int] = dict.fromkeys(observer.widened, WIDENED_BY)
        self._answered = self._answered_of_groups(answer.ids)

    def _answered_of_groups(self, ids: Sequence[str]) -> dict[Group | None, list[str]]:
        """Return the documents of the answer that are of each listed group."""
        answered: dict[Group | None, list[str]] = {}
        for attribute in self._observer.attributes:
            members = self._pool.rows(attribute, ids)
            for column, group in enumerate(listed_groups([attribute])):
                answered[group] = [*compress(ids, members[:, column] > 0)]
        return answered

    async def estimate(self, text: str) -> Estimates | None:
        """Widen the pool, and return the estimated relevance of it; None if there are no texts.

        Args:
            text: The query.
        """
        estimates: Estimates | None = None
        for _ in range(1 + WIDENINGS):
            self._take_from_answer()
            try:
                await self._search()
            except FairqrError as error:
                if estimates is None or isinstance(error, IndexUnavailableError):
                    raise
                break  # The engine answers no search that is so deep.
            estimates = await self._texts.estimate_ids(text, self._pool.ids)
            if estimates is None:
                return None
            self._look_at_ends(estimates)
            if not self._wanted:
                break
        return estimates

    def _take_from_answer(self) -> None:
        """Take groups out of those to search for, of which the answer has enough."""
        for group, size in list(self._wanted.items()):
            answered = self._answered.get(group, [])
            if len(answered) >= size:
                del self._wanted[group]
                self._reached[group] = _Reach(size, answered[:size], is_cut_off=True)

    async def _search(self) -> None:
        """Search for what is still wanted."""
        if not self._wanted:
            return
        queries = [Query(self._words, size, within=group) for group, size in self._wanted.items()]
        answers = await searched(self._observer.engine, queries)
        for (group, size), hits in zip(self._wanted.items(), answers, strict=True):
            # An engine that finds no more of four times as many has a limit of its own.
            earlier = self._reached.get(group)
            is_limited = earlier is not None and len(hits) == len(earlier.ids)
            is_cut_off = is_limited or self._observer.is_cut_off(hits, size)
            self._reached[group] = _Reach(size, hits.ids, is_cut_off)
            self._pool.add(hits.ids, hits.memberships)

    def _look_at_ends(self, estimates: Estimates) -> None:
        """Note how relevant the last documents of each search are, and what to search on for."""
        rows = {id_: row for row, id_ in enumerate(self._pool.ids)}
        ends = {}
        for group, reach in self._reached.items():
            if reach.is_cut_off:
                positions = [rows[id_] for id_ in reach.ids]
                ends[group] = end_of(estimates.relevance, positions, estimates.answerable)
        self.levels = {}
        self._wanted = {}
        for attribute in self._observer.attributes:
            for group in self._observer.searches_of(attribute):
                if group not in ends:
                    continue
                level = self.levels.get(attribute.name, 0.0)
                self.levels[attribute.name] = max(ends[group], level)
                if self._observer.deepens and ends[group] >= LIKELY:
                    self._wanted[group] = self._reached[group].size * WIDER
