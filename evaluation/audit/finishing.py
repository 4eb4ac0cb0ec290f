"""From observations to what an audit leaves behind: figures, report, and a sealed folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest
from fairqr.evaluation.audit.layouts import DEFAULT, load_layout
from fairqr.evaluation.audit.measuring import AuditFigures, measure
from fairqr.evaluation.audit.outcomes import AuditOutcome, audit_json
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.report import write_audit
from fairqr.evaluation.audit.running import AuditPlan, run_audit
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.retrieval.schema import Schema

__all__ = ["Measured", "carry_out", "measured", "recompute"]


@dataclass(frozen=True, slots=True)
class Measured:
    """An audit, read from its folder.

    Attributes:
        manifest: What it was made with.
        spec: What it measures.
        queries: All of them, redacted ones under their pseudonyms.
        figures: All figures.
        digest: The SHA-256 of the manifest; empty while the audit is not finished.
    """

    manifest: AuditManifest
    spec: AuditSpec
    queries: Queries
    figures: AuditFigures
    digest: str = ""

    @property
    def outcome(self) -> AuditOutcome:
        """What is written of it."""
        manifest, engine = self.manifest, self.manifest.engine
        about = {
            "name": engine.name,
            "engine": engine.engine,
            "location": engine.location,
            "retriever": engine.retriever,
        }
        return AuditOutcome(
            spec=self.spec,
            queries=self.queries,
            figures=self.figures,
            engine=about,
            is_redacted=manifest.redacted,
        )


async def carry_out(
    plan: AuditPlan,
    folder: AuditFolder,
    *,
    concurrency: int,
    watcher: StageWatcher,
    redact: bool = False,
    layout: str = DEFAULT,
) -> Measured:
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
        FairqrError: As :func:`run_audit` raises it, or a layout does not exist.
    """
    load_layout(layout)  # a wrong name is an error before anything is asked
    with folder.locked():
        folder.check(plan.manifest)
        if not (folder.exists() and folder.manifest().finished):
            await run_audit(plan, folder, concurrency=concurrency, watcher=watcher)
            folder.begin(plan.manifest)
            watcher.note("All queries were asked; the figures are computed.")
            folder.pack(plan.queries, redact=redact)
            # The manifest says so only once it is sealed.
            outcome = replace(measured(folder).outcome, is_redacted=redact)
            try:
                write_audit(folder.folder, outcome, layout)
            except InputError as error:
                if not (folder.folder / "report.html").exists():
                    raise
                watcher.note(str(error))  # It was written without plots.
            folder.seal()
        return measured(folder)


def measured(folder: AuditFolder) -> Measured:
    """Compute all figures of an audit from what its folder keeps.

    Raises:
        InputError: The folder holds no audit, one that is not finished, or a damaged one.
    """
    manifest = folder.manifest()
    spec = AuditSpec.model_validate(manifest.spec)
    queries = folder.queries()
    figures = measure(
        spec,
        Schema(attributes=manifest.attributes),
        {query.id: query for query in queries.queries},
        folder.observations(),
        corpus_shares={name: np.array(held) for name, held in manifest.corpus_shares.items()},
        relevance=manifest.relevance,
    )
    return Measured(manifest, spec, queries, figures, manifest.digest if manifest.finished else "")


def recompute(folder: Path) -> bytes:
    """Return what ``audit.json`` must hold, computed from ``raw/`` and the manifest.

    Raises:
        InputError: A file is missing or damaged.
    """
    return audit_json(measured(AuditFolder(folder)).outcome)
