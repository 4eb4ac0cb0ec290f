"""What comes out of an audit: its figures as JSON, and as rows for CSV and DataFrames.

The queries are people's words. Those that were asked rarely may tell who asked, so that they are
printed nowhere: neither their text nor their id, which a default makes from the text.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import ALPHA, ESTIMATES, GroupFigures
from fairqr.evaluation.audit.measuring import AuditFigures
from fairqr.evaluation.audit.mending import CurvePoint
from fairqr.evaluation.audit.pairs import PairFigures, VersionComparison
from fairqr.evaluation.audit.queries import AuditQuery, Queries
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
        return {
            query.id: self._printed(number, query, rare)
            for number, query in enumerate(self.queries.queries, start=1)
        }

    def _printed(self, number: int, query: AuditQuery, rare: float) -> PrintedQuery:
        if query.asks < rare:
            return PrintedQuery(number, None, None)
        return PrintedQuery(number, query.id, None if self.is_redacted else query.text)

    def attributes(self) -> dict[str, list[GroupFigures]]:
        """Return the figures of the groups of each attribute, and of each combination."""
        return by_attribute(self.figures.groups)


class _OfAttribute(Protocol):
    @property
    def attribute(self) -> str: ...


G = TypeVar("G", bound=_OfAttribute)


def by_attribute(figures: Iterable[G]) -> dict[str, list[G]]:
    """Return figures of groups by their attributes, in the order given."""
    found: dict[str, list[G]] = {}
    for it in figures:
        found.setdefault(it.attribute, []).append(it)
    return found


def is_combination(attribute: str) -> bool:
    """Return whether an attribute combines several."""
    return TIMES in attribute


def audit_json(outcome: AuditOutcome) -> bytes:
    """Return ``audit.json``; equal outcomes give equal bytes.

    Names are sorted, numbers have 12 significant digits, and what has no value is null.
    """
    found = _rounded(_audit_object(outcome))
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # Half of a pair of surrogates, as a JSON of documents may hold, becomes an escape of JSON.
    return f"{text}\n".encode(errors="backslashreplace")


def _audit_object(outcome: AuditOutcome) -> dict[str, Any]:
    figures, queries = outcome.figures, outcome.queries
    counts = _plain(figures.counts)
    pairs = _plain(outcome.pairs)
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
                "unlabelled_exposure": _plain(figures.unknown[attribute]),
                "unlabelled_candidates": figures.unlabelled[attribute],
            }
            for attribute, groups in outcome.attributes().items()
        ],
        "groups": _plain(figures.groups),
        "stability": _plain(figures.stability),
        "costs": [
            {"attribute": attribute, "points": _plain(points)}
            for attribute, points in figures.costs.items()
        ],
        "contributions": list(_contributions(outcome)),
        "pairs": pairs,
    }


def _tests(family: int) -> dict[str, Any]:
    return {"family": family, "correction": "Holm", "alpha": ALPHA}


def _contributions(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    printed = outcome.printed()
    for it in outcome.figures.contributions:
        query = printed[it.query]
        yield _plain(it) | {"number": query.number, "query": query.id, "text": query.text}


def _plain(found: Any) -> Any:
    """Return figures as plain data: objects by their fields, and an estimate with its interval."""
    if isinstance(found, Estimate):
        ends = [found.low, found.high]
        interval = None if any(map(math.isnan, ends)) else ends
        return {"value": found.value, "interval": interval, "queries": found.queries, "p": found.p}
    if isinstance(found, CurvePoint):
        by_name = {it.name: _plain(getattr(found, it.name)) for it in fields(found)}
        return by_name | {"exposure": _listed("group", by_name["exposure"])}
    if is_dataclass(found):
        return {it.name: _plain(getattr(found, it.name)) for it in fields(found)}
    if isinstance(found, Mapping):
        return {name: _plain(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(value) for value in found]
    return found


def _listed(what: str, by_name: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is known by name as a list that holds the names, too."""
    return [{what: name, **held} for name, held in by_name.items()]


def _rounded(found: Any) -> Any:
    """Return an object for JSON, its numbers rounded; NaN becomes None."""
    if isinstance(found, float):
        return float(f"{found:.{DIGITS}g}") + 0.0 if math.isfinite(found) else None
    if isinstance(found, dict):
        return {name: _rounded(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_rounded(value) for value in found]
    return found


class Table(NamedTuple):
    """Rows for CSV and for DataFrames.

    Attributes:
        columns: Their names.
        rows: Values by the names; what is missing has no value.
    """

    columns: Sequence[str]
    rows: Iterable[Mapping[str, Any]]


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
    if outcome.pairs is not None:
        contents["pairs.csv"] = _csv(tables["pairs"], DIGITS)
    return contents


PAIR_ESTIMATES = ("difference", "higher", "equal")
"""The figures of two versions that have an interval, as :class:`VersionComparison` explains."""

_ENDS = ("", "_low", "_high", "_queries")


def _with_ends(*names: str) -> list[str]:
    return [f"{name}{end}" for name in names for end in _ENDS]


GROUP_COLUMNS = (
    *("attribute", "group", "verdict", "tested", "p", "flips"),
    *_with_ends(*ESTIMATES),
    *("lean_least", "lean_greatest", "if_mended", "detectable", "below_four_fifths"),
    *("selected", "candidates", "share_of_candidates", "is_small"),
)
QUERY_COLUMNS = (
    *("number", "query", "text", "weight", "status", "attribute", "group"),
    *("exposure", "target", "lean", "unlabelled"),
)
COST_COLUMNS = (
    *("attribute", "weight", "divergence", "relevance"),
    *("group", "exposure", "low", "high"),
)
CONTRIBUTION_COLUMNS = (
    *("attribute", "group", "number", "query", "text", "share", "lean", "shown", "fair"),
)


def _tables(outcome: AuditOutcome) -> dict[str, Table]:
    """Return all tables of an audit, by their names in :class:`AuditFrames`."""
    pairs = outcome.pairs.comparisons if outcome.pairs else ()
    return {
        "groups": Table(GROUP_COLUMNS, _flat(outcome.figures.groups, ESTIMATES)),
        "queries": Table(QUERY_COLUMNS, _query_rows(outcome)),
        "costs": Table(COST_COLUMNS, _cost_rows(outcome)),
        "contributions": Table(CONTRIBUTION_COLUMNS, _contributions(outcome)),
        "pairs": Table(
            ("first", "second", "pairs", *_with_ends(*PAIR_ESTIMATES), "p"),
            _flat(pairs, PAIR_ESTIMATES),
        ),
    }


def _flat(figures: Iterable[Any], estimates: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield figures as the rows of a table, with a column for each end of an estimate."""
    for it in figures:
        row = {field.name: getattr(it, field.name) for field in fields(it)}
        for name in estimates:
            held: Estimate = row.pop(name)
            values = (held.value, held.low, held.high, held.queries)
            row |= dict(zip(_with_ends(name), values, strict=True))
        if isinstance(it, GroupFigures):
            row["p"] = it.test.p
            row["lean_least"], row["lean_greatest"] = row.pop("lean_bounds")
        elif isinstance(it, VersionComparison):
            row["p"] = it.difference.p
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

    def first(query: str, status: str) -> dict[str, Any]:
        it = printed[query]
        return {
            "number": it.number,
            "query": it.id,
            "text": it.text,
            "weight": weights[query],
            "status": status,
        }

    for part in outcome.figures.by_query:
        arrays = np.stack([part.array("exposure"), part.array("target"), part.leans()[0]], axis=2)
        unlabelled = part.unknown().tolist()
        for query, rows, unknown in zip(part.queries, arrays.tolist(), unlabelled, strict=True):
            shared = first(query, "ok") | {"attribute": part.dimension.name, "unlabelled": unknown}
            for group, values in zip(part.dimension.groups, rows, strict=True):
                named = dict(zip(("exposure", "target", "lean"), values, strict=True))
                yield shared | {"group": group} | named
    for it in outcome.figures.unanswered:
        yield dict.fromkeys(QUERY_COLUMNS) | first(it.query, it.status)


def _csv(table: Table, digits: int) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_cell(row.get(name), digits) for name in table.columns] for row in table.rows)
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
            name: frame(columns, [{it: row[it] for it in columns} for row in rows])
            for name, (columns, rows) in _tables(outcome).items()
        }
    )
