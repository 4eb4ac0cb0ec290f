"""What changed between two audits, over the queries that both asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.base.statistics import corrected_by_holm, stream
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest
from fairqr.evaluation.audit.estimates import (
    Estimate,
    differences,
    divided,
    effective_queries,
    estimate,
    means,
    p_of_means,
)
from fairqr.evaluation.audit.figures import Gathered
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.outcomes import by_attribute
from fairqr.evaluation.reports.writer import paragraphs, write_report
from fairqr.retrieval.exposure import FloatArray

ALPHA = 0.05
FIGURES = ("lean", "exposure", "impact_ratio")
SAME = ("k", "discount", "target", "depth", "widen")
"""What both audits must measure by."""

COUNTS = ("queries", "only_first", "only_second", "effective", "tests")

Places = NDArray[np.intp]

Direction = Literal["up", "down", "cannot_tell", "too_few"]


@dataclass(frozen=True, slots=True)
class Change:
    """How a figure of a group changed.

    Attributes:
        attribute: The attribute.
        group: The group.
        figure: One of :data:`FIGURES`.
        before: In the first audit, over the queries of both.
        after: In the second one.
        change: After − before. Its p is corrected for all tests of the comparison; None for the
            impact ratio, which has an interval only.
        direction: What the test says.
    """

    attribute: str
    group: str
    figure: str
    before: float
    after: float
    change: Estimate
    direction: Direction = "cannot_tell"

    @property
    def is_tested(self) -> bool:
        """Whether it has a test; an impact ratio has only an interval."""
        return self.figure != "impact_ratio"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed between two audits.

    Attributes:
        first: The earlier audit.
        second: The later one.
        queries: How many queries both answered.
        only_first: How many queries only the first one asked.
        only_second: The same of the second one.
        effective: How many queries of equal weight would tell as much.
        tests: How many tests were corrected for.
        changes: By attribute, group and figure.
        too_many_failed: Which of both audits, ``first`` or ``second``, give no verdict, since too
            many of their queries failed.
    """

    first: AuditManifest
    second: AuditManifest
    queries: int
    only_first: int
    only_second: int
    effective: float
    tests: int
    changes: tuple[Change, ...]
    too_many_failed: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return what changed, in plain words."""
        too_few = all(it.direction == "too_few" for it in self.changes if it.is_tested)
        return paragraphs("audit_comparison", {"it": self, "too_few": too_few})


def compare(first: Audit, second: Audit) -> Comparison:
    """Compare two audits query by query.

    A query weighs what it weighs in both, each weight as a share of its audit.

    Args:
        first: The earlier audit.
        second: The later one.

    Raises:
        InputError: They measure otherwise, their queries are redacted, or they share no attribute
            or no query.
    """
    _check(first, second)
    after_by_name = {it.dimension.name: it for it in second.figures.by_query}
    common: list[str] = []
    changes: list[Change] = []
    weights = np.zeros(0)
    for before in first.figures.by_query:
        after = after_by_name.get(before.dimension.name)
        if after is None or after.dimension.groups != before.dimension.groups:
            continue
        answered = set(after.queries)
        common = [query for query in before.queries if query in answered]
        if not common:
            raise InputError("The audits answered no query that is the same in both.")
        rows, other = (_places(it, common) for it in (before, after))
        parts = [it.weights() / it.weights().sum() for it in (before, after)]
        weights = parts[0][rows] + parts[1][other]
        changes += _changes(before, after, rows, other, weights, first.spec.seed)
    if not changes:
        raise InputError("The audits have no attribute with the same groups in both.")
    tested = [it for it in changes if it.is_tested]
    corrected = iter(corrected_by_holm([it.change.p for it in tested]))
    changes = [_judged(it, next(corrected)) if it.is_tested else it for it in changes]
    return Comparison(
        first=first.manifest,
        second=second.manifest,
        queries=len(common),
        only_first=len(_ids(first) - _ids(second)),
        only_second=len(_ids(second) - _ids(first)),
        effective=float(effective_queries(weights)),
        tests=sum(it.change.p is not None for it in changes),
        changes=tuple(changes),
        too_many_failed=tuple(
            which
            for which, audit in (("first", first), ("second", second))
            if audit.figures.too_many_failed
        ),
    )


def _places(gathered: Gathered, queries: Sequence[str]) -> Places:
    by_id = {query: place for place, query in enumerate(gathered.queries)}
    return np.array([by_id[query] for query in queries], dtype=np.intp)


def _ids(audit: Audit) -> set[str]:
    return {query.id for query in audit.queries.queries}


def _check(first: Audit, second: Audit) -> None:
    for audit, which in ((first, "first"), (second, "second")):
        if audit.manifest.redacted:
            raise InputError(
                f"The {which} audit has redacted queries, so nobody can pair them; compare audits "
                "that were made without --redact."
            )
    own, other = first.spec.model_dump(mode="json"), second.spec.model_dump(mode="json")
    different = [name for name in SAME if own[name] != other[name]]
    if first.manifest.relevance != second.manifest.relevance:
        different.append("relevance")
    if different:
        raise InputError(
            f"The audits measure differently ({', '.join(different)}); make both with the same."
        )


def _changes(
    before: Gathered,
    after: Gathered,
    rows: Places,
    other: Places,
    weights: FloatArray,
    seed: int,
) -> Iterator[Change]:
    attribute, groups = before.dimension.name, before.dimension.groups
    sides = ((before, rows), (after, other))
    for figure in ("lean", "exposure"):
        one, two = (
            (it.leans()[0] if figure == "lean" else it.array(figure))[at] for it, at in sides
        )
        known = ~np.isnan(one + two).any(axis=1)
        if not known.any():
            continue
        one, two, by = one[known], two[known], weights[known]
        random = stream(seed, f"comparison {attribute} {figure}")
        tests = p_of_means(two - one, by, random)
        totals = [by @ values / by.sum() for values in (one, two)]
        is_share = figure == "exposure"
        changed = differences(two, one, by) if is_share else means(two - one, by)
        for group, was, is_, change, p in zip(groups, *totals, changed, tests, strict=True):
            yield Change(attribute, group, figure, was.item(), is_.item(), replace(change, p=p))
    parts = np.concatenate(
        [it.array(name)[at] for it, at in sides for name in ("selected", "candidates")], axis=1
    )
    known = ~np.isnan(parts).any(axis=1)
    if known.any():
        yield from _impact_ratios(attribute, groups, parts[known], weights[known])


def _impact_ratios(
    attribute: str, groups: Sequence[str], parts: FloatArray, weights: FloatArray
) -> Iterator[Change]:
    size, totals = len(groups), weights @ parts
    halves = slice(0, 2 * size), slice(2 * size, 4 * size)
    # The group that leads stays the same without a query, so that its own ratio is 1.
    leaders = [_leader(totals[half], size) for half in halves]
    if None in leaders:
        return

    def relative(t: FloatArray) -> list[FloatArray]:
        return [
            _relative(t[..., half], size, leader)
            for half, leader in zip(halves, leaders, strict=True)
        ]

    def changed(t: FloatArray) -> FloatArray:
        one, two = relative(t)
        return two - one

    found = estimate(parts, weights, changed)
    for group, was, is_, change in zip(groups, *relative(totals), found, strict=True):
        yield Change(attribute, group, "impact_ratio", was.item(), is_.item(), change)


def _leader(totals: FloatArray, size: int) -> int | None:
    """Return the group with the highest rate; None if no group has one above 0."""
    rates = divided(totals[:size], totals[size:])
    return int(np.nanargmax(rates)) if (rates > 0).any() else None


def _relative(totals: FloatArray, size: int, leader: int | None) -> FloatArray:
    rates = divided(totals[..., :size], totals[..., size:])
    return divided(rates, rates[..., leader, None])


def _judged(change: Change, p: float | None) -> Change:
    direction: Direction = "cannot_tell"
    if p is None:
        direction = "too_few"
    elif p <= ALPHA:
        direction = "up" if change.change.value > 0 else "down"
    return replace(change, change=replace(change.change, p=p), direction=direction)


def as_json(comparison: Comparison) -> Mapping[str, object]:
    """Return a comparison as plain data; what is undefined is None."""
    return {
        "format": 1,
        **{name: getattr(comparison, name) for name in COUNTS},
        "too_many_failed": list(comparison.too_many_failed),
        "changes": [_plain(asdict(it)) for it in comparison.changes],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(held) for key, held in value.items()}
    return None if isinstance(value, float) and value != value else value


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``comparison.json`` and the report, and return the files.

    Raises:
        InputError: The folder holds an audit.
    """
    if AuditFolder(folder).exists():
        raise InputError(f"The folder {folder} holds an audit; choose another.")
    content = folder / "comparison.json"
    write_beside(content, json.dumps(as_json(comparison), indent=1) + "\n")
    values = {
        "title": "What changed between two audits",
        "about": "",
        "comparison": comparison,
        "sentences": comparison.sentences(),
        "changes": by_attribute(comparison.changes),
    }
    return [content, *write_report(folder, "audit_comparison", values, [])]
