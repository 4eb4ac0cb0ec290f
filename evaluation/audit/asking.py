"""Asking an engine the queries of an audit: what it answers, and what it could have answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fairqr.base.errors import (
    FairqrError,
    IndexUnavailableError,
    ModelError,
    ModelUnavailableError,
    one_line,
)
from fairqr.evaluation.audit.observations import Observation
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.experiments.engine import Absence, Done
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.relevance_of_texts import comparable_from
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.table import DocumentTable, coded

__all__ = ["Asker", "Pace", "RelevanceOfTexts"]

WIDENED_BY = 20
"""How many documents a group's own query may add to the pool."""


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

    async def wait(self) -> None:
        """Wait until a request may begin."""
        if not self._gap:
            return
        async with self._turn:
            now = time.monotonic()
            await asyncio.sleep(max(0.0, self._next - now))
            self._next = max(self._next, now) + self._gap


def _text_of(query: AuditQuery) -> str:
    return query.text


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks an engine, and gathers all that the figures of a query need.

    Attributes:
        engine: The audited one. Its own ranking and scores say what it shows, and nothing else.
        attributes: The attributes whose groups are looked at.
        depth: How many documents a query asks for.
        qrels: Judgements by query id, if there are any. A query without judgements has no known
            relevant document, and is left out of the figures that need them.
        texts: Estimates relevance where there are no judgements; None if that is impossible.
        widened: The groups to search within, as attribute and group.
        twice: The ids of the queries to ask a second time.
        words: Returns what the engine is asked for a query: its text by default.
        pace: Of the requests.
    """

    engine: SearchEngine
    attributes: tuple[Attribute, ...]
    depth: int
    qrels: Mapping[str, Mapping[str, int]] | None = None
    texts: RelevanceOfTexts | None = None
    widened: tuple[tuple[str, str], ...] = ()
    twice: Collection[str] = frozenset()
    words: Callable[[AuditQuery], str] = _text_of
    pace: Pace = field(default_factory=Pace)

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
            message = one_line(error)
            seconds = time.perf_counter() - begun
            failed = Observation(query=query.id, status="failed", message=message, seconds=seconds)
            # An engine that cannot be reached ends the run in the end; a refused query does not.
            away = isinstance(error, IndexUnavailableError)
            return Done(failed, (Absence("unavailable", message),) if away else (None,))
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
        table = DocumentTable()
        table.add(hits.ids, hits.memberships)
        pool = list(hits.ids)
        relevance: FloatArray | None = None
        levels: dict[str, float] = {}
        warnings = hits.warnings
        if self.qrels is not None:
            judged = self.qrels.get(query.id)
            if judged is not None:
                relevant = [id_ for id_, grade in judged.items() if grade > 0]
                pool += await self._judged(table, relevant)
                if any(id_ not in table for id_ in relevant):
                    warnings += self._hidden
                relevance = np.array([float(judged.get(id_, 0) > 0) for id_ in pool])
        elif self.texts is not None:
            searches = await self._within_groups(words)
            for found in searches:
                new = [row for row, id_ in enumerate(found.ids) if id_ not in table]
                ids = [found.ids[row] for row in new]
                table.add(ids, {name: array[new] for name, array in found.memberships.items()})
                pool += ids
            if pool:
                await self.pace.wait()
                relevance = await self.texts.estimate_ids(query.text, pool)
                if relevance is not None:
                    levels = self._levels(pool, relevance, searches)
        observation = Observation(
            query=query.id,
            status="ok" if hits.ids else "empty",
            message=one_line(" ".join(warnings)),
            ids=tuple(hits.ids),
            scores=tuple(hits.scores),
            again=again,
            pool=tuple(pool),
            relevance=None if relevance is None else tuple(relevance.tolist()),
            groups=coded(
                _memberships(table, self.attributes, pool), {it.name for it in self.attributes}
            ),
            levels=levels,
            seconds=seconds,
        )
        return observation, warnings

    @property
    def _hidden(self) -> tuple[str, ...]:
        """What to say of judged documents that the engine does not give."""
        if "read_by_id" in self.engine.capabilities:
            return ()  # They are not in the index, so no ranking could show them.
        return (
            f"'{self.engine.name}' gives only documents that it answered, so the groups of other "
            "judged documents are not known and these are left out; what it hides is not seen.",
        )

    async def _search(self, queries: Sequence[Query]) -> list[Hits]:
        await self.pace.wait()
        return await self.engine.search(queries)

    async def _judged(self, table: DocumentTable, relevant: Sequence[str]) -> list[str]:
        """Add the relevant documents that were not answered, and return their ids."""
        missing = tuple(id_ for id_ in relevant if id_ not in table)
        if not missing:
            return []
        (found,) = await self._search([Query("", len(missing), only=missing)])
        table.add(found.ids, found.memberships)
        return found.ids

    async def _within_groups(self, text: str) -> list[Hits]:
        queries = [Query(text, WIDENED_BY, within=group) for group in self.widened]
        return await self._search(queries) if queries else []

    def _levels(
        self, pool: Sequence[str], relevance: FloatArray, searches: Sequence[Hits]
    ) -> dict[str, float]:
        """Return by attribute from which estimate on the pool has its groups alike."""
        places = {id_: place for place, id_ in enumerate(pool)}
        cut_off: dict[str, list[list[int]]] = {}
        for (attribute, _), found in zip(self.widened, searches, strict=True):
            if len(found) == WIDENED_BY:
                cut_off.setdefault(attribute, []).append([places[id_] for id_ in found.ids])
        return {name: comparable_from(relevance, held) for name, held in cut_off.items()}


def _memberships(
    table: DocumentTable, attributes: Sequence[Attribute], ids: Sequence[str]
) -> dict[str, FloatArray]:
    """Return the memberships of documents in each attribute."""
    return {it.name: table.memberships(Dimension(it, (it,)), ids) for it in attributes}
