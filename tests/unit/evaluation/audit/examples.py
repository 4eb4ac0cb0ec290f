"""A made-up audit: a few people, an engine that puts women last, and queries of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.base.errors import IndexUnavailableError, QueryError
from fairqr.evaluation.audit import finishing
from fairqr.evaluation.audit.bundle import REDACTED, TITLES, AuditFolder, AuditManifest, Observation
from fairqr.evaluation.audit.measuring import AuditFigures, measure
from fairqr.evaluation.audit.queries import AuditQuery, Queries, collect_queries
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.retrieval.engines.engine import Hits, Query
from fairqr.retrieval.engines.hybrid.texts import Estimates
from fairqr.retrieval.fairness.table import coded
from fairqr.retrieval.sources.query_files import QueryRow
from fairqr.retrieval.sources.schema import Schema
from tests.unit.engines import WatchedEngine

SCHEMA = Schema.model_validate(
    {
        "attributes": {
            name: {"field": name, "groups": [*shares], "population": shares}
            for name, shares in {
                "gender": {"female": 0.5, "male": 0.5},
                "origin": {"Africa": 0.2, "Asia": 0.6, "Europe": 0.2},
            }.items()
        }
    }
)
DOCUMENTS = 40

WORDS = tuple(f"word{number:02}" for number in range(30))
"""Queries that find the people of the fixture ``people``."""


def queries_of(
    count: int, *, texts: Sequence[str] = (), alike: bool = False, segments: Sequence[str] = ("",)
) -> Queries:
    """Return queries, each asked more often than the one before, or alike; texts stand first."""
    named = [*texts, *(f"people of town {number}" for number in range(count))][:count]
    queries = tuple(
        AuditQuery(f"q{number}", text, 1.0 if alike else float(number), 1, float(number), segment)
        for number, (text, segment) in enumerate(zip(named, cycle(segments), strict=False), start=1)
    )
    weight = sum(query.weight for query in queries)
    design = f"All {count} different queries of {count} lines were asked; each counts by 'count'."
    return Queries(queries, count, weight, design)


def words_of(words: Sequence[str] = WORDS, asks: Sequence[int] = ()) -> Queries:
    """Return words as queries; if it is said how often they were asked, as a log."""
    counts = [*asks, *[100 if asks else 1] * len(words)]
    rows = [QueryRow(n, word, word, counts[n - 1]) for n, word in enumerate(words, start=1)]
    return collect_queries(rows, weighted_by="count" if asks else None)


def observations_of(
    queries: Queries,
    *,
    bias: float = 0.5,
    prefix: str = "d",
    unlabelled: float = 0.0,
    with_relevance: bool = True,
    empty: Sequence[str] = (),
    failed: Sequence[str] = (),
) -> list[Observation]:
    """Return what an engine answered that demotes women by so much of its scores.

    Args:
        queries: All of them.
        bias: How much is taken off the scores of women; relevance is in [0, 1].
        prefix: Before the number of each document in its id.
        unlabelled: The share of documents without a gender.
        with_relevance: Whether relevance is known.
        empty: The ids of queries that found nothing.
        failed: The ids of queries that failed.
    """
    observations = []
    for number, query in enumerate(queries.queries):
        random = np.random.default_rng([7, number])
        relevance = random.random(DOCUMENTS).round(3)
        women = random.random(DOCUMENTS) < 0.5
        origins = random.integers(3, size=DOCUMENTS)
        gender = np.stack([women, ~women], axis=1).astype(float)
        gender[random.random(DOCUMENTS) < unlabelled] = 0.0
        scores = (relevance + 0.2 * random.random(DOCUMENTS) - bias * women).round(6)
        order = np.argsort(-scores, kind="stable")
        ids = tuple(f"{prefix}{row}" for row in order)
        memberships = {"gender": gender[order], "origin": np.eye(3)[origins][order]}
        answer: dict[str, Any] = {
            "status": "ok",
            "ids": ids[:30],
            "others": ids[30:],
            "relevance": tuple(relevance[order].tolist()) if with_relevance else None,
            "groups": coded(memberships, {"gender", "origin"}),
        }
        if query.id in empty:
            answer = {"status": "empty"}
        if query.id in failed:
            answer = {"status": "failed", "message": f"'{query.text}' was not answered in time."}
        observations.append(Observation(query=query.id, **answer))
    return observations


class ByRank:
    """Estimates relevance by the number at the end of the id, whatever the engine says."""

    def __init__(self, of: int = 25) -> None:
        self.of = of

    async def estimate_ids(self, query: str, ids: Sequence[str]) -> Estimates | None:
        likely = np.array([max(0.0, 1 - int(id_[-2:]) / self.of) for id_ in ids])
        return Estimates(likely, likely, likely, answerable=1.0)


class Breaking(WatchedEngine):
    """An engine that cannot answer some words.

    Attributes:
        away: The words for which it cannot be reached.
        refused: The words, and ids of documents, that it refuses.
    """

    away: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        for query in queries:
            if query.text in self.away:
                self.searches.append(list(queries))
                raise IndexUnavailableError("The server does not answer; start it.")
            if self.refused & {query.text, *(query.only or ())}:
                raise QueryError("The query is too long; shorten it.")
        return await super().search(queries)


def spec_of(**changes: object) -> AuditSpec:
    """Return what a small audit measures."""
    return AuditSpec.model_validate({"k": 10, "depth": 30, "rerank": 10, **changes})


def measured(
    queries: Queries,
    observed: Iterable[Observation],
    *,
    schema: Schema = SCHEMA,
    relevance: str = "estimated",
    **spec: object,
) -> AuditFigures:
    """Return the figures of what an engine answered."""
    by_id = {observation.query: observation for observation in observed}
    query_by_id = {query.id: query for query in queries.queries}
    return measure(
        spec_of(**spec),
        schema,
        query_by_id,
        lambda ids: [by_id[id_] for id_ in ids if id_ in by_id],
        relevance=relevance,
    )


def manifest_of(queries: Queries, spec: AuditSpec, **changes: Any) -> AuditManifest:
    """Return what a made-up audit is made with."""
    values = {
        "spec": spec.model_dump(mode="json"),
        "queries": queries.fingerprint,
        "engine": {"name": "a made-up engine"},
        "attributes": SCHEMA.attributes,
        "relevance": "estimated",
        "started": "",
    }
    return AuditManifest.model_validate(values | changes)


def outcome_of(
    count: int = 40,
    *,
    texts: Sequence[str] = (),
    titles: Mapping[str, str] | None = None,
    relevance: str = "estimated",
    spec: AuditSpec | None = None,
    schema: Schema = SCHEMA,
    **observed: Any,
) -> finishing.Audit:
    """Return what comes out of a made-up audit.

    Args:
        count: How many queries it has.
        texts: Of the first queries.
        titles: Of documents.
        relevance: What says what is relevant.
        spec: What is measured.
        schema: The attributes.
        observed: As :func:`observations_of` takes it.
    """
    queries = queries_of(count, texts=texts)
    spec = spec or spec_of()
    key = repr((queries, spec, schema, relevance, sorted(observed.items())))
    options = {"schema": schema, "relevance": relevance, **dict(spec)}
    if key not in _MEASURED:
        observations = observations_of(queries, **observed)
        _MEASURED[key] = measured(queries, observations, **options)
    manifest = manifest_of(queries, spec, relevance=relevance, attributes=schema.attributes)
    return finishing.Audit(Path(), manifest, spec, queries, _MEASURED[key], titles or {})


def made(outcome: finishing.Audit, **changes: object) -> finishing.Audit:
    """Return what comes out of an audit whose manifest has other values."""
    return replace(outcome, manifest=outcome.manifest.model_copy(update=changes))


_MEASURED: dict[str, AuditFigures] = {}
"""The figures of made-up audits; measuring takes a second, and they are the same each time."""


def sealed(
    folder: Path,
    queries: Queries,
    observed: Iterable[Observation],
    *,
    titles: Mapping[str, str] | None = None,
    redact: bool = False,
    reported: bool = True,
    **manifest: Any,
) -> finishing.Audit:
    """Write and seal what came out, with its report or without, and read it again."""
    store = AuditFolder(folder)
    with store.locked():
        started = store.begin(manifest_of(queries, **{"spec": spec_of(), **manifest}))
        with store.observations.writing():
            for observation in observed:
                store.observations.add(observation)
        store.settle(queries, redact=redact)
        store.write(TITLES, titles or {})
        if reported:
            final = started.model_copy(update={"redacted": redact})
            finishing.write_audit(folder, finishing.measured(store, final))
        store.seal(**(REDACTED if redact else {}))
    return finishing.read_audit(store)
