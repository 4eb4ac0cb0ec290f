"""From observations to what an audit leaves behind: figures, report, and a sealed folder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.evaluation.audit.asking import paced
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest
from fairqr.evaluation.audit.findings import findings_of
from fairqr.evaluation.audit.layouts import DEFAULT, load_layout
from fairqr.evaluation.audit.measuring import measure
from fairqr.evaluation.audit.outcomes import AuditFrames, AuditOutcome, frames_of
from fairqr.evaluation.audit.pair_files import Pairs
from fairqr.evaluation.audit.pairs import compare_versions
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.report import documents_to_name, draw_exposure, write_audit
from fairqr.evaluation.audit.running import AuditPlan, make_plan, open_texts
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.folder import LOCK
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.reports.writer import Figure
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.sendable import sendable

if TYPE_CHECKING:
    from pandas import DataFrame

LONGEST_TITLE = 200
"""Characters; a source may name a text as the title."""


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class Audit(AuditOutcome):
    """A finished audit: what came out of it, and the folder that keeps it.

    Attributes:
        folder: Where its files are. If the audit was given none, they are removed together with
            this object, and :meth:`write` keeps them.
        manifest: What it was made with.
        digest: The SHA-256 of the manifest.
    """

    folder: Path
    manifest: AuditManifest
    digest: str

    @property
    def findings(self) -> list[str]:
        """The verdict, who gets less, how sure that is, and what mending would cost."""
        found = findings_of(self)
        return [" ".join(found["verdict"]), *found["sentences"], *found["notes"]]

    @property
    def frames(self) -> AuditFrames:
        """All figures as DataFrames, by group, by query, and the costs of mending."""
        return frames_of(self)

    def to_frame(self) -> DataFrame:
        """Return the figures as a DataFrame with one row for each attribute and group."""
        return self.frames.groups

    def plot(self) -> Figure:
        """Draw who gets seen; a notebook shows it.

        Raises:
            InputError: matplotlib is not installed.
        """
        return draw_exposure(self)

    def write(self, folder: Path | str) -> Path:
        """Copy all files of the audit, with the report, into a folder, and return it.

        Raises:
            InputError: The folder is not empty.
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"The folder {folder} is not empty; choose another.")
        shutil.copytree(
            self.folder, folder, ignore=shutil.ignore_patterns(LOCK), dirs_exist_ok=True
        )
        return folder


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
    layout: str = DEFAULT,
    withhold_place: bool = False,
    command: Sequence[str] = (),
) -> Audit:
    """Ask an engine queries, measure who gets seen, and write and seal all files.

    Args:
        spec: What to measure.
        engine: The audited engine.
        queries: What to ask.
        folder: Where everything goes; an interrupted audit goes on there.
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
    texts, without_texts = None, ""
    if qrels is None:
        counter = watcher.count("encoding texts")
        texts, without_texts = await open_texts(engine, queries, counter, rate)
    plan = await make_plan(
        spec,
        engine,
        queries,
        qrels=qrels,
        texts=texts,
        without_texts=without_texts,
        rate=rate,
        pairs=pairs,
        command=command,
    )
    if withhold_place:
        plan = replace(plan, manifest=plan.manifest.without_place())
    return await carry_out(
        plan, folder, concurrency=concurrency, watcher=watcher, redact=redact, layout=layout
    )


async def carry_out(
    plan: AuditPlan,
    folder: AuditFolder,
    *,
    concurrency: int,
    watcher: StageWatcher,
    redact: bool = False,
    layout: str = DEFAULT,
) -> Audit:
    """Ask what has not been asked yet, measure it, and write and seal all files.

    An audit that is finished is only read.

    Args:
        plan: What to ask.
        folder: Where everything goes; locked while this runs.
        concurrency: How many queries may be under way.
        watcher: Told how far it is.
        redact: Put pseudonyms in place of queries, everywhere in the folder.
        layout: Of the report, one of :data:`fairqr.evaluation.audit.layouts.LAYOUTS`.

    Raises:
        FairqrError: As :meth:`AuditPlan.run` raises it, or a layout does not exist.
    """
    load_layout(layout)  # a wrong name is an error before anything is asked
    with folder.locked():
        folder.check(plan.manifest)
        if folder.exists() and folder.manifest().finished:
            return await asyncio.to_thread(read_audit, folder)
        await plan.run(folder, concurrency=concurrency, watcher=watcher)
        watcher.note("All queries were asked; the figures are computed.")
        await asyncio.to_thread(folder.pack, plan.queries, redact=redact)
        # The folder says that it is redacted only once it is sealed.
        manifest = folder.manifest().model_copy(update={"redacted": redact})
        audit = await asyncio.to_thread(measured, folder, manifest)
        titles = await _titles(plan, audit, watcher)
        await asyncio.to_thread(folder.pack_titles, titles)
        audit = replace(audit, titles=titles)
        return await asyncio.to_thread(_finish, audit, folder, watcher, layout)


async def _titles(plan: AuditPlan, audit: Audit, watcher: StageWatcher) -> dict[str, str]:
    """Return the titles of the documents that the report shows as examples, by id."""
    ids = documents_to_name(audit) if audit.spec.titles else []
    if not ids:
        return {}
    try:
        found = await paced(plan.asker.engine, plan.asker.pace).documents(ids)
    except FairqrError as error:
        watcher.note(f"The report shows ids in place of titles: {one_line(error)}")
        return {}
    return {it.id: one_line(sendable(it.title), LONGEST_TITLE) for it in found if it.title.strip()}


def _finish(audit: Audit, folder: AuditFolder, watcher: StageWatcher, layout: str) -> Audit:
    """Write and seal; this blocks."""
    try:
        write_audit(folder.folder, audit, layout)
    except InputError as error:
        if not (folder.folder / "report.html").exists():
            raise
        watcher.note(str(error))  # It was written without plots.
    digest = folder.seal(layout)
    return replace(audit, manifest=folder.manifest(), digest=digest)


def read_audit(folder: AuditFolder) -> Audit:
    """Read a finished audit, and compute all figures from what its folder keeps.

    Raises:
        InputError: The folder holds no audit, one that is not finished, or a damaged one.
    """
    manifest = folder.manifest()
    if not manifest.finished:
        raise InputError(
            f"The audit in {folder.folder} is not finished; run it again to go on with it."
        )
    return measured(folder, manifest)


def make_again(folder: Path, into: Path) -> None:
    """Write all files that follow from ``raw/`` and the manifest of an audit into another folder.

    Raises:
        InputError: A file is missing or damaged, or an extra is not installed.
    """
    kept = AuditFolder(folder)
    manifest = kept.manifest()
    write_audit(into, measured(kept, manifest), manifest.layout)


def measured(folder: AuditFolder, manifest: AuditManifest) -> Audit:
    """Compute all figures of what is packed, by the settings of a manifest; this blocks."""
    spec = AuditSpec.model_validate(manifest.spec)
    queries = folder.queries()
    by_id = {query.id: query for query in queries.queries}
    schema = Schema(attributes=manifest.attributes)
    shares = {name: np.array(held) for name, held in manifest.corpus_shares.items()}
    figures = measure(
        spec,
        schema,
        by_id,
        folder.observations.read(),
        corpus_shares=shares,
        relevance=manifest.relevance,
    )
    scores = list(folder.pairs.read())
    about = manifest.engine.model_dump(exclude={"state"})
    return Audit(
        folder=folder.folder,
        manifest=manifest,
        digest=manifest.digest,
        spec=spec,
        queries=queries,
        figures=figures,
        engine=about | ({"server": manifest.server} if manifest.server else {}),
        titles=folder.titles(),
        begun=manifest.started[:10],
        documents=manifest.documents,
        labels={
            name: f"the file {Path(it.labels).name}"
            if it.labels
            else f"the field {it.field or name}"
            for name, it in manifest.attributes.items()
        },
        is_redacted=manifest.redacted,
        pairs=compare_versions(manifest.pairs_by, scores, spec.seed) if scores else None,
    )
