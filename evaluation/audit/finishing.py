"""A finished audit: its figures, computed from what its folder keeps."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest
from fairqr.evaluation.audit.measuring import measure
from fairqr.evaluation.audit.outcomes import AuditOutcome, frames_of
from fairqr.evaluation.audit.pairs import compare_versions
from fairqr.evaluation.audit.report import draw_exposure, findings_of, write_audit
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.folder import LOCK
from fairqr.evaluation.reports.writer import Figure
from fairqr.retrieval.sources.schema import Schema

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class Audit(AuditOutcome):
    """A finished audit: what came out of it, and the folder that keeps it.

    Attributes:
        folder: Where its files are. If the audit was given none, they are removed together with
            this object, and :meth:`write` keeps them.
    """

    folder: Path

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest; whoever knows it can check the whole audit."""
        return self.manifest.digest

    @property
    def findings(self) -> list[str]:
        """The verdict, who gets less, how sure that is, and what mending would cost."""
        found = findings_of(self)
        return [" ".join(found["verdict"]), *found["sentences"], *found["notes"]]

    @property
    def frames(self) -> dict[str, DataFrame]:
        """All figures as DataFrames; see :func:`fairqr.evaluation.audit.outcomes.frames_of`."""
        return frames_of(self)

    def to_frame(self) -> DataFrame:
        """Return the figures as a DataFrame with one row for each attribute, group and segment."""
        return self.frames["results"]

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
        without = shutil.ignore_patterns(LOCK)
        shutil.copytree(self.folder, folder, ignore=without, dirs_exist_ok=True)
        return folder


def read_audit(folder: AuditFolder) -> Audit:
    """Read a finished audit, and compute all figures from what its folder keeps.

    Raises:
        InputError: The folder holds no audit, one that is not finished, or a damaged one.
    """
    manifest = folder.manifest()
    if not manifest.finished:
        raise InputError(f"The audit in {folder.folder} is not finished; run it again to resume.")
    try:
        return measured(folder, manifest)
    except FairqrError:
        raise
    except (LookupError, ValueError) as error:  # whatever forged observations may lead to
        raise InputError(
            f"What the audit in {folder.folder} keeps is damaged, or of another version "
            f"({one_line(error, 200)}); fetch it again, or make it again."
        ) from None


def make_again(folder: Path, into: Path) -> None:
    """Write all files that follow from ``raw/`` and the manifest of an audit into another folder.

    Raises:
        InputError: A file is missing or damaged, or an extra is not installed.
    """
    kept = AuditFolder(folder)
    audit = read_audit(kept)
    if kept.observations.done() - {(it.id,) for it in audit.queries.queries}:
        raise InputError("raw/ has an answer to a query that was not asked.")
    if not audit.manifest.redacted and audit.queries.fingerprint != audit.manifest.queries:
        raise InputError("raw/queries.json has other queries than the manifest.")
    write_audit(into, audit, audit.manifest.layout)


def measured(folder: AuditFolder, manifest: AuditManifest) -> Audit:
    """Compute all figures of what was observed, by the settings of a manifest; this blocks."""
    spec = AuditSpec.model_validate(manifest.spec)
    queries, scores = folder.queries(), folder.pairs.read()
    figures = measure(
        spec,
        Schema(attributes=manifest.attributes),
        {query.id: query for query in queries.queries},
        folder.observed,
        corpus_shares={name: np.array(held) for name, held in manifest.corpus_shares.items()},
        relevance=manifest.relevance,
    )
    return Audit(
        folder=folder.folder,
        manifest=manifest,
        spec=spec,
        queries=queries,
        figures=figures,
        titles=folder.titles(),
        pairs=compare_versions(manifest.pairs_by, scores, spec.seed) if scores else None,
    )
