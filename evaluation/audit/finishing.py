"""A finished audit: its figures, computed from what its folder keeps, its files and its report.

The queries are people's words. Those that were asked rarely may tell who asked, so that they are
printed nowhere: neither their text nor their id, which a default makes from the text.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fairqr.base import notebook
from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.base.files import write_beside
from fairqr.evaluation.audit.bundle import QUERIES, REDACTED, TITLES, AuditFolder, AuditManifest
from fairqr.evaluation.audit.findings import Findings, Summary, sentences_of, verdict_of
from fairqr.evaluation.audit.lists import SEEN, SeenSearches, figures_of_lists
from fairqr.evaluation.audit.measuring import AuditFigures, measure
from fairqr.evaluation.audit.notes import notes_of
from fairqr.evaluation.audit.pairs import PairwiseAudit, compare_versions
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.report import (
    LAYOUTS,
    draw_exposure,
    figures_to_draw,
    load_layout,
    values_of,
)
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.audit.tables import files_of, frames_of
from fairqr.evaluation.audit.wording import VERDICTS
from fairqr.evaluation.experiments.folder import LOCK
from fairqr.evaluation.reports.writer import Figure, write_report
from fairqr.evaluation.user_clicks import CLICKS, ClickFigures
from fairqr.retrieval.sources.schema import Schema

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Audit:
    """A finished audit: what came out of it, and the folder that keeps it.

    Attributes:
        folder: Where its files are. If the audit was given none, they are removed together with
            this object, and :meth:`write` keeps them.
        manifest: What it was made with. Its date is only in the report, so that the figures of
            equal audits are equal.
        spec: What was asked and measured.
        queries: All that were to be asked. Where they are redacted, ids are pseudonyms.
        figures: The figures of these queries.
        titles: The titles of documents, by id, as far as they are known and may be shown.
        pairs: What the versions of documents say; None if none were given.
        seen: What a proxy saw of these searches; None if it is no audit of a log.
        clicks: What clicks say; None if none were given.
    """

    folder: Path
    manifest: AuditManifest
    spec: AuditSpec
    queries: Queries
    figures: AuditFigures
    titles: Mapping[str, str] = field(default_factory=dict)
    pairs: PairwiseAudit | None = None
    seen: SeenSearches | None = None
    clicks: ClickFigures | None = None

    @property
    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """The figures of two lists of each query, if a proxy saw both."""
        return figures_of_lists(self.seen.lists if self.seen else ())

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest; whoever knows it can check the whole audit."""
        return self.manifest.digest

    @property
    def findings(self) -> list[str]:
        """The verdict, who gets less, how sure it is, what re-ranking would cost, and the test."""
        findings = findings_of(self)
        verdict, *test = findings.verdict
        return [verdict, *findings.sentences, *test, *findings.notes]

    @property
    def frames(self) -> dict[str, DataFrame]:
        """All figures as DataFrames; what has no value is NaN.

        ``results``, ``queries`` and, if there are any, ``all_groups`` and ``pairs`` are the tables
        in the files of these names.

        Raises:
            InputError: pandas is not installed.
        """
        return frames_of(self)

    def _repr_html_(self) -> str:
        """Return the findings and the figures of each group as a table, for a notebook."""
        heads = ["attribute", "group", "exposure", "target", "verdict"]
        rows = []
        for group in self.figures.groups:
            verdict = VERDICTS.get(group.verdict, "cannot tell")
            shares = [group.exposure.value, group.target.value]
            rows.append([group.attribute, group.group, *shares, verdict])
        return notebook.paragraphs(self.findings) + notebook.table(heads, rows)

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
        shutil.copytree(
            self.folder, folder, ignore=shutil.ignore_patterns(LOCK), dirs_exist_ok=True
        )
        return folder

    def printed(self) -> dict[str, dict[str, Any]]:
        """Return what may be printed of each query, by its id.

        That is its ``number`` in the list, from 1 on; its id as ``query``, None if it was asked
        rarely; and its ``text``, None also if texts are withheld.
        """
        # This looks at all queries, so we ask once.
        rare = self.spec.rare if self.queries.say_how_often else 0
        printed = {}
        for number, query in enumerate(self.queries.queries, start=1):
            is_rare = query.asks < rare
            is_withheld = is_rare or self.manifest.redacted
            printed[query.id] = {
                "number": number,
                "query": None if is_rare else query.id,
                "text": None if is_withheld else query.text,
            }
        return printed


def findings_of(audit: Audit) -> Findings:
    """Return what a report of an audit says in sentences."""
    summary = Summary.of(audit)
    return Findings(verdict_of(summary), sentences_of(summary), notes_of(summary))


def write_audit(folder: Path, audit: Audit, layout: str = LAYOUTS[0]) -> None:
    """Write ``audit.json``, the tables as CSV, and the report.

    Args:
        folder: The folder of the audit.
        audit: What came out.
        layout: The order of the report, one of :data:`fairqr.evaluation.audit.report.LAYOUTS`.

    Raises:
        InputError: There is no such layout; or the report needs an extra that is not installed.
            All other files are written by then.
    """
    arranged = load_layout(layout)
    for name, content in files_of(audit).items():
        write_beside(folder / name, content)
    drawings = figures_to_draw(audit)
    folded = {part["heading"] for part in arranged["parts"] if part["folded"]}
    values = values_of(audit, findings_of(audit), arranged)
    write_report(folder, "audit", values, drawings, folded)


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
    queries = {(query.id,) for query in audit.queries.queries}
    if kept.observations.done() - queries:
        raise InputError("raw/ has an answer to a query that was not asked.")
    if not audit.manifest.redacted and audit.queries.fingerprint != audit.manifest.queries:
        raise InputError("raw/queries.json has other queries than the manifest.")
    write_audit(into, audit, audit.manifest.layout)


def measured(
    folder: AuditFolder,
    manifest: AuditManifest,
    largest: Mapping[str, Sequence[str]] | None = None,
) -> Audit:
    """Compute all figures of what was observed, by the settings of a manifest; this blocks.

    Args:
        folder: The folder of the audit.
        manifest: Its settings.
        largest: See :func:`fairqr.evaluation.audit.measuring.measure`.
    """
    spec = AuditSpec.model_validate(manifest.spec)
    queries = folder.read(QUERIES, Queries)
    scores = folder.pairs.read()
    figures = measure(
        spec,
        Schema(attributes=manifest.attributes),
        {query.id: query for query in queries.queries},
        folder.observed,
        corpus_shares={name: np.array(shares) for name, shares in manifest.corpus_shares.items()},
        relevance=manifest.relevance,
        largest=largest,
    )
    return Audit(
        folder=folder.folder,
        manifest=manifest,
        spec=spec,
        queries=queries,
        figures=figures,
        titles=folder.read(TITLES, dict[str, str]),
        pairs=compare_versions(manifest.pairs_by, scores, spec.seed) if scores else None,
        seen=_read_if_there(folder, SEEN, SeenSearches),
        clicks=_read_if_there(folder, CLICKS, ClickFigures),
    )


def _read_if_there(folder: AuditFolder, name: str, kind: type[T]) -> T | None:
    """Return the content of a file that not every audit has."""
    return folder.read(name, kind) if (folder.folder / name).exists() else None


def finish(audit: Audit, folder: AuditFolder, layout: str) -> Audit:
    """Write all files of an audit, and seal its folder; this blocks."""
    folder.write(TITLES, audit.titles)
    write_audit(folder.folder, audit, layout)
    withheld = REDACTED if audit.manifest.redacted else {}
    sealed = folder.seal(layout=layout, **withheld)
    return replace(audit, manifest=sealed)
