"""What changed between two audits, over the queries that both asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.base.statistics import corrected_by_holm, stream
from fairqr.evaluation.audit.bundle import AuditFolder, AuditManifest
from fairqr.evaluation.audit.estimates import (
    Estimate,
    effective_queries,
    jackknifed,
    randomisation_p,
)
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.measuring import ByQuery
from fairqr.evaluation.reports.writer import write_report
from fairqr.retrieval.exposure import FloatArray

__all__ = ["FIGURES", "Change", "Comparison", "as_json", "compare", "write_comparison"]

ALPHA = 0.05
FIGURES = ("lean", "exposure", "impact_ratio")
SAME = ("k", "discount", "target")
"""What both audits must measure by."""

WORDS = {
    "up": "went up",
    "down": "went down",
    "cannot_tell": "cannot be told from chance",
    "too_few": "too few queries to tell",
}
"""What the report calls a direction."""

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
    """

    first: AuditManifest
    second: AuditManifest
    queries: int
    only_first: int
    only_second: int
    effective: float
    tests: int
    changes: tuple[Change, ...]

    def sentences(self) -> list[str]:
        """Return what changed, in plain words."""
        said = [
            f"Compared over {self.queries:,} queries that both audits answered; "
            f"{self.only_first:,} were asked only in the first, {self.only_second:,} only in the "
            "second."
        ]
        sure = [it for it in self.changes if it.direction in ("up", "down")]
        said += [
            f"{it.attribute}: the {it.figure} of {it.group} went {it.direction} from "
            f"{it.before:.3f} to {it.after:.3f}."
            for it in sure
        ]
        if not sure:
            too_few = all(it.direction == "too_few" for it in self.changes if _is_tested(it))
            said.append(
                "There are too few common queries to tell what changed."
                if too_few
                else "No change could be told from chance. This does not show that there is none."
            )
        return said


def _is_tested(change: Change) -> bool:
    return change.figure != "impact_ratio"


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
    after_by_name = {it.attribute: it for it in second.figures.by_query}
    common: list[str] = []
    changes: list[Change] = []
    weights = np.zeros(0)
    for before in first.figures.by_query:
        after = after_by_name.get(before.attribute)
        if after is None or after.groups != before.groups:
            continue
        places = {query: place for place, query in enumerate(after.queries)}
        common = [query for query in before.queries if query in places]
        if not common:
            raise InputError("The audits answered no query that is the same in both.")
        own = {query: place for place, query in enumerate(before.queries)}
        rows = np.array([own[query] for query in common])
        other = np.array([places[query] for query in common])
        weights = before.weights[rows] / before.weights.sum()
        weights = weights + after.weights[other] / after.weights.sum()
        changes += _changes(before, after, rows, other, weights, first.spec.seed)
    if not changes:
        raise InputError("The audits have no attribute with the same groups in both.")
    tested = [it for it in changes if _is_tested(it)]
    corrected = iter(corrected_by_holm([it.change.p for it in tested]))
    changes = [_judged(it, next(corrected)) if _is_tested(it) else it for it in changes]
    return Comparison(
        first=first.manifest,
        second=second.manifest,
        queries=len(common),
        only_first=len(_ids(first) - _ids(second)),
        only_second=len(_ids(second) - _ids(first)),
        effective=effective_queries(weights),
        tests=sum(it.change.p is not None for it in changes),
        changes=tuple(changes),
    )


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
    before: ByQuery,
    after: ByQuery,
    rows: FloatArray,
    other: FloatArray,
    weights: FloatArray,
    seed: int,
) -> Iterator[Change]:
    for figure in ("lean", "exposure"):
        one, two = getattr(before, figure)[rows], getattr(after, figure)[other]
        known = ~np.isnan(one + two).any(axis=1)
        if not known.any():
            continue
        one, two, by = one[known], two[known], weights[known]
        parts = np.concatenate([np.ones((len(one), 1)), two - one], axis=1)
        changed = jackknifed(parts, by, lambda t: t[..., 1:] / t[..., :1])
        random = stream(seed, f"comparison {before.attribute} {figure}")
        tests = randomisation_p(two - one, by, random)
        for place, group in enumerate(before.groups):
            yield Change(
                before.attribute,
                group,
                figure,
                float(by @ one[:, place] / by.sum()),
                float(by @ two[:, place] / by.sum()),
                replace(changed[place], p=tests[place]),
            )
    yield from _impact_ratios(before, after, rows, other, weights)


def _impact_ratios(
    before: ByQuery, after: ByQuery, rows: FloatArray, other: FloatArray, weights: FloatArray
) -> Iterator[Change]:
    parts = np.concatenate(
        [
            before.selected[rows],
            before.candidates[rows],
            after.selected[other],
            after.candidates[other],
        ],
        axis=1,
    )
    known = ~np.isnan(parts).any(axis=1)
    if not known.any():
        return
    parts, by, size = parts[known], weights[known], len(before.groups)
    totals = by @ parts
    halves = slice(0, 2 * size), slice(2 * size, 4 * size)
    # The group that leads stays the same without a query, so that its own ratio is 1.
    leaders = [_leader(totals[half], size) for half in halves]
    if None in leaders:
        return

    def changed(t: FloatArray) -> FloatArray:
        one, two = (
            _relative(t[..., half], size, leader)
            for half, leader in zip(halves, leaders, strict=True)
        )
        return two - one

    values = [
        _relative(totals[half], size, leader) for half, leader in zip(halves, leaders, strict=True)
    ]
    found = jackknifed(parts, by, changed)
    for place, group in enumerate(before.groups):
        one, two = (float(ratios[place]) for ratios in values)
        yield Change(before.attribute, group, "impact_ratio", one, two, found[place])


def _rates(totals: FloatArray, size: int) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(totals[..., :size] / totals[..., size:])


def _leader(totals: FloatArray, size: int) -> int | None:
    """Return the group with the highest rate; None if no group has one above 0."""
    rates = _rates(totals, size)
    return int(np.nanargmax(rates)) if (rates > 0).any() else None


def _relative(totals: FloatArray, size: int, leader: int | None) -> FloatArray:
    rates = _rates(totals, size)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(rates / rates[..., leader, None])


def _judged(change: Change, p: float | None) -> Change:
    direction: Direction = "cannot_tell"
    if p is None:
        direction = "too_few"
    elif p <= ALPHA:
        direction = "up" if change.change.value > 0 else "down"
    return replace(change, change=replace(change.change, p=p), direction=direction)


def as_json(comparison: Comparison) -> Mapping[str, object]:
    """Return a comparison as plain data; what is undefined is None."""
    changes = [
        {key: _plain(value) for key, value in asdict(it).items()} for it in comparison.changes
    ]
    return {
        "format": 1,
        "queries": comparison.queries,
        "only_first": comparison.only_first,
        "only_second": comparison.only_second,
        "effective": comparison.effective,
        "tests": comparison.tests,
        "changes": changes,
    }


def _plain(value: object) -> object:
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
    by_attribute: dict[str, list[Change]] = {}
    for change in comparison.changes:
        by_attribute.setdefault(change.attribute, []).append(change)
    values = {
        "title": "What changed between two audits",
        "about": "",
        "first": comparison.first,
        "second": comparison.second,
        "sentences": comparison.sentences(),
        "parts": list(by_attribute.items()),
        "tests": comparison.tests,
        "words": WORDS,
    }
    return [content, *write_report(folder, "audit_comparison", values, [])]
