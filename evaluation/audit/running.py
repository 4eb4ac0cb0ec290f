"""Carrying out an audit: checks, questions, figures, the report, and a sealed folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from fairqr.base.errors import (
    FairqrError,
    IndexUnavailableError,
    InputError,
    SourceError,
    one_line,
)
from fairqr.evaluation.audit import finishing, report
from fairqr.evaluation.audit.bundle import AuditFolder, Observation
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.observing import Observer
from fairqr.evaluation.audit.preparing import (
    AuditInputs,
    AuditOptions,
    PreparedAudit,
    prepare,
)
from fairqr.evaluation.audit.queries import AuditQuery, Queries
from fairqr.evaluation.experiments.folder import Lines
from fairqr.evaluation.experiments.progress import StageWatcher, time_left
from fairqr.evaluation.experiments.tasks import Done, Tasks, run_tasks
from fairqr.evaluation.reports.text import counted
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.texts.words import sendable

UNLABELLED = 20
"""An attribute without one label in this many answered queries has no labels at all."""

LONGEST_TITLE = 200
"""Characters; a source may name a text as the title."""


async def audit_engine(
    engine: SearchEngine, inputs: AuditInputs, folder: AuditFolder, options: AuditOptions
) -> Audit:
    """Ask an engine queries, measure who gets seen, and write and seal all files.

    Args:
        engine: The audited engine.
        inputs: What to measure, what to ask, and what else is known.
        folder: Where everything goes; an interrupted audit goes on there, and so does a finished
            one whose engine answers a query now that failed before. Others are only read.
        options: How the audit is carried out.

    Raises:
        FairqrError: The audit cannot be carried out; the message says what to do.
    """
    report.load_layout(options.layout)  # a wrong name is an error before anything is asked
    prepared = await prepare(engine, inputs, options)
    queries = inputs.queries
    with folder.locked():
        begun = folder.manifest() if folder.exists() else prepared.manifest
        is_other = options.redact or begun.redacted or options.layout != begun.layout
        if begun.finished and is_other:
            raise InputError(
                f"The audit in {folder.folder} is finished with another --redact or --layout; "
                "choose another folder."
            )
        folder.check(prepared.manifest)
        if begun.finished and not await _answers_now(prepared.observer, queries, folder):
            return await asyncio.to_thread(finishing.read_audit, folder)
        # A kill may come after pseudonyms took the place of queries, and before the end.
        is_redacted = folder.is_pseudonymous(queries)
        if not is_redacted:
            await _Asking(prepared, queries, folder, options).run()
            options.watcher.note("All queries were asked; the figures are computed.")
            await asyncio.to_thread(folder.settle, queries, redact=options.redact)
            for name, record in inputs.users.files().items():
                folder.write(name, record)
        redact = options.redact or is_redacted
        return await _finish(prepared.engine, folder, options, redact=redact)


async def _answers_now(observer: Observer, queries: Queries, folder: AuditFolder) -> bool:
    """Return whether the engine answers any query that failed in a finished audit."""
    done = folder.observations.done()
    for query in queries.queries:
        if (query.id,) in done:
            continue
        observed = await observer.observe(query)
        if observed.records[0].is_final:
            return True
    return False


async def _finish(
    engine: SearchEngine, folder: AuditFolder, options: AuditOptions, *, redact: bool
) -> Audit:
    """Compute the figures of what was observed, and write and seal all files."""
    watcher = options.watcher
    # The folder says that it is redacted only once it is sealed.
    manifest = folder.manifest().model_copy(update={"redacted": redact})
    audit = await asyncio.to_thread(finishing.measured, folder, manifest)
    failed = audit.figures.counts.failed
    if failed:
        watcher.note(f"Failed queries: {failed:,}. Run the same command to ask them again.")
    titles = await _titles(engine, audit, watcher)
    titled = replace(audit, titles=titles)
    return await asyncio.to_thread(finishing.finish, titled, folder, options.layout)


async def _titles(engine: SearchEngine, audit: Audit, watcher: StageWatcher) -> dict[str, str]:
    """Return the titles of the documents that the report shows as examples, by id."""
    ids = report.documents_to_name(audit)
    if not ids:
        return {}
    try:
        documents = await engine.documents(ids)
    except FairqrError as error:
        watcher.note(f"The report shows ids in place of titles: {one_line(error)}")
        return {}
    return {
        document.id: one_line(sendable(document.title), LONGEST_TITLE)
        for document in documents
        if document.title.strip()
    }


class _Asking:
    """Asks what has not been asked yet, and keeps records as they come.

    Args:
        prepared: The audit.
        queries: All its queries.
        folder: Where the records go.
        options: How the audit is carried out.
    """

    def __init__(
        self,
        prepared: PreparedAudit,
        queries: Queries,
        folder: AuditFolder,
        options: AuditOptions,
    ) -> None:
        self._observer = prepared.observer
        self._pairs = prepared.pairs
        self._manifest = prepared.manifest
        self._queries = queries.queries
        self._folder = folder
        self._options = options
        self._watcher = options.watcher
        self._done = folder.observations.done()
        self._remaining = [query for query in self._queries if (query.id,) not in self._done]
        # The attributes without any label so far, after so many answered queries.
        self._unlabelled = {attribute.name for attribute in self._observer.attributes}
        self._answered = 0

    async def run(self) -> None:
        """Ask all queries, and score all pairs.

        Raises:
            IndexUnavailableError: The engine is away.
            SourceError: No document has a label of an attribute.
            ModelError: A model or an encoder fails.
        """
        for observation in self._folder.observations.in_order(self._done):
            self._note_labels(observation)
        cost = self._cost()
        if cost:
            self._watcher.note(cost)
        await self._observer.find_limit(self._queries if self._remaining else ())
        engine = f"The engine '{self._observer.engine.name}'"
        await self._run_tasks(
            "queries", self._queries, self._observe, self._folder.observations, engine
        )
        self._check_labels()
        self._folder.begin(self._manifest)
        pairs = self._pairs
        if pairs:
            await self._run_tasks(
                "pairs", pairs.tasks, pairs.do, self._folder.pairs, f"'{pairs.name}'"
            )

    def _cost(self) -> str:
        """Say how much will be asked; empty if all was asked before."""
        parts: list[str] = []
        remaining = len(self._remaining)
        if remaining:
            requests = self._observer.requests(self._remaining, len(self._queries))
            queries = counted(remaining, "query", "queries")
            part = f"{queries} for '{self._observer.engine.name}', up to {requests:,} requests"
            rate = self._options.rate
            if rate:
                seconds = remaining / rate
                part += f", at most {rate:g} a second, so at least {time_left(seconds)}"
            parts.append(part)
        scored = len(self._folder.pairs.done())
        if self._pairs and scored < len(self._pairs.tasks):
            parts.append(self._pairs.cost(scored))
        return "; then ".join(filter(None, parts))

    async def _run_tasks(
        self,
        title: str,
        tasks: Sequence[Any],
        do: Callable[[Any], Awaitable[Done[Any]]],
        lines: Lines[Any],
        name: str,
    ) -> None:
        """Do the tasks that lack a record; ``name`` says in sentences what answers them."""
        plan = Tasks(
            tasks=tasks,
            do=do,
            lines=lines,
            title=title,
            keys=lambda task: [(task.id,)],
            start=self._start,
            name_at=lambda _: name,
            tolerated=IndexUnavailableError,  # the report lists the failed queries
        )
        await run_tasks(plan, watcher=self._watcher, at_once=self._options.concurrency)

    async def _start(self, _: None) -> None:
        """Look up judged documents, and begin the folder."""
        ids = self._observer.to_look_up(self._remaining)
        progress = self._watcher.count("looking up judged documents")
        await self._observer.look_up(ids, progress)
        self._folder.begin(self._manifest)  # nothing is written before everything is there

    async def _observe(self, query: AuditQuery) -> Done[Observation]:
        observed = await self._observer.observe(query)
        self._note_labels(observed.records[0])
        if self._answered >= UNLABELLED:
            self._check_labels()
        return observed

    def _note_labels(self, observation: Observation) -> None:
        """Note which attributes an answer has labels of."""
        if observation.status != "ok" or not observation.groups:
            return
        self._answered += 1
        for name, codes in observation.groups.items():
            if any(map(any, codes["patterns"])):
                self._unlabelled.discard(name)

    def _check_labels(self) -> None:
        """Refuse an engine of whose documents none has a label of an attribute."""
        if self._unlabelled and self._answered:
            raise SourceError(
                f"None of the documents that '{self._observer.engine.name}' answered to "
                f"{self._answered:,} queries has a label of '{min(self._unlabelled)}'; check its "
                "field or its file of labels, or leave the attribute out."
            )
