"""What comes out of an audit: its figures as JSON, and as rows for CSV and DataFrames.

The queries are people's words. Those that were asked rarely may tell who asked, so that they are
printed nowhere: neither their text nor their id, which a default makes from the text.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import ALPHA, ESTIMATES, GroupFigures
from fairqr.evaluation.audit.measuring import AuditFigures
from fairqr.evaluation.audit.mending import CurvePoint
from fairqr.evaluation.audit.pairs import PairFigures, VersionComparison
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.reports.tables import frame
from fairqr.evaluation.reports.text import plain
from fairqr.retrieval.dimension import TIMES

if TYPE_CHECKING:
    from pandas import DataFrame

FORMAT = 1
"""Of ``audit.json``; it changes when a name or the meaning of a figure does."""

DIGITS = 12
DIGITS_BY_QUERY = 6

FORMULA = ("=", "+", "-", "@")
"""A spreadsheet would compute a cell that begins with one of these."""


@dataclass(frozen=True, slots=True)
class PrintedQuery:
    """What may be printed of a query.

    Attributes:
        number: Its place in the list of queries, from 1 on.
        id: None if it was asked rarely.
        text: None if it was asked rarely, or if texts are withheld.
    """

    number: int
    id: str | None
    text: str | None

    @property
    def is_shown(self) -> bool:
        """Whether readers may know what was asked."""
        return self.text is not None


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """All that is written of an audit.

    Attributes:
        spec: What was asked and measured.
        queries: All that were to be asked. Where they are redacted, ids are pseudonyms.
        figures: Of these.
        engine: What is known of the engine that was audited, without secrets, for the report.
        titles: Of documents, by id, as far as they are known and may be shown.
        is_redacted: Whether no text of a query may be printed.
        pairs: What the versions of documents say; None if none were given.
        begun: The day on which the audit was begun, in ISO 8601; empty if it is not known. Only the
            report has it, so that the figures of equal audits are equal.
        documents: How many the engine holds; None if it does not say.
        labels: Where the labels of each attribute come from, by its name, as far as it is known.
    """

    spec: AuditSpec
    queries: Queries
    figures: AuditFigures
    engine: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    is_redacted: bool = False
    pairs: PairFigures | None = None
    begun: str = ""
    documents: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def printed(self) -> dict[str, PrintedQuery]:
        """Return what may be printed of each query, by its id."""
        # It looks at all queries, so it is asked once.
        rare = self.spec.rare if self.queries.say_how_often else 0
        numbered = enumerate(self.queries.queries, start=1)
        return {
            it.id: PrintedQuery(number, None, None)
            if it.asks < rare
            else PrintedQuery(number, it.id, None if self.is_redacted else it.text)
            for number, it in numbered
        }

    def attributes(self) -> dict[str, list[GroupFigures]]:
        """Return the figures of the groups of each attribute, and of each combination."""
        found: dict[str, list[GroupFigures]] = {}
        for it in self.figures.groups:
            found.setdefault(it.attribute, []).append(it)
        return found


def is_combination(attribute: str) -> bool:
    """Return whether an attribute combines several."""
    return TIMES in attribute


def audit_json(outcome: AuditOutcome) -> bytes:
    """Return ``audit.json``; equal outcomes give equal bytes.

    Names are sorted, numbers have 12 significant digits, and what has no value is null.
    """
    found = as_data(_audit_object(outcome))
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # Half of a pair of surrogates, as a JSON of documents may hold, becomes an escape of JSON.
    return f"{text}\n".encode(errors="backslashreplace")


def _audit_object(outcome: AuditOutcome) -> dict[str, Any]:
    figures, queries = outcome.figures, outcome.queries
    counts, pairs = as_data(figures.counts), as_data(outcome.pairs)
    if pairs:
        tested = sum(it["difference"]["p"] is not None for it in pairs["comparisons"])
        pairs["tests"] = _tests(tested)
    return {
        "format": FORMAT,
        "kind": "fairqr audit",
        "spec": outcome.spec.model_dump(mode="json")
        | {"discount": str(outcome.spec.discount), "target": str(outcome.spec.target)},
        "engine": dict(outcome.engine),
        "relevance": counts.pop("relevance"),
        "queries": {
            "design": queries.design,
            "lines": queries.lines,
            "distinct": queries.distinct,
            "weight": queries.weight,
            "too_many_failed": figures.too_many_failed,
            **counts,
        },
        "tests": _tests(figures.tests),
        "attributes": [
            {
                "attribute": attribute,
                "groups": [group.group for group in groups],
                "unlabelled_exposure": figures.unknown[attribute],
                "unlabelled_candidates": figures.unlabelled[attribute],
                "saturated": figures.saturated[attribute],
            }
            for attribute, groups in outcome.attributes().items()
        ],
        "groups": figures.groups,
        "stability": figures.stability,
        "costs": [{"attribute": name, "points": it} for name, it in figures.costs.items()],
        "contributions": list(_contributions(outcome)),
        "pairs": pairs,
    }


def _tests(family: int) -> dict[str, Any]:
    return {"family": family, "correction": "Holm", "alpha": ALPHA}


def _contributions(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    printed = outcome.printed()
    for it in outcome.figures.contributions:
        query = printed[it.query]
        yield as_data(it) | {"number": query.number, "query": query.id, "text": query.text}


def as_data(found: Any) -> Any:
    """Return figures for JSON: objects by their fields, numbers rounded, and NaN as None."""
    if isinstance(found, float):
        return float(f"{found:.{DIGITS}g}") + 0.0 if math.isfinite(found) else None
    if is_dataclass(found):
        held = {it.name: as_data(getattr(found, it.name)) for it in fields(found)}
        if isinstance(found, Estimate):
            ends = [held.pop("low"), held.pop("high")]
            return held | {"interval": None if None in ends else ends}
        if isinstance(found, CurvePoint):
            by_group = held["exposure"].items()
            return held | {"exposure": [{"group": group, **it} for group, it in by_group]}
        return held
    if isinstance(found, Mapping):
        return {name: as_data(value) for name, value in found.items()}
    return [as_data(value) for value in found] if isinstance(found, list | tuple) else found


Rows = Iterable[Mapping[str, Any]]
"""Of a table: values by the names of columns, which the first row has all of."""


def files_of(outcome: AuditOutcome) -> dict[str, bytes]:
    """Return the content of the files that hold figures: ``audit.json``, and the tables.

    ``results.csv`` has a row for each attribute and group, and ``queries.csv`` one for each query,
    attribute and group; a query that found nothing or failed has one without an attribute.
    """
    tables = _tables(outcome)
    contents = {
        "audit.json": audit_json(outcome),
        "results.csv": _csv(tables["groups"], DIGITS),
        "queries.csv": _csv(tables["queries"], DIGITS_BY_QUERY),
    }
    return contents | ({"pairs.csv": _csv(tables["pairs"], DIGITS)} if outcome.pairs else {})


PAIR_ESTIMATES = ("difference", "higher", "equal")
"""The figures of two versions that have an interval, as :class:`VersionComparison` explains."""

QUERY_COLUMNS = (
    *("number", "query", "text", "weight", "status", "attribute", "group"),
    *("exposure", "target", "lean", "unlabelled"),
)
COST_COLUMNS = (
    *("attribute", "weight", "divergence", "relevance"),
    *("group", "exposure", "low", "high"),
)
COLUMNS = {
    "costs": COST_COLUMNS,
    "contributions": (
        "attribute",
        "group",
        "query",
        "share",
        "lean",
        "shown",
        "fair",
        "number",
        "text",
    ),
}
"""Of tables that may have no rows."""


def _tables(outcome: AuditOutcome) -> dict[str, Rows]:
    """Return all tables of an audit, by their names in :class:`AuditFrames`."""
    pairs = outcome.pairs.comparisons if outcome.pairs else ()
    return {
        "groups": _flat(outcome.figures.groups, ESTIMATES),
        "queries": _query_rows(outcome),
        "costs": _cost_rows(outcome),
        "contributions": _contributions(outcome),
        "pairs": _flat(pairs, PAIR_ESTIMATES),
    }


def _flat(
    figures: Iterable[GroupFigures | VersionComparison], estimates: Iterable[str]
) -> Iterator[dict[str, Any]]:
    """Yield figures as the rows of a table, with a column for each end of an estimate."""
    for it in figures:
        row = {field.name: getattr(it, field.name) for field in fields(it)}
        for name in estimates:
            held: Estimate = row.pop(name)
            row |= {name: held.value, f"{name}_low": held.low, f"{name}_high": held.high}
            row[f"{name}_queries"] = held.queries
        if isinstance(it, GroupFigures):
            row["lean_least"], row["lean_greatest"] = row.pop("lean_bounds")
        row["p"] = it.test.p if isinstance(it, GroupFigures) else it.difference.p
        yield row


def _cost_rows(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    for attribute, points in outcome.figures.costs.items():
        for point in points:
            values = (attribute, point.weight, point.divergence.value, point.relevance.value)
            for group, it in point.exposure.items():
                row = (*values, group, it.value, it.low, it.high)
                yield dict(zip(COST_COLUMNS, row, strict=True))


def _query_rows(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    printed = outcome.printed()
    weights = {query.id: query.weight for query in outcome.queries.queries}

    def row(query: str, *figures: object) -> dict[str, Any]:
        it = printed[query]
        values = (it.number, it.id, it.text, weights[query], *figures)
        return dict(zip_longest(QUERY_COLUMNS, values))

    for part in outcome.figures.by_query:
        arrays = np.stack([part.array("exposure"), part.array("target"), part.leans()[0]], axis=2)
        unlabelled = part.unknown().tolist()
        for query, rows, unknown in zip(part.queries, arrays.tolist(), unlabelled, strict=True):
            for group, values in zip(part.dimension.groups, rows, strict=True):
                yield row(query, "ok", part.dimension.name, group, *values, unknown)
    for it in outcome.figures.unanswered:
        yield row(it.query, it.status)


def _csv(table: Rows, digits: int) -> bytes:
    stream, rows = io.StringIO(), iter(table)
    first = next(rows, {})
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(first)
    writer.writerows([_cell(row[name], digits) for name in first] for row in chain([first], rows))
    return stream.getvalue().encode()


def _cell(found: object, digits: int) -> str:
    if found is None:
        return ""
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, float):
        return "" if math.isnan(found) else f"{found:.{digits}g}"
    text = plain(found)
    return f"'{text}" if text.startswith(FORMULA) else text


@dataclass(frozen=True, slots=True)
class AuditFrames:
    """The figures of an audit as DataFrames.

    Attributes:
        groups: A row for each attribute and group, as in ``results.csv``.
        queries: A row for each query, attribute and group, as in ``queries.csv``.
        costs: A row for each point of a curve of mending, and group.
        contributions: The queries that add most to a lean, with the ids that are shown and those
            that a fair re-ranking would show.
        pairs: A row for each two versions of documents, as in ``pairs.csv``; empty without any.
    """

    groups: DataFrame
    queries: DataFrame
    costs: DataFrame
    contributions: DataFrame
    pairs: DataFrame


def frames_of(outcome: AuditOutcome) -> AuditFrames:
    """Return the figures as DataFrames; what has no value is NaN.

    Raises:
        InputError: pandas is not installed.
    """
    return AuditFrames(
        **{
            name: frame(COLUMNS.get(name, ()), list(rows))
            for name, rows in _tables(outcome).items()
        }
    )
