"""What comes out of an audit: its figures as JSON, and as rows for CSV and DataFrames.

The queries are people's words. Those that were asked rarely may tell who asked, so that they are
printed nowhere: neither their text nor their id, which a default makes from the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.evaluation.audit.bundle import AuditManifest
from fairqr.evaluation.audit.figures import ALPHA, GroupFigures
from fairqr.evaluation.audit.measuring import AuditFigures
from fairqr.evaluation.audit.pairs import PairwiseAudit, VersionComparison
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.estimates import DIGITS, as_data
from fairqr.evaluation.reports.text import csv_of, frame

if TYPE_CHECKING:
    from pandas import DataFrame

FORMAT = 1
"""Of ``audit.json``; it changes when a name or the meaning of a figure does."""

DIGITS_BY_QUERY = 6


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """All that is written of an audit.

    Attributes:
        manifest: What it was made with. Its date is only in the report, so that the figures of
            equal audits are equal.
        spec: What was asked and measured.
        queries: All that were to be asked. Where they are redacted, ids are pseudonyms.
        figures: Of these.
        titles: Of documents, by id, as far as they are known and may be shown.
        pairs: What the versions of documents say; None if none were given.
    """

    manifest: AuditManifest
    spec: AuditSpec
    queries: Queries
    figures: AuditFigures
    titles: Mapping[str, str] = field(default_factory=dict)
    pairs: PairwiseAudit | None = None

    def printed(self) -> dict[str, dict[str, Any]]:
        """Return what may be printed of each query, by its id.

        That is its place in the list as ``number``, from 1 on; its id as ``query``, None if it was
        asked rarely; and its ``text``, None also if texts are withheld.
        """
        # It looks at all queries, so it is asked once.
        rare = self.spec.rare if self.queries.say_how_often else 0
        return {
            it.id: {
                "number": number,
                "query": None if it.asks < rare else it.id,
                "text": None if it.asks < rare or self.manifest.redacted else it.text,
            }
            for number, it in enumerate(self.queries.queries, start=1)
        }

    def attributes(self) -> dict[str, list[GroupFigures]]:
        """Return the figures of the groups of each attribute, and of each combination."""
        by_attribute = groupby(self.figures.groups, lambda it: it.attribute)
        return {name: list(groups) for name, groups in by_attribute}


def audit_json(outcome: AuditOutcome) -> bytes:
    """Return ``audit.json``; equal outcomes give equal bytes.

    Names are sorted, numbers have 12 significant digits, and what has no value is null.
    """
    figures, queries, printed = outcome.figures, outcome.queries, outcome.printed()
    counts, pairs = as_data(figures.counts), as_data(outcome.pairs)
    if pairs:
        ps = [it["difference"]["p"] for it in pairs["comparisons"]]
        pairs["tests"] = _tests(len(ps) - ps.count(None))
    found = {
        "format": FORMAT,
        "kind": "fairqr audit",
        "spec": outcome.spec.model_dump(mode="json")
        | {"discount": str(outcome.spec.discount), "target": str(outcome.spec.target)},
        "engine": outcome.manifest.engine,
        "relevance": counts.pop("relevance"),
        "queries": {it: getattr(queries, it) for it in ("design", "lines", "weight")}
        | {"too_many_failed": figures.too_many_failed}
        | counts,
        "tests": _tests(figures.tests),
        "attributes": [
            {
                "attribute": attribute,
                "unlabelled_exposure": figures.unknown[attribute],
                "unlabelled_candidates": figures.unlabelled[attribute],
            }
            for attribute in outcome.attributes()
        ],
        "groups": figures.groups,
        "segments": figures.segments,
        "costs": [{"attribute": name} | as_data(it) for name, it in figures.costs.items()],
        "contributions": [as_data(it) | printed[it.query] for it in figures.contributions],
        "pairs": pairs,
    }
    text = json.dumps(as_data(found), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # Half of a pair of surrogates, as a JSON of documents may hold, becomes an escape of JSON.
    return f"{text}\n".encode(errors="backslashreplace")


def _tests(family: int) -> dict[str, Any]:
    return {"family": family, "correction": "Holm", "alpha": ALPHA}


def files_of(outcome: AuditOutcome) -> dict[str, bytes]:
    """Return the files of figures: ``audit.json``, and the tables.

    ``results.csv`` has a row for each attribute, group and segment, and ``queries.csv`` one for
    each query, attribute and group; a query that found nothing or failed has one without an
    attribute.

    Raises:
        InputError: pandas is not installed.
    """
    tables = {
        f"{name}.csv": csv_of(table, DIGITS_BY_QUERY if name == "queries" else DIGITS)
        for name, table in frames_of(outcome).items()
    }
    return {"audit.json": audit_json(outcome)} | tables


def frames_of(outcome: AuditOutcome) -> dict[str, DataFrame]:
    """Return the figures as DataFrames; what has no value is NaN.

    ``results``, ``queries`` and ``pairs``, if there are any, are the tables in the files of these
    names.

    Raises:
        InputError: pandas is not installed.
    """
    figures, pairs = outcome.figures, outcome.pairs
    of_queries = [dict(zip(QUERY_COLUMNS, row, strict=True)) for row in _query_rows(outcome)]
    frames = {
        "results": frame((), [_flat(it) for it in (*figures.groups, *figures.segments)]),
        "queries": frame(QUERY_COLUMNS, of_queries),
    }
    return frames | ({"pairs": frame((), [*map(_flat, pairs.comparisons)])} if pairs else {})


QUERY_COLUMNS = (
    *("number", "query", "text", "segment", "weight", "status", "attribute", "group"),
    *("exposure", "target", "lean", "unlabelled"),
)


def _flat(figures: GroupFigures | VersionComparison) -> dict[str, Any]:
    """Return figures as the row of a table, with a column for each end of an estimate."""
    row: dict[str, Any] = {}
    for name, held in asdict(figures).items():
        parts = held if isinstance(held, dict) else {"value": held}
        columns = {f"{name}_{part}".removesuffix("_value"): it for part, it in parts.items()}
        columns.pop(f"{name}_p", None)  # There is one test a row.
        row |= columns
    if isinstance(figures, VersionComparison):
        return row | {"p": figures.difference.p}
    row["lean_least"], row["lean_greatest"] = row.pop("lean_bounds")
    return row | {"p": figures.test.p}


def _query_rows(outcome: AuditOutcome) -> Iterator[tuple[object, ...]]:
    printed = outcome.printed()
    asked = {
        it.id: (*printed[it.id].values(), it.segment, it.weight) for it in outcome.queries.queries
    }
    for part in outcome.figures.by_query:
        arrays = [*map(part.array, ("exposure", "target")), part.leans()[0]]
        table = np.stack([*arrays, part.by_label("unknown")], axis=2).tolist()
        for query, rows in zip(part.queries, table, strict=True):
            for group, values in zip(part.dimension.groups, rows, strict=True):
                yield (*asked[query], "ok", part.dimension.name, group, *values)
    for query, status in outcome.figures.unanswered.items():
        yield (*asked[query], status, *[None] * 6)
