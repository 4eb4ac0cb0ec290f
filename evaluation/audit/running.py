"""The plan of an audit: what it asks, in which parts, and how long that takes."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fairqr.base.errors import (
    IndexUnavailableError,
    InputError,
    ModelError,
    SourceError,
    TargetError,
    one_line,
)
from fairqr.base.statistics import stream
from fairqr.base.weights.cache import is_pulled
from fairqr.evaluation.audit.asking import WIDENINGS, Asker, Pace, RelevanceOfTexts, paced
from fairqr.evaluation.audit.bundle import (
    AuditedEngine,
    AuditFolder,
    AuditManifest,
    Relevance,
    Store,
    without_secrets,
)
from fairqr.evaluation.audit.measuring import (
    dimensions_to_measure,
)
from fairqr.evaluation.audit.pair_files import PairQuery, Pairs
from fairqr.evaluation.audit.pairs import ScoredPairs, open_pair_scorer
from fairqr.evaluation.audit.queries import AuditQuery, Queries
from fairqr.evaluation.audit.records import AuditRecord, Observation
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.collections.query_targets import check_target
from fairqr.evaluation.experiments.engine import Done, Keep, run_tasks
from fairqr.evaluation.experiments.progress import StageWatcher, time_left
from fairqr.evaluation.qrels import Qrels
from fairqr.retrieval.dimension import TIMES, Dimension
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Query, SearchEngine, require
from fairqr.retrieval.engines.run import RunEngine
from fairqr.retrieval.relevance_of_texts import TextRelevance
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.source import Source

T = TypeVar("T", AuditQuery, PairQuery)
R = TypeVar("R", bound=AuditRecord)

PROBED = 10
"""So many documents of so many queries tell whether an engine gives texts."""

UNLABELLED = 20
"""After so many answered queries without one label of an attribute, the labels are not there."""


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What is to be done.

    Attributes:
        manifest: What the folder keeps of it.
        queries: All of them.
        asker: Asks them.
        rate: The most requests a second.
        pairs: The versions of documents, which are scored once the queries were asked.
    """

    manifest: AuditManifest
    queries: Queries
    asker: Asker
    rate: float | None = None
    pairs: ScoredPairs | None = None

    def requests(self, done: int = 0) -> int:
        """Return how many requests the queries that are left take, at most.

        Args:
            done: How many queries have been asked.
        """
        asker = self.asker
        each = 1 + (asker.qrels is not None)
        if asker.texts is not None:
            each += 1 + bool(asker.widened)
            each += 2 * WIDENINGS if asker.deepens else 0
        left = len(self.queries.queries) - done
        return left * each + min(left, len(asker.twice))

    def cost(self, done: int = 0) -> str:
        """Say what is asked of the engine, how long that takes at least, and what comes then."""
        left, requests = len(self.queries.queries) - done, self.requests(done)
        queries = f"{left:,} {'query' if left == 1 else 'queries'}"
        said = f"{queries} for '{self.asker.engine.name}', up to {requests:,} requests"
        if self.rate:
            at_least = time_left(left / self.rate)
            said += f", at most {self.rate:g} a second, so at least {at_least}"
        return f"{said}; then {self.pairs.cost()}" if self.pairs else said

    async def run(self, folder: AuditFolder, *, concurrency: int, watcher: StageWatcher) -> None:
        """Ask what has not been asked yet.

        Args:
            folder: Where the records go; locked while this runs.
            concurrency: How many queries may be under way.
            watcher: Told how far it is.

        Raises:
            InputError: The folder holds another audit.
            IndexUnavailableError: The engine is away; the records until then are kept.
            SourceError: No document has a label of an attribute.
            ModelError: A model or an encoder fails; the same.
        """
        for sentence in self.manifest.notes:
            watcher.note(sentence)
        asker = self.asker
        labels = _Labels(asker.engine.name, asker.attributes)

        async def observe(query: AuditQuery) -> Done[Observation]:
            found = await asker.observe(query)
            labels.take(found.record)
            return found

        async def begin() -> None:
            folder.begin(self.manifest)  # nothing is written before everything is there

        record = functools.partial(_record, start=begin, watcher=watcher, at_once=concurrency)
        queries, name = self.queries.queries, asker.engine.name
        await record("queries", queries, observe, folder.observations, name, self.cost)
        labels.check()
        await begin()
        if self.pairs:
            scorer, tasks, cost = self.pairs.scorer, self.pairs.tasks, self.pairs.cost
            is_engine, store = scorer.is_by_engine, folder.pairs
            await record(
                "pairs", tasks, self.pairs.do, store, scorer.name, cost, is_engine=is_engine
            )


async def _record(
    title: str,
    tasks: Sequence[T],
    do: Callable[[T], Awaitable[Done[R]]],
    store: Store[R],
    name: str,
    cost: Callable[[int], str],
    *,
    start: Callable[[], Awaitable[None]],
    watcher: StageWatcher,
    at_once: int,
    is_engine: bool = True,
) -> None:
    """Do all tasks that have no record yet, and keep the records.

    Args:
        title: For the progress display.
        tasks: One for each record.
        do: Does a task.
        store: Of the records.
        name: Of what is asked.
        cost: Says what is left to ask after some tasks are done.
        start: Awaited before the first task.
        watcher: Told how far it is.
        at_once: How many tasks may be under way.
        is_engine: Whether the audited engine is asked, and no model.

    Raises:
        IndexUnavailableError: The audited engine is away; the records until then are kept.
        ModelError: A model is away; the same.
    """

    async def keep_it(task: T, keep: Keep[R]) -> None:
        keep(await do(task))

    try:
        await run_tasks(
            tasks,
            keep_it,
            store.lines,
            title=title,
            model=f"{'The engine ' * is_engine}'{name}'",
            key=lambda task: task.id,
            start=start,
            cost=cost,
            watcher=watcher,
            at_once=at_once,
        )
    except ModelError as error:
        if is_engine and error.status == "unavailable":
            raise IndexUnavailableError(str(error)) from None
        raise


async def make_plan(
    spec: AuditSpec,
    engine: SearchEngine,
    queries: Queries,
    *,
    qrels: Qrels | None = None,
    texts: RelevanceOfTexts | None = None,
    without_texts: str = "",
    rate: float | None = None,
    pairs: Pairs | None = None,
    command: Sequence[str] = (),
) -> AuditPlan:
    """Check what an audit needs, before anything is asked.

    Args:
        spec: What to measure.
        engine: The audited engine.
        queries: What to ask.
        qrels: Judgements by query id; above 0 is relevant.
        texts: Estimates relevance where there are no judgements.
        without_texts: Why there are no estimates, and what to do; a whole sentence.
        rate: The most requests a second.
        pairs: Documents in several versions, if there are any; ``spec.pairs_by`` scores them.
        command: How the audit was started, for the record.

    Raises:
        InputError: An attribute does not exist, or there are none; or the target needs relevance,
            and nothing says what is relevant.
        TargetError: The target names what does not exist, or a population that is not given.
        UnsupportedError: The target needs the groups of the whole corpus, which the engine cannot
            count.
    """
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"The rate is requests a second, above 0, not {rate:g}.")
    dimensions = _dimensions(spec, engine)
    attributes = {factor.name: factor for dimension in dimensions for factor in dimension.factors}
    if qrels is not None:
        _check_judgements(qrels, queries)
    estimated: Relevance = "unknown" if texts is None else "estimated"
    relevance: Relevance = estimated if qrels is None else "judged"
    notes = _notes(spec, without_texts) if relevance == "unknown" else []
    shares: dict[str, tuple[float, ...]] = {}
    if spec.target.parts.get("corpus"):
        require(engine, "corpus_shares", "A target with the part 'corpus'")
        counted = await engine.corpus_shares()
        shares = {name: tuple(counted[name].tolist()) for name in attributes if name in counted}
    pace = Pace(rate)
    slow = paced(engine, pace)
    asker = Asker(
        engine,
        tuple(attributes.values()),
        spec.depth,
        order=[query.id for query in queries.queries],
        qrels=qrels,
        texts=texts if relevance == "estimated" else None,
        widened=_widened(spec, engine, attributes) if relevance == "estimated" else (),
        deepens=spec.widen,
        # A file says the same again.
        twice=frozenset() if isinstance(engine, RunEngine) else _twice(spec, queries),
        words=_words(engine),
        pace=pace,
    )
    scored = await _pairs(spec, slow, pairs)
    inputs = {} if qrels is None else {"judgements": _fingerprint(qrels)}
    if pairs is not None:
        inputs["pairs"] = pairs.fingerprint
    info, source = await engine.info(), getattr(engine, "source", None)
    manifest = AuditManifest(
        spec=spec.model_dump(mode="json"),
        source=without_secrets(
            source.model_dump(mode="json") if isinstance(source, Source) else {}
        ),
        inputs=inputs,
        queries=queries.fingerprint,
        seeds={"audit": spec.seed},
        command=without_secrets(tuple(command)),
        engine=AuditedEngine(
            name=engine.name,
            engine=info.engine,
            location=info.location,
            retriever=engine.retriever,
            # An index on a server may grow while it is audited.
            state=info.fingerprint if engine.in_process else "",
        ),
        documents=info.documents,
        server=info.server,
        attributes={name: engine.schema.attribute(name) for name in attributes},
        relevance=relevance,
        encoder=MiniLmEncoder.name if relevance == "estimated" else "",
        pairs_by=scored.scorer.name if scored else "",
        corpus_shares=shares,
        notes=tuple(notes),
    )
    return AuditPlan(manifest, queries, asker, rate, scored)


def _dimensions(spec: AuditSpec, engine: SearchEngine) -> list[Dimension]:
    """Return what is measured, once the target is known to fit it."""
    if not engine.schema.attributes:
        raise InputError(
            f"'{engine.name}' has no attributes to audit; describe them in its schema, or in the "
            "source."
        )
    dimensions = dimensions_to_measure(engine.schema, spec)
    lacking = spec.target.without_population([it.attribute for it in dimensions])
    if lacking and TIMES in lacking[0]:
        raise TargetError(
            f"The schema gives no population for a part of '{lacking[0]}'; add one, or leave "
            "combinations out with --set intersections=false."
        )
    check_target(spec.target, dimensions)
    groups = [f"{it.name}={group}" for it in dimensions for group in it.groups]
    for chosen in map("=".join, spec.reference.items()):
        if chosen not in groups:
            raise InputError(
                f"The reference '{one_line(chosen)}' is no group of this audit; choose among "
                f"{', '.join(groups[:20])}."
            )
    return dimensions


def _check_judgements(qrels: Qrels, queries: Queries) -> None:
    if not any(query.id in qrels for query in queries.queries):
        first = queries.queries[0].id
        raise InputError(
            f"The judgements have none of the queries, such as '{one_line(first, 80)}'; give "
            "the queries the ids that the judgements use, in a column 'id'."
        )


def _notes(spec: AuditSpec, without_texts: str) -> list[str]:
    """Say what is not measured without relevance; a target that was asked for must not need it."""
    if not spec.target.parts.get("relevance"):
        return []
    needs = without_texts or "Nothing says which documents are relevant; give judgements."
    if "target" in spec.model_fields_set:
        raise TargetError(f"{needs} Or choose a target that does not need them, such as uniform:1.")
    return [
        f"{needs} Until then no gaps are measured, unless a target such as uniform:1 says what "
        "each group should get."
    ]


async def _pairs(spec: AuditSpec, engine: SearchEngine, pairs: Pairs | None) -> ScoredPairs | None:
    """Return the pairs to score, by what is started; None if there are none."""
    if pairs is None:
        if "pairs_by" in spec.model_fields_set:
            raise InputError(
                "'pairs_by' says what scores pairs; name their file with --pairs, too."
            )
        return None
    scorer = open_pair_scorer(spec.pairs_by, pairs, engine)
    await scorer.start()
    return ScoredPairs(scorer, pairs.queries)


async def open_texts(
    engine: SearchEngine,
    queries: Queries,
    progress: Progress | None = None,
    rate: float | None = None,
) -> tuple[TextRelevance | None, str]:
    """Open what estimates relevance from the texts of an engine's documents.

    Args:
        engine: Gives the texts.
        queries: Those of the audit.
        progress: Told how many texts have been encoded, if any have to be.
        rate: The most requests a second; no limit by default.

    Returns:
        The estimator and nothing; or None, and a sentence that says why there is none and what to
        do.

    Raises:
        ModelError: The encoder fails.
    """
    if not is_pulled(MiniLmEncoder.name):
        return None, (
            "Relevance cannot be estimated without MiniLM; run 'fairqr models pull minilm', or "
            "give judgements."
        )
    searches = _searches(engine, queries)
    if isinstance(engine, RunEngine) and all(it.id == it.text for it in queries.queries):
        return None, (
            f"Relevance cannot be estimated without the texts of the queries of '{engine.name}'; "
            "give the file of its queries, or judgements."
        )
    slow = paced(engine, Pace(rate))
    encoder = open_encoder(MiniLmEncoder.name)
    texts = await TextRelevance.open(engine, encoder, progress, searches, slow)
    if not texts.reference.texts and not await _gives_texts(slow, searches):
        return None, (
            f"Relevance cannot be estimated, since '{engine.name}' gives no texts; give "
            "judgements, or name the fields of its texts."
        )
    return texts, ""


def _searches(engine: SearchEngine, queries: Queries) -> list[str]:
    """Return what finds documents of an engine."""
    if isinstance(engine, RunEngine):
        # Words that the run does not know would find nothing.
        return [query.id for query in queries.queries if query.id in engine.rankings]
    return [query.text for query in queries.queries]


async def _gives_texts(engine: SearchEngine, searches: Sequence[str]) -> bool:
    """Return whether any document has a text that the first queries find."""
    found = await engine.search([Query(text, PROBED) for text in searches[:PROBED]])
    ids = list(dict.fromkeys(id_ for hits in found for id_ in hits.ids))
    return any(text_of(document).strip() for document in await engine.documents(ids))


def _fingerprint(qrels: Qrels) -> str:
    """Return a hash of all judgements, so that other queries do not change it."""
    held = sorted(sorted(grades.items()) for grades in qrels.values())
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()


def _widened(
    spec: AuditSpec, engine: SearchEngine, attributes: Mapping[str, Attribute]
) -> tuple[tuple[str, str], ...]:
    if not spec.widen:
        return ()
    groups = [(name, group) for name, it in attributes.items() for group in it.groups]
    return tuple(group for group in groups if group in engine.filterable)


def _twice(spec: AuditSpec, queries: Queries) -> frozenset[str]:
    """Choose the queries of the second pass."""
    ids = sorted(query.id for query in queries.queries)
    chosen = stream(spec.seed, "again").permutation(len(ids))[: spec.again]
    return frozenset(ids[place] for place in chosen)


def _words(engine: SearchEngine) -> Callable[[AuditQuery], str]:
    """Return what an engine is asked for a query: a run is asked by the ids that it has."""
    if isinstance(engine, RunEngine):
        rankings = engine.rankings
        return lambda query: query.id if query.id in rankings else query.text
    return lambda query: query.text


class _Labels:
    """Notices an attribute for which no document has a label.

    Args:
        engine: Its name, for the message.
        attributes: That are audited.
    """

    def __init__(self, engine: str, attributes: tuple[Attribute, ...]) -> None:
        self._engine = engine
        self._missing = {attribute.name for attribute in attributes}
        self._answered = 0

    def take(self, observation: Observation) -> None:
        """Look at an observation.

        Raises:
            SourceError: The documents of many queries have no label of an attribute.
        """
        if not self._missing or observation.status != "ok":
            return
        self._answered += 1
        for name in list(self._missing):
            if any(map(any, observation.groups[name]["patterns"])):
                self._missing.discard(name)
        if self._answered >= UNLABELLED:
            self.check()

    def check(self) -> None:
        """Refuse to go on without labels.

        Raises:
            SourceError: No document had a label of an attribute.
        """
        if self._missing and self._answered:
            name = min(self._missing)
            raise SourceError(
                f"None of the documents that '{self._engine}' answered to {self._answered:,} "
                f"queries has a label of '{name}'; check its field or its file of labels, or "
                "leave the attribute out."
            )
