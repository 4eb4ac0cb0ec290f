"""From observations to what an audit leaves behind: figures, report, and a sealed folder."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.answer_figures import AnswerFigures, measure_answers
from fairqr.evaluation.audit.answers import run_answers
from fairqr.evaluation.audit.asking import Pace
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest
from fairqr.evaluation.audit.findings import findings_of
from fairqr.evaluation.audit.layouts import DEFAULT, load_layout
from fairqr.evaluation.audit.measuring import AuditFigures, measure
from fairqr.evaluation.audit.outcomes import AuditFrames, AuditOutcome, audit_json, frames_of
from fairqr.evaluation.audit.pair_figures import PairFigures, compare_versions
from fairqr.evaluation.audit.pair_running import run_pairs
from fairqr.evaluation.audit.probing import (
    ProbeFigures,
    measure_probes,
    run_probes,
    sides_in,
)
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.report import draw_exposure, write_audit
from fairqr.evaluation.audit.running import AuditPlan, run_audit
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.reports.writer import Figure
from fairqr.retrieval.schema import Schema

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Audit", "carry_out", "read_audit", "recompute"]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Audit:
    """A finished audit.

    Attributes:
        folder: Where its files are. If the audit was given none, they are removed together with
            this object, and :meth:`write` keeps them.
        manifest: What it was made with.
        spec: What it measures.
        queries: All of them, redacted ones under their pseudonyms.
        figures: All figures.
        digest: The SHA-256 of the manifest.
        pairs: What the versions of documents say; None if none were given.
        answers: Whose documents answers use; None if no model was asked.
        probe: What a model does as a ranker; None if none was probed.
    """

    folder: Path
    manifest: AuditManifest
    spec: AuditSpec
    queries: Queries
    figures: AuditFigures
    digest: str
    pairs: PairFigures | None = None
    answers: AnswerFigures | None = None
    probe: ProbeFigures | None = None

    @property
    def outcome(self) -> AuditOutcome:
        """What is written of it."""
        engine = self.manifest.engine
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
            is_redacted=self.manifest.redacted,
            pairs=self.pairs,
            answers=self.answers,
            probe=self.probe,
        )

    @property
    def findings(self) -> list[str]:
        """Who gets less, how sure that is, and what mending would cost, in sentences."""
        return findings_of(self.outcome)

    @property
    def frames(self) -> AuditFrames:
        """All figures as DataFrames, by group, by query, by choice, and the costs of mending."""
        return frames_of(self.outcome)

    def to_frame(self) -> DataFrame:
        """Return the figures as a DataFrame with one row for each attribute and group."""
        return self.frames.groups

    def plot(self) -> Figure:
        """Draw who gets seen; a notebook shows it.

        Raises:
            InputError: matplotlib is not installed.
        """
        return draw_exposure(self.outcome)

    def write(self, folder: Path | str) -> Path:
        """Copy all files of the audit, with the report, into a folder, and return it.

        Raises:
            InputError: The folder is not empty.
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"The folder {folder} is not empty; choose another.")
        shutil.copytree(
            self.folder, folder, ignore=shutil.ignore_patterns(".lock"), dirs_exist_ok=True
        )
        return folder


class _How(TypedDict):
    """How fast models and the engine are asked, and who is told."""

    pace: Pace
    concurrency: int
    watcher: StageWatcher


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
        FairqrError: As :func:`run_audit` raises it, or a layout does not exist.
    """
    load_layout(layout)  # a wrong name is an error before anything is asked
    with folder.locked():
        folder.check(plan.manifest)
        if not (folder.exists() and folder.manifest().finished):
            await run_audit(plan, folder, concurrency=concurrency, watcher=watcher)
            folder.begin(plan.manifest)
            how = _How(pace=plan.asker.pace, concurrency=concurrency, watcher=watcher)
            if plan.pairs is not None:
                await run_pairs(plan.pairs, folder, **how)
            if plan.answers is not None:
                await run_answers(plan.answers, folder.answer_lines, folder.observed, **how)
            if plan.probe is not None:
                await run_probes(plan.probe, folder.probe_lines, **how)
            watcher.note("All queries were asked; the figures are computed.")
            return await asyncio.to_thread(_finish, plan, folder, watcher, redact, layout)
        return await asyncio.to_thread(read_audit, folder)


def _finish(
    plan: AuditPlan, folder: AuditFolder, watcher: StageWatcher, redact: bool, layout: str
) -> Audit:
    """Measure, write and seal; this blocks."""
    folder.pack(plan.queries, redact=redact)
    audit = _measured(folder)
    # The manifest says so only once it is sealed.
    outcome = replace(audit.outcome, is_redacted=redact)
    try:
        write_audit(folder.folder, outcome, layout)
    except InputError as error:
        if not (folder.folder / "report.html").exists():
            raise
        watcher.note(str(error))  # It was written without plots.
    digest = folder.seal()
    return replace(audit, manifest=folder.manifest(), digest=digest)


def read_audit(folder: AuditFolder) -> Audit:
    """Read a finished audit, and compute all figures from what its folder keeps.

    Raises:
        InputError: The folder holds no audit, one that is not finished, or a damaged one.
    """
    if not folder.manifest().finished:
        raise InputError(
            f"The audit in {folder.folder} is not finished; run it again to go on with it."
        )
    return _measured(folder)


def _measured(folder: AuditFolder) -> Audit:
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
    scores = folder.pair_scores()
    models = manifest.models
    pairs = compare_versions(models["pairs"], scores, spec.seed) if scores else None
    answers = None
    if answered := folder.answers():
        answers = measure_answers(
            answered,
            {query.id: query for query in queries.queries},
            manifest.attributes,
            generator=models["generator"],
            attributor=models["attributor"],
        )
    probe = None
    if probed := folder.probes():
        sides, _ = sides_in(spec.probe, manifest.attributes)
        probe = measure_probes(probed, sides, models["ranker"], spec.seed)
    return Audit(
        folder.folder, manifest, spec, queries, figures, manifest.digest, pairs, answers, probe
    )


def recompute(folder: Path) -> bytes:
    """Return what ``audit.json`` must hold, computed from ``raw/`` and the manifest.

    Raises:
        InputError: A file is missing or damaged.
    """
    return audit_json(_measured(AuditFolder(folder)).outcome)
