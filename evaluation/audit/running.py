"""Carrying out an audit: checks, questions, figures, the report, and a sealed folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

from fairqr.base import errors
from fairqr.base.errors import FairqrError, IndexUnavailableError, InputError, one_line
from fairqr.base.secrets import WITHHELD, without_secrets
from fairqr.evaluation.audit import finishing
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest, Observation, Relevance
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.lists import NO_RECORDS, UserRecords
from fairqr.evaluation.audit.measuring import dimensions_to_measure
from fairqr.evaluation.audit.pairs import Pairs, ScoredPairs, open_pairs
from fairqr.evaluation.audit.queries import AuditQuery, Queries
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.collections.query_targets import check_target
from fairqr.evaluation.experiments.engine import Done, run_tasks
from fairqr.evaluation.experiments.folder import Lines, versions
from fairqr.evaluation.experiments.progress import StageWatcher, time_left
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.reports.text import counted
from fairqr.evaluation.user_clicks import ClickFigures
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines import engine as engines
from fairqr.retrieval.engines.engine import Query, SearchEngine, require, searched
from fairqr.retrieval.engines.hybrid.texts import Estimates, TextRelevance, end_of, open_texts
from fairqr.retrieval.engines.limits import at_rate
from fairqr.retrieval.engines.run import RunEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.fairness.table import DocumentTable, coded
from fairqr.retrieval.sources.documents import ProgressFunction, chunks, in_known_forms
from fairqr.retrieval.sources.schema import Attribute
from fairqr.retrieval.sources.source import Source
from fairqr.retrieval.texts.words import sendable

LOOKED_UP = 500
"""How many judged documents are looked up at a time."""

WIDENED_BY = 20
"""How many documents a group's own query asks for at first."""

WIDER, WIDENINGS = 4, 3
"""If the last documents found are likely relevant, we ask for 4 times as many, up to 3 times."""

HIDDEN = 0.1
"""If a greater share of relevant documents is hidden, too few are known to tell target shares."""

UNLABELLED = 20
"""After so many answered queries without one label of an attribute, the labels are not there."""

LONGEST_TITLE = 200
"""Characters; a source may name a text as the title."""

Group = tuple[str, str]
"""An attribute and one of its groups."""


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
        engine = engines.lexical_of(self.engine)
        return engine.rankings if isinstance(engine, RunEngine) else {}

    def requests(self, queries: Sequence[AuditQuery], every: int) -> int:
        """Return how many searches and reads these of all queries take at most.

        Some go together.
        """
        looked_up = math.ceil(len(self.to_look_up(queries)) / LOOKED_UP)
        if self.texts is None:
            return len(queries) + looked_up
        searches = {it for attribute in self.attributes for it in self._searches_of(attribute)}
        per_query = 2 + len(self.widened) + (1 + len(searches)) * WIDENINGS * self.deepens
        return len(queries) * per_query + looked_up + min(engines.PROBES, 3 * every)

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
            self._limit = await engines.limit_of(self.engine, texts, self.depth, deepest)

    def to_look_up(self, queries: Iterable[AuditQuery]) -> list[str]:
        """Return the documents that are judged relevant to these queries, and were not looked up.

        Engines that only give what they answered to any query are not asked: what they know would
        depend on the order of the queries.
        """
        if self.qrels is None or not ("read_by_id" in self.engine.capabilities or self._rankings):
            return []
        judged = (pair for it in queries for pair in self.qrels.get(it.id, {}).items())
        return sorted({id_ for id_, grade in judged if grade > 0} - self._looked_up)

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
            ModelUnavailableError: It is not there.
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
        relevance: dict[str, tuple[float, ...]] = {}
        claims: tuple[int, ...] = ()
        levels: dict[str, float] = {}
        grades = (self.qrels or {}).get(query.id, {})
        relevant = {id_ for id_, grade in grades.items() if grade > 0}
        known = sorted(it for it in relevant if it in self._judged)
        judged = self._groups(self._judged, known)
        # What cannot be read by its id is not in the index, so no ranking could show it.
        readable = self._looked_up if "read_by_id" in self.engine.capabilities else frozenset[str]()
        missing = relevant.difference(known, pool.ids)
        absent, hidden = len(missing & readable), len(missing - readable)
        if self.texts is not None:
            found, levels = await self._widen(pool, query, words, hits)
            if found is not None:
                relevance = {
                    "relevance": tuple(found.relevance.tolist()),
                    "by_words": tuple(found.by_words.tolist()),
                    "by_similarity": tuple(found.by_similarity.tolist()),
                }
                rows = found.claims.tolist()
                claims = tuple(rows) if rows != [*range(len(rows))] else ()
            judged, hidden, absent = (judged if known and not hidden else {}), 0, 0
        elif self.qrels is not None and query.id in self.qrels:
            pool.add(known, judged)
            relevance = {"relevance": tuple(float(id_ in relevant) for id_ in pool.ids)}
            judged = {}
        if hidden > HIDDEN * len(relevant):
            levels = dict.fromkeys((it.name for it in self.attributes), 1.0)
        groups = self._groups(pool, pool.ids)
        observation = Observation(
            query=query.id,
            status="ok" if hits.ids else "empty",
            message=one_line(" ".join(hits.warnings)),
            ids=tuple(hits.ids),
            others=tuple(pool.ids[len(hits.ids) :]),
            **relevance,
            claims=claims,
            groups=coded(groups, groups),
            levels=levels,
            judged=coded(judged, judged),
            absent=absent,
            hidden=hidden,
        )
        return Done((observation,), hits.warnings)

    async def _widen(
        self, pool: DocumentTable, query: AuditQuery, words: str, answer: engines.Hits
    ) -> tuple[Estimates | None, dict[str, float]]:
        """Add documents to a pool until no search ends among likely relevant documents.

        Each group has a search of its own, where the engine can search within it, unless the answer
        has as many of the group. An attribute with a group that has none depends on the
        search without one.

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
        answered = self._answered_of_groups(pool, answer.ids)
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
                group: end_of(
                    estimated.relevance,
                    [places[id_] for id_ in it.ids],
                    estimated.answerable,
                )
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

    def _groups(self, table: DocumentTable, ids: Sequence[str]) -> engines.Memberships:
        return {it.name: table.rows(it, ids) for it in self.attributes}

    def _answered_of_groups(
        self, table: DocumentTable, ids: Sequence[str]
    ) -> dict[Group | None, list[str]]:
        """Return the documents of an answer that are of each listed group."""
        answered: dict[Group | None, list[str]] = {}
        for attribute in self.attributes:
            members = table.rows(attribute, ids)
            for place, group in enumerate(_listed_groups([attribute])):
                answered[group] = [*compress(ids, members[:, place] > 0)]
        return answered

    def _searches_of(self, attribute: Attribute) -> list[Group | None]:
        """Return the searches that find the groups of an attribute; None is that without a group.

        They have an order, as documents enter the pool in it.
        """
        if attribute.open:
            return [None]
        own = [(attribute.name, group) for group in attribute.universe]
        within: list[Group | None] = [group for group in own if group in self.widened]
        return within if len(within) == len(own) else [*within, None]


def _listed_groups(attributes: Iterable[Attribute]) -> list[Group]:
    return [(attribute.name, group) for attribute in attributes for group in attribute.listed]


def _judgements_of(queries: Queries, qrels: Qrels | None) -> Qrels | None:
    """Return judgements with the ids of the queries as the queries write them.

    Raises:
        InputError: None of the queries is judged.
    """
    if qrels is None:
        return None
    ids = [query.id for query in queries.queries]
    judged = in_known_forms(qrels, {*ids})
    if not any(id_ in judged for id_ in ids):
        raise InputError(
            f"The judgements have none of the queries, such as '{one_line(ids[0], 80)}'; give "
            "the queries the ids that the judgements use, in a column 'id'."
        )
    return judged


async def audit_engine(
    spec: AuditSpec,
    engine: SearchEngine,
    queries: Queries,
    folder: AuditFolder,
    *,
    qrels: Qrels | None = None,
    pairs: Pairs | None = None,
    users: UserRecords = NO_RECORDS,
    rate: float | None = None,
    concurrency: int,
    watcher: StageWatcher,
    redact: bool = False,
    layout: str = finishing.LAYOUTS[0],
    withhold_place: bool = False,
    command: Sequence[str] = (),
) -> Audit:
    """Ask an engine queries, measure who gets seen, and write and seal all files.

    Args:
        spec: What to measure.
        engine: The audited engine.
        queries: What to ask.
        folder: Where everything goes; an interrupted audit goes on there, and so does a finished
            one whose engine answers a query now that failed before. Others are only read.
        qrels: Judgements by query id. Without them relevance is estimated from texts, where that
            is possible.
        pairs: Documents in several versions.
        users: What a proxy saw of these searches, and what clicks say, of which the spec has the
            discount.
        rate: The most requests a second; no limit by default.
        concurrency: How many queries may be under way.
        watcher: Told how far it is.
        redact: Put pseudonyms in place of queries.
        layout: The layout of the report.
        withhold_place: Name the engine alone, not where it is or how its source describes it.
        command: How the audit was started, for the record.

    Raises:
        FairqrError: The audit cannot be carried out; the message says what to do.
    """
    finishing.load_layout(layout)  # a wrong name is an error before anything is asked
    attributes = _attributes(spec, engine)
    qrels = _judgements_of(queries, qrels)
    shares: dict[str, tuple[float, ...]] = {}
    if spec.target.parts.get("corpus"):
        require(engine, "corpus_shares", "A target with the part 'corpus'")
        counted = await engine.corpus_shares()
        shares = {name: tuple(counted[name].tolist()) for name in attributes if name in counted}
        if lacking := attributes.keys() - shares.keys() - spec.target.shares.keys():
            raise errors.TargetError(
                f"'{engine.name}' cannot count all documents by '{min(lacking)}'; choose a target "
                "without the part 'corpus'."
            )
    slow = at_rate(engine, rate)
    if pairs is None and "pairs_by" in spec.model_fields_set:
        raise InputError("'pairs_by' says what scores pairs; name their file with --pairs, too.")
    scored = None if pairs is None else await open_pairs(spec.pairs_by, pairs, slow)
    relevance: Relevance = "judged"
    texts: TextRelevance | None = None
    if qrels is None or spec.judge == "estimate":
        texts, why_not = await open_texts(
            slow, {it.id: it.text for it in queries.queries}, watcher.count("encoding texts")
        )
        relevance = "estimated" if texts else "unknown"
        if not texts:
            if qrels:
                raise InputError(f"{why_not} Or leave out --set judge=estimate.")
            if spec.target.parts.get("relevance"):
                # A target that was asked for must not need relevance.
                if "target" in spec.model_fields_set:
                    raise errors.TargetError(
                        f"{why_not} Or choose a target that does not need them, such as uniform:1."
                    )
                watcher.note(
                    f"{why_not} Until then no gaps are measured, unless a target such as uniform:1 "
                    "says what each group should get."
                )
    groups = _listed_groups(attributes.values())
    observer = Observer(
        slow,
        tuple(attributes.values()),
        spec.depth,
        qrels=qrels,
        texts=texts,
        widened=tuple(it for it in groups if it in engine.filterable and texts and spec.widen),
        deepens=spec.widen,
    )
    info, source = await engine.info(), getattr(engine, "source", None)
    inputs = (("judgements", qrels), ("pairs", pairs), ("clicks", users.clicks))
    manifest = AuditManifest(
        versions=versions() | ({"server": info.server} if info.server else {}),
        spec=spec.model_dump(mode="json"),
        source=without_secrets(source.model_dump(mode="json"))
        if isinstance(source, Source) and not withhold_place
        else {},
        inputs={name: _hash(read) for name, read in inputs if read is not None},
        queries=queries.fingerprint,
        command=without_secrets(tuple(command)),
        engine={
            "name": engine.name,
            "engine": info.engine,
            "location": WITHHELD if withhold_place else info.location,
            "retriever": engine.retriever,
            # An index on a server may grow while it is audited.
            "state": info.fingerprint if engine.in_process else "",
        },
        documents=info.documents,
        attributes=attributes,
        relevance=relevance,
        encoder=MiniLmEncoder.name if texts else "",
        pairs_by=scored.name if scored else "",
        corpus_shares=shares,
    )
    with folder.locked():
        held = folder.manifest() if folder.exists() else manifest
        if held.finished and (redact or held.redacted or layout != held.layout):
            why = "is finished with another --redact or --layout"
            raise InputError(f"The audit in {folder.folder} {why}; choose another folder.")
        folder.check(manifest)
        if held.finished and not await _answers_now(observer, queries, folder):
            return await asyncio.to_thread(finishing.read_audit, folder)
        if folder.is_pseudonymous(queries):
            redact = True  # All was asked, and a kill came before the end.
        else:
            await _ask(observer, queries, scored, folder, manifest, rate, concurrency, watcher)
            watcher.note("All queries were asked; the figures are computed.")
            await asyncio.to_thread(folder.settle, queries, redact=redact)
            for name, record in users.files().items():
                folder.write(name, record)
        # The folder says that it is redacted only once it is sealed.
        manifest = folder.manifest().model_copy(update={"redacted": redact})
        audit = await asyncio.to_thread(finishing.measured, folder, manifest)
        if failed := audit.figures.counts.failed:
            watcher.note(f"Failed queries: {failed:,}. Run the same command to ask them again.")
        audit = replace(audit, titles=await _titles(slow, audit, watcher))
        return await asyncio.to_thread(finishing.finish, audit, folder, layout)


async def _answers_now(observer: Observer, queries: Queries, folder: AuditFolder) -> bool:
    """Return whether the engine answers any query that failed in a finished audit."""
    done = folder.observations.done()
    for query in queries.queries:
        if (query.id,) not in done and (await observer.observe(query)).records[0].is_final:
            return True
    return False


def _attributes(spec: AuditSpec, engine: SearchEngine) -> dict[str, Attribute]:
    """Return the attributes that are measured, once the spec is known to fit them."""
    if not engine.schema.attributes:
        raise InputError(
            f"'{engine.name}' has no attributes to audit; describe them in its schema, or in the "
            "source."
        )
    dimensions = dimensions_to_measure(engine.schema, spec)
    check_target(spec.target, dimensions)
    groups = [f"{it.name}={group}" for it in dimensions if not it.is_open for group in it.groups]
    for chosen in map("=".join, spec.reference.items()):
        if chosen not in groups:
            raise InputError(
                f"The reference '{one_line(chosen)}' is no group of this audit; choose among "
                f"{', '.join(groups[:20])}."
            )
    return {factor.name: factor for it in dimensions for factor in it.factors}


def _hash(read: Qrels | Pairs | ClickFigures) -> str:
    """Return a hash of all that was read, so that other queries do not change it."""
    if isinstance(read, ClickFigures):
        return hashlib.sha256(read.model_dump_json().encode()).hexdigest()
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=dict).encode()).hexdigest()


async def _ask(
    observer: Observer,
    queries: Queries,
    pairs: ScoredPairs | None,
    folder: AuditFolder,
    manifest: AuditManifest,
    rate: float | None,
    concurrency: int,
    watcher: StageWatcher,
) -> None:
    """Ask what has not been asked yet; records are kept as they come.

    Raises:
        IndexUnavailableError: The engine is away.
        SourceError: No document has a label of an attribute.
        ModelError: A model or an encoder fails.
    """
    done, scored = folder.observations.done(), len(folder.pairs.done())
    every = queries.queries
    left = [query for query in every if (query.id,) not in done]
    then = pairs.cost(scored) if pairs and scored < len(pairs.tasks) else ""
    missing, answered = {it.name for it in observer.attributes}, 0

    def note(kept: Observation) -> None:
        nonlocal answered
        groups = kept.groups.items() if kept.status == "ok" else ()
        answered += bool(groups)
        missing.difference_update(name for name, it in groups if any(map(any, it["patterns"])))

    async def start(_: None) -> None:
        await observer.look_up(
            observer.to_look_up(left), watcher.count("looking up judged documents")
        )
        folder.begin(manifest)  # nothing is written before everything is there

    async def observe(query: AuditQuery) -> Done[Observation]:
        found = await observer.observe(query)
        note(*found.records)
        if answered >= UNLABELLED:
            check_labels()
        return found

    def check_labels() -> None:
        if missing and answered:
            raise errors.SourceError(
                f"None of the documents that '{observer.engine.name}' answered to {answered:,} "
                f"queries has a label of '{min(missing)}'; check its field or its file of labels, "
                "or leave the attribute out."
            )

    for known in folder.observations.in_order(done):
        note(known)

    async def run(title: str, tasks: Any, do: Any, lines: Lines[Any], by: str) -> None:
        await run_tasks(
            tasks,
            do,
            lines,
            title=title,
            keys=lambda task: [(task.id,)],
            start=start,
            model=lambda _: by,
            watcher=watcher,
            at_once=concurrency,
            tolerated=IndexUnavailableError,  # the report lists the failed queries
        )

    pace = f", at most {rate:g} a second, so at least {time_left(len(left) / rate)}" if rate else ""
    asked = f"{counted(len(left), 'query', 'queries')} for '{observer.engine.name}'"
    asked = f"{asked}, up to {observer.requests(left, len(every)):,} requests{pace}" if left else ""
    if cost := "; then ".join(filter(None, (asked, then))):
        watcher.note(cost)
    await observer.find_limit(every if left else ())
    await run(
        "queries", every, observe, folder.observations, f"The engine '{observer.engine.name}'"
    )
    check_labels()
    folder.begin(manifest)
    if pairs:
        await run("pairs", pairs.tasks, pairs.do, folder.pairs, f"'{pairs.name}'")


async def _titles(engine: SearchEngine, audit: Audit, watcher: StageWatcher) -> dict[str, str]:
    """Return the titles of the documents that the report shows as examples, by id."""
    if not (ids := finishing.documents_to_name(audit)):
        return {}
    try:
        found = await engine.documents(ids)
    except FairqrError as error:
        watcher.note(f"The report shows ids in place of titles: {one_line(error)}")
        return {}
    return {it.id: one_line(sendable(it.title), LONGEST_TITLE) for it in found if it.title.strip()}
