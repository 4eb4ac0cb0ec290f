"""Carrying out an audit: checks, questions, figures, the report, and a sealed folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fairqr.base.errors import (
    FairqrError,
    InputError,
    ModelError,
    SourceError,
    TargetError,
    one_line,
)
from fairqr.base.secrets import WITHHELD, without_secrets
from fairqr.evaluation.audit.asking import Asker
from fairqr.evaluation.audit.bundle import REDACTED, AuditFolder, AuditManifest, Relevance
from fairqr.evaluation.audit.finishing import Audit, measured, read_audit
from fairqr.evaluation.audit.measuring import dimensions_to_measure
from fairqr.evaluation.audit.pairs import Pairs, ScoredPairs, open_pairs
from fairqr.evaluation.audit.queries import AuditQuery, Queries
from fairqr.evaluation.audit.records import Observation
from fairqr.evaluation.audit.report import LAYOUTS, documents_to_name, load_layout, write_audit
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.collections.query_targets import check_target
from fairqr.evaluation.experiments.engine import Done, run_tasks
from fairqr.evaluation.experiments.folder import Lines, versions
from fairqr.evaluation.experiments.progress import StageWatcher, time_left
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.reports.text import counted
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import SearchEngine, require
from fairqr.retrieval.engines.hybrid.texts import TextRelevance, open_texts
from fairqr.retrieval.engines.limits import at_rate
from fairqr.retrieval.sources.schema import Attribute
from fairqr.retrieval.sources.source import Source
from fairqr.retrieval.texts.sendable import sendable

UNLABELLED = 20
"""After so many answered queries without one label of an attribute, the labels are not there."""

LONGEST_TITLE = 200
"""Characters; a source may name a text as the title."""


async def audit_engine(
    spec: AuditSpec,
    engine: SearchEngine,
    queries: Queries,
    folder: AuditFolder,
    *,
    qrels: Qrels | None = None,
    pairs: Pairs | None = None,
    rate: float | None = None,
    concurrency: int,
    watcher: StageWatcher,
    redact: bool = False,
    layout: str = LAYOUTS[0],
    withhold_place: bool = False,
    command: Sequence[str] = (),
) -> Audit:
    """Ask an engine queries, measure who gets seen, and write and seal all files.

    Args:
        spec: What to measure.
        engine: The audited engine.
        queries: What to ask.
        folder: Where everything goes; an interrupted audit goes on there, and a finished one is
            only read.
        qrels: Judgements by query id. Without them relevance is estimated from texts, where that
            is possible.
        pairs: Documents in several versions.
        rate: The most requests a second; no limit by default.
        concurrency: How many queries may be under way.
        watcher: Told how far it is.
        redact: Put pseudonyms in place of queries.
        layout: Of the report.
        withhold_place: Name the engine alone, not where it is or how its source describes it.
        command: How the audit was started, for the record.

    Raises:
        FairqrError: The audit cannot be carried out; the message says what to do.
    """
    load_layout(layout)  # a wrong name is an error before anything is asked
    attributes = _attributes(spec, engine)
    if qrels is not None and not any(query.id in qrels for query in queries.queries):
        first = queries.queries[0].id
        raise InputError(
            f"The judgements have none of the queries, such as '{one_line(first, 80)}'; give "
            "the queries the ids that the judgements use, in a column 'id'."
        )
    shares: dict[str, tuple[float, ...]] = {}
    if spec.target.parts.get("corpus"):
        require(engine, "corpus_shares", "A target with the part 'corpus'")
        counted = await engine.corpus_shares()
        shares = {name: tuple(counted[name].tolist()) for name in attributes if name in counted}
        if lacking := attributes.keys() - shares.keys() - spec.target.shares.keys():
            raise TargetError(
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
                    raise TargetError(
                        f"{why_not} Or choose a target that does not need them, such as uniform:1."
                    )
                watcher.note(
                    f"{why_not} Until then no gaps are measured, unless a target such as uniform:1 "
                    "says what each group should get."
                )
    groups = [(name, group) for name, it in attributes.items() for group in it.universe]
    asker = Asker(
        slow,
        tuple(attributes.values()),
        spec.depth,
        qrels=qrels,
        texts=texts,
        widened=tuple(it for it in groups if it in engine.filterable and texts and spec.widen),
        deepens=spec.widen,
    )
    info, source = await engine.info(), getattr(engine, "source", None)
    inputs = {"judgements": qrels, "pairs": pairs}
    manifest = AuditManifest(
        versions=versions() | ({"server": info.server} if info.server else {}),
        spec=spec.model_dump(mode="json"),
        source=without_secrets(source.model_dump(mode="json"))
        if isinstance(source, Source) and not withhold_place
        else {},
        inputs={name: _hash(read) for name, read in inputs.items() if read is not None},
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
        if held.finished:
            return await asyncio.to_thread(read_audit, folder)
        if folder.is_pseudonymous(queries):
            redact = True  # All was asked, and a kill came before the end.
        else:
            await _ask(asker, queries, scored, folder, manifest, rate, concurrency, watcher)
            watcher.note("All queries were asked; the figures are computed.")
            await asyncio.to_thread(folder.settle, queries, redact=redact)
        # The folder says that it is redacted only once it is sealed.
        manifest = folder.manifest().model_copy(update={"redacted": redact})
        audit = await asyncio.to_thread(measured, folder, manifest)
        audit = replace(audit, titles=await _titles(slow, audit, watcher))
        return await asyncio.to_thread(_finish, audit, folder, watcher, layout)


def _attributes(spec: AuditSpec, engine: SearchEngine) -> dict[str, Attribute]:
    """Return the attributes that are measured, once the spec is known to fit them."""
    if not engine.schema.attributes:
        raise InputError(
            f"'{engine.name}' has no attributes to audit; describe them in its schema, or in the "
            "source."
        )
    dimensions = dimensions_to_measure(engine.schema, spec)
    check_target(spec.target, dimensions)
    groups = [f"{it.name}={group}" for it in dimensions for group in it.groups]
    for chosen in map("=".join, spec.reference.items()):
        if chosen not in groups:
            raise InputError(
                f"The reference '{one_line(chosen)}' is no group of this audit; choose among "
                f"{', '.join(groups[:20])}."
            )
    return {factor.name: factor for it in dimensions for factor in it.factors}


def _hash(read: Qrels | Pairs) -> str:
    """Return a hash of all that was read, so that other queries do not change it."""
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=dict).encode()).hexdigest()


async def _ask(
    asker: Asker,
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
    missing, answered = {it.name for it in asker.attributes}, 0

    def note(kept: Observation) -> None:
        nonlocal answered
        groups = kept.groups.items() if kept.status == "ok" else ()
        answered += bool(groups)
        missing.difference_update(name for name, it in groups if any(map(any, it["patterns"])))

    async def start(_: None) -> None:
        await asker.look_up(left, watcher.count("looking up judged documents"))
        folder.begin(manifest)  # nothing is written before everything is there

    async def observe(query: AuditQuery) -> Done[Observation]:
        found = await asker.observe(query)
        note(*found.records)
        if answered >= UNLABELLED:
            check_labels()
        return found

    def check_labels() -> None:
        if missing and answered:
            raise SourceError(
                f"None of the documents that '{asker.engine.name}' answered to {answered:,} "
                f"queries has a label of '{min(missing)}'; check its field or its file of labels, "
                "or leave the attribute out."
            )

    for known in folder.observations.in_order(done):
        note(known)

    async def run(title: str, tasks: Any, do: Any, lines: Lines[Any], by: str) -> None:
        undone = await run_tasks(
            tasks,
            do,
            lines,
            title=title,
            keys=lambda task: [(task.id,)],
            start=start,
            model=lambda _: by,
            watcher=watcher,
            at_once=concurrency,
        )
        # The report tells which queries failed, but not by an encoder that is away.
        if isinstance(undone, ModelError):
            raise undone

    asked = _cost(asker, left, len(every), rate) if left else ""
    if cost := "; then ".join(filter(None, (asked, then))):
        watcher.note(cost)
    await asker.find_limit(every if left else ())
    by = f"The engine '{asker.engine.name}'"
    await run("queries", every, observe, folder.observations, by)
    check_labels()
    folder.begin(manifest)
    if pairs:
        await run("pairs", pairs.tasks, pairs.do, folder.pairs, f"'{pairs.name}'")


def _cost(asker: Asker, left: Sequence[AuditQuery], every: int, rate: float | None) -> str:
    """Say what is asked of the engine, and how long that takes at least."""
    requests, queries = asker.requests(left, every), counted(len(left), "query", "queries")
    pace = f", at most {rate:g} a second, so at least {time_left(len(left) / rate)}" if rate else ""
    return f"{queries} for '{asker.engine.name}', up to {requests:,} requests{pace}"


async def _titles(engine: SearchEngine, audit: Audit, watcher: StageWatcher) -> dict[str, str]:
    """Return the titles of the documents that the report shows as examples, by id."""
    if not (ids := documents_to_name(audit)):
        return {}
    try:
        found = await engine.documents(ids)
    except FairqrError as error:
        watcher.note(f"The report shows ids in place of titles: {one_line(error)}")
        return {}
    return {it.id: one_line(sendable(it.title), LONGEST_TITLE) for it in found if it.title.strip()}


def _finish(audit: Audit, folder: AuditFolder, watcher: StageWatcher, layout: str) -> Audit:
    """Write and seal; this blocks."""
    folder.keep_titles(audit.titles)
    write_audit(folder.folder, audit, layout)
    sealed = folder.seal(layout=layout, **(REDACTED if audit.manifest.redacted else {}))
    return replace(audit, manifest=sealed)
