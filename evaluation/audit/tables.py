"""The figures of an audit as files: ``audit.json``, and tables as CSV.

Those that were asked rarely may tell who asked, so that queries are printed as
:meth:`fairqr.evaluation.audit.finishing.Audit.printed` allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.evaluation.audit.figures import ALPHA, GroupFigures
from fairqr.evaluation.audit.pairs import VersionComparison
from fairqr.evaluation.estimates import DIGITS, as_data
from fairqr.evaluation.reports import text

if TYPE_CHECKING:
    from pandas import DataFrame

    from fairqr.evaluation.audit.finishing import Audit

FORMAT = 2
"""The format of ``audit.json``; it changes when a name or the meaning of a figure does."""

DIGITS_BY_QUERY = 6

CORRECTION = {"correction": "Holm", "alpha": ALPHA}

QUERY_COLUMNS = (
    "number",
    "query",
    "text",
    "segment",
    "weight",
    "status",
    "attribute",
    "group",
    "exposure",
    "target",
    "gap",
    "unlabelled",
)

ALL_GROUPS_COLUMNS = ("attribute", "group", "exposure", "target", "gap")


def audit_json(audit: Audit) -> bytes:
    """Return ``audit.json``; equal outcomes give equal bytes.

    Names are sorted, numbers have 12 significant digits, and what has no value is null.
    """
    figures = audit.figures
    printed = audit.printed()
    fair_reranking = [
        {"attribute": name, **as_data(reranking)}
        for name, reranking in figures.fair_reranking.items()
    ]
    contributions = [
        as_data(contribution) | printed[contribution.query]
        for contribution in figures.contributions
    ]
    content = {
        "format": FORMAT,
        "kind": "fairqr audit",
        "spec": _spec_as_data(audit),
        "engine": audit.manifest.engine,
        "relevance": figures.counts.relevance,
        "queries": _counts_as_data(audit),
        "tests": {"family": figures.tests, **CORRECTION},
        "attributes": [
            {
                "attribute": table.dimension.name,
                "unlabelled_exposure": table.unknown(),
                "unlabelled_candidates": table.unlabelled(),
            }
            for table in figures.by_query
        ],
        "groups": figures.groups,
        "segments": figures.segments,
        "calibration": figures.calibration,
        "fair_reranking": fair_reranking,
        "contributions": contributions,
        "pairs": _pairs_as_data(audit),
    }
    if figures.concentrations:
        content["concentration"] = [it.as_data() for it in figures.concentrations]
    if audit.seen is not None:
        content["lists"] = audit.lists
        content["coverage"] = audit.seen.coverage()
    if audit.clicks is not None:
        content["clicks"] = audit.clicks.model_dump(mode="json")
    written = json.dumps(
        as_data(content), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False
    )
    # Half of a pair of surrogates, as a JSON of documents may hold, becomes an escape of JSON.
    return f"{written}\n".encode(errors="backslashreplace")


def _spec_as_data(audit: Audit) -> dict[str, Any]:
    """Return what was measured, with the discount and the target as a user writes them."""
    spec = audit.spec
    as_written = {"discount": str(spec.discount), "target": str(spec.target)}
    return spec.model_dump(mode="json") | as_written


def _counts_as_data(audit: Audit) -> dict[str, Any]:
    """Return how many queries the audit rests on, and how they were chosen."""
    counts = as_data(audit.figures.counts)
    del counts["relevance"]
    queries = audit.queries
    chosen = {"design": queries.design, "lines": queries.lines, "weight": queries.weight}
    return {**chosen, "too_many_failed": audit.figures.too_many_failed, **counts}


def _pairs_as_data(audit: Audit) -> dict[str, Any] | None:
    """Return what the versions of documents say; None if none were given."""
    if audit.pairs is None:
        return None
    pairs: dict[str, Any] = as_data(audit.pairs)
    tested = [
        comparison for comparison in audit.pairs.comparisons if comparison.difference.p is not None
    ]
    pairs["tests"] = {"family": len(tested), **CORRECTION}
    return pairs


def frames_of(audit: Audit) -> dict[str, DataFrame]:
    """Return the tables of an audit by name; what has no value is NaN.

    Raises:
        InputError: pandas is not installed.
    """
    figures = audit.figures
    groups = (*figures.groups, *figures.segments)
    frames = {
        "results": text.frame(map(_flat, groups)),
        "queries": text.frame(_query_rows(audit), QUERY_COLUMNS),
    }
    if figures.concentrations:
        frames["all_groups"] = text.frame(_rows_of_all_groups(audit), ALL_GROUPS_COLUMNS)
    if audit.pairs:
        frames["pairs"] = text.frame(map(_flat, audit.pairs.comparisons))
    return frames


def files_of(audit: Audit) -> dict[str, bytes]:
    """Return the files of figures: ``audit.json``, and the tables.

    ``results.csv`` has a row for each attribute, group and segment, and ``queries.csv`` one for
    each query, attribute and group; a query that found nothing or failed has one without an
    attribute. ``all_groups.csv`` has one for each group that nobody lists, if there are any.

    Raises:
        InputError: pandas is not installed.
    """
    files = {"audit.json": audit_json(audit)}
    for name, frame in audit.frames.items():
        digits = DIGITS_BY_QUERY if name == "queries" else DIGITS
        files[f"{name}.csv"] = text.csv_of(frame, digits)
    return files


def _flat(figures: GroupFigures | VersionComparison) -> dict[str, Any]:
    """Return figures as the row of a table, with a column for each end of an estimate."""
    row: dict[str, Any] = {}
    for name, value in asdict(figures).items():
        if not isinstance(value, dict):
            row[name] = value
            continue
        for part, number in value.items():
            column = name if part == "value" else f"{name}_{part}"
            row[column] = number
        del row[f"{name}_p"]  # There is one test a row.
    if isinstance(figures, VersionComparison):
        row["p"] = figures.difference.p
        return row
    least, greatest = row.pop("gap_bounds")
    row["gap_least"] = least
    row["gap_greatest"] = greatest
    row["p"] = figures.test.p
    return row


def _query_rows(audit: Audit) -> Iterator[tuple[object, ...]]:
    """Yield a row for each query, attribute and group."""
    printed = audit.printed()
    columns: dict[str, tuple[object, ...]] = {}
    for query in audit.queries.queries:
        columns[query.id] = (*printed[query.id].values(), query.segment, query.weight)
    for table in audit.figures.by_query:
        exposure = table.array("exposure")
        target = table.array("target")
        gaps = table.tested_gaps()[0]
        unknown = table.by_label("unknown")
        figures = np.stack([exposure, target, gaps, unknown], axis=2).tolist()
        for query_id, rows in zip(table.queries, figures, strict=True):
            for group, values in zip(table.dimension.groups, rows, strict=True):
                yield (*columns[query_id], "ok", table.dimension.name, group, *values)
    for query_id, status in audit.figures.unanswered.items():
        yield (*columns[query_id], status, *[None] * 6)


def _rows_of_all_groups(audit: Audit) -> Iterator[tuple[object, ...]]:
    """Yield a row for each group of the attributes whose groups nobody lists."""
    for concentration in audit.figures.concentrations:
        columns = [concentration.exposure, concentration.target, concentration.gaps]
        figures = np.stack(columns, axis=1).round(10)
        for group, values in zip(concentration.groups, figures.tolist(), strict=True):
            yield concentration.attribute, group, *values
