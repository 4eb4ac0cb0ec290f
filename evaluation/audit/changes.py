"""How the figures of groups changed between two audits, query by query."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairqr.agents.statistics import corrected_by_holm, stream
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.concentration import gini_change
from fairqr.evaluation.audit.exposures import Choices
from fairqr.evaluation.audit.figures import ALPHA
from fairqr.evaluation.audit.gathering import AllGroups
from fairqr.evaluation.audit.query_figures import QueryFigures
from fairqr.evaluation.estimates import Estimate, differences, p_of_means
from fairqr.retrieval.fairness.dimension import TIMES, Dimension
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import Schema

if TYPE_CHECKING:
    from fairqr.evaluation.audit.finishing import Audit

GAP_ONLY = {"fairqr", "relevance", "encoder", "judgements", "depth", "widen"}
"""Settings that change which documents count as relevant, and so the gap, not the exposure."""

OF_ATTRIBUTE = ("labels", "field", "values")
"""Settings of an attribute that change all its figures."""

Common = Sequence[tuple[str, str]]
"""The queries that both audits answered, by their ids in each of them."""


@dataclass(slots=True)
class FigureChange:
    """How a figure of a group changed.

    Attributes:
        attribute: The attribute.
        group: The group.
        figure: ``gap``, which was tested, or ``exposure``.
        before: In the first audit, over the queries of both.
        after: In the second one.
        change: After − before. Its p is corrected for all tests of the comparison.
        direction: ``up`` or ``down`` if the test says so and only the engine can be the reason;
            ``settings`` if these may be the reason, too; ``same_answers`` if the engine cannot be;
            else ``too_few`` or ``cannot_tell``.
    """

    attribute: str
    group: str
    figure: str
    before: float
    after: float
    change: Estimate
    direction: str = ""


@dataclass(slots=True)
class ConcentrationChange:
    """How it changed whether exposure follows the target over all groups of an open attribute.

    Attributes:
        attribute: The attribute.
        before: The figures of the first audit, as its ``audit.json`` has them as ``concentration``,
            but over the queries whose target is known in both audits.
        after: The same of the second one.
        change: The Gini index after − before, with its interval. It has no p.
        direction: As that of :class:`FigureChange`, by whether the interval holds 0.
    """

    attribute: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    change: Estimate
    direction: str = ""


def corrected_changes(
    tables: Sequence[tuple[QueryFigures, QueryFigures]],
    common: Common,
    settings: Mapping[str, str],
    *,
    is_same: bool,
) -> list[FigureChange]:
    """Return the changes of all groups, tested together.

    Args:
        tables: The figures by query of each attribute, in both audits.
        common: The queries of both.
        settings: The settings that differ.
        is_same: Whether the engine answered all of these queries the same.
    """
    changes = [change for pair in tables for change in changes_of(*pair, common)]
    ps = corrected_by_holm([change.change.p for change in changes])
    for change, p in zip(changes, ps, strict=True):
        change.change = replace(change.change, p=p)
        change.direction = "same_answers" if is_same else _direction(change, settings)
    return changes


class _Side(NamedTuple):
    """The figures of the common queries in one audit, shape (n, G) each."""

    gap: FloatArray
    exposure: FloatArray


def _side_of(figures: QueryFigures, queries: Sequence[str]) -> _Side:
    rows = _rows_of(figures, queries)
    gaps = figures.tested_gaps()[0]
    exposures = figures.exposures(figures.array)
    return _Side(gaps[rows], exposures[rows])


def changes_of(first: QueryFigures, second: QueryFigures, common: Common) -> Iterator[FigureChange]:
    """Yield the change of each figure and group over common queries, with an uncorrected p."""
    weights = weights_of(first, second, common)
    earlier, later = zip(*common, strict=True)
    before = _side_of(first, earlier)
    after = _side_of(second, later)
    yield from _changes(first.dimension, "gap", before.gap, after.gap, after.exposure, weights)
    yield from _changes(
        first.dimension, "exposure", before.exposure, after.exposure, after.exposure, weights
    )


def _changes(
    dimension: Dimension,
    figure: str,
    before: FloatArray,
    after: FloatArray,
    exposures: FloatArray,
    weights: FloatArray,
) -> Iterator[FigureChange]:
    """Yield the change of a figure of each group.

    Args:
        dimension: The groups.
        figure: ``gap`` or ``exposure``.
        before: The figure in the first audit, shape (n, G).
        after: The figure in the second one.
        exposures: The exposure in the second one.
        weights: Of the queries, shape (n,).
    """
    is_known = ~np.isnan(before + after).any(axis=1)
    if not is_known.any():
        return
    before = before[is_known]
    after = after[is_known]
    exposures = exposures[is_known]
    weights = weights[is_known]
    random = stream(0, f"comparison {dimension.name} {figure}")
    tests = p_of_means(after - before, weights, random)
    if figure == "gap":
        # A gap changes mostly by the exposure, a share, whose interval is the more exact one.
        moved = (after - before + exposures).clip(0, 1)
        intervals = differences(moved, exposures, weights)
    else:
        intervals = differences(after, before, weights)
    means_before = np.average(before, axis=0, weights=weights).tolist()
    means_after = np.average(after, axis=0, weights=weights).tolist()
    columns = zip(dimension.groups, means_before, means_after, intervals, tests, strict=True)
    for group, mean_before, mean_after, interval, p in columns:
        value = round(mean_after - mean_before, 10)
        change = replace(interval, value=value, p=p)
        yield FigureChange(dimension.name, group, figure, mean_before, mean_after, change)


def weights_of(first: QueryFigures, second: QueryFigures, common: Common) -> FloatArray:
    """Return the weights of common queries: the sum of what each has of both audits."""
    earlier, later = zip(*common, strict=True)
    return _shares_of_weight(first, earlier) + _shares_of_weight(second, later)


def _shares_of_weight(figures: QueryFigures, queries: Sequence[str]) -> FloatArray:
    weights = figures.weights()
    return np.asarray(weights[_rows_of(figures, queries)] / weights.sum())


def _rows_of(figures: QueryFigures, queries: Sequence[str]) -> list[int]:
    rows = {query: row for row, query in enumerate(figures.queries)}
    return [rows[query] for query in queries]


def _direction(change: FigureChange, settings: Mapping[str, str]) -> str:
    """Say which way a figure went, if the test is clear and only the engine can be the reason."""
    p = change.change.p
    if p is None:
        return "too_few"
    if p > ALPHA:
        return "cannot_tell"
    if _may_explain(settings, change.attribute, has_target=change.figure == "gap"):
        return "settings"
    return "up" if change.change.value > 0 else "down"


def concentration_changes(
    first: Audit,
    second: Audit,
    common: Common,
    weights: FloatArray,
    settings: Mapping[str, str],
    *,
    is_same: bool,
) -> list[ConcentrationChange]:
    """Return what changed over all groups of each open attribute that both audits measured.

    Args:
        first: The earlier audit.
        second: The later one, by whose settings both are measured.
        common: The queries of both.
        weights: Of these queries, shape (n,).
        settings: The settings that differ.
        is_same: Whether the engine answered all of these queries the same.
    """
    names = {concentration.attribute for concentration in first.figures.concentrations}
    names &= {concentration.attribute for concentration in second.figures.concentrations}
    changes = []
    for name in sorted(names):
        change = _concentration_change(name, first, second, common, weights)
        if change is not None:
            change.direction = "same_answers" if is_same else _direction_of_gini(change, settings)
            changes.append(change)
    return changes


def _concentration_change(
    name: str, first: Audit, second: Audit, common: Common, weights: FloatArray
) -> ConcentrationChange | None:
    """Return what changed over all groups of an open attribute; None if no target is known."""
    before = _gatherer(name, second, first.manifest.relevance)
    after = _gatherer(name, second, second.manifest.relevance)
    earlier, later = zip(*common, strict=True)
    answers = zip(
        weights.tolist(),
        AuditFolder(first.folder).observed(earlier),
        AuditFolder(second.folder).observed(later),
        strict=True,
    )
    for weight, answer_before, answer_after in answers:
        groups_before = before.groups_in(answer_before)
        groups_after = after.groups_in(answer_after)
        if groups_before is not None and groups_after is not None:
            before.add(weight, groups_before)
            after.add(weight, groups_after)
    concentration_before = before.totals.concentration()
    concentration_after = after.totals.concentration()
    if concentration_before is None or concentration_after is None:
        return None
    return ConcentrationChange(
        name,
        concentration_before.as_data(),
        concentration_after.as_data(),
        gini_change(before.totals, after.totals),
    )


def _gatherer(name: str, audit: Audit, relevance: str) -> AllGroups:
    """Return what gathers all groups of an attribute, by the settings of an audit."""
    spec = audit.spec
    choices = Choices(spec.k, spec.discount, spec.target, relevance=relevance)
    return AllGroups(Dimension.named(schema_of(audit), name), choices, spec.seed)


def schema_of(audit: Audit) -> Schema:
    """Return the attributes of an audit, with the groups of its engine."""
    return Schema(attributes=audit.manifest.attributes)


def _direction_of_gini(change: ConcentrationChange, settings: Mapping[str, str]) -> str:
    """Say which way an index went, if its interval leaves out 0 and only the engine can be why."""
    index = change.change
    if math.isnan(index.low):
        return "too_few"
    if index.low <= 0 <= index.high:
        return "cannot_tell"
    if _may_explain(settings, change.attribute, has_target=True):
        return "settings"
    return "up" if index.value > 0 else "down"


def _may_explain(settings: Mapping[str, str], attribute: str, *, has_target: bool) -> bool:
    """Return whether settings that differ may have changed a figure of an attribute.

    Args:
        settings: Those that differ.
        attribute: The attribute.
        has_target: Whether the target counts in the figure, too.
    """
    names = {f"{setting} of {name}" for setting in OF_ATTRIBUTE for name in attribute.split(TIMES)}
    if has_target:
        names |= GAP_ONLY
    return bool(settings.keys() & names)
