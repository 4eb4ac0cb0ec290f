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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairqr.evaluation.audit.answer_figures import STAGES, AnswerFigures
from fairqr.evaluation.audit.estimates import Estimate
from fairqr.evaluation.audit.figures import ALPHA, FOUR_FIFTHS, GroupFigures
from fairqr.evaluation.audit.measuring import MENDED_STEP, AuditFigures, Contribution
from fairqr.evaluation.audit.mending import CurvePoint
from fairqr.evaluation.audit.pair_figures import PairFigures
from fairqr.evaluation.audit.probing import ProbeFigures
from fairqr.evaluation.audit.queries import AuditQuery, Queries
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.reports.tables import frame
from fairqr.evaluation.reports.text import plain
from fairqr.retrieval.dimension import TIMES

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "ESTIMATES",
    "FORMAT",
    "AuditFrames",
    "AuditOutcome",
    "PrintedQuery",
    "after_mending",
    "answers_csv",
    "audit_json",
    "frames_of",
    "is_combination",
    "mended_exposure",
    "pairs_csv",
    "queries_csv",
    "results_csv",
    "shares_of_candidates",
]

FORMAT = 1
"""Of ``audit.json``; it changes when a name or the meaning of a figure does."""

DIGITS = 12
DIGITS_BY_QUERY = 6

ESTIMATES = (
    "exposure",
    "target",
    "supply",
    "lack",
    "lean",
    "ranking_gap",
    "supply_gap",
    "exposure_ratio",
    "selection_rate",
    "impact_ratio",
    "absent",
    "attention",
)
"""The figures of a group that have an interval, as :class:`GroupFigures` explains them."""

PAIR_ESTIMATES = ("difference", "higher", "equal")
"""The figures of two versions that have an interval, as :class:`VersionComparison` explains."""

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
        answers: Whose documents answers use; None if no model was asked.
        probe: What a model does as a ranker; None if none was probed.
    """

    spec: AuditSpec
    queries: Queries
    figures: AuditFigures
    engine: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    is_redacted: bool = False
    pairs: PairFigures | None = None
    answers: AnswerFigures | None = None
    probe: ProbeFigures | None = None

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
        found: dict[str, list[GroupFigures]] = {}
        for group in self.figures.groups:
            found.setdefault(group.attribute, []).append(group)
        return found


def is_combination(attribute: str) -> bool:
    """Return whether an attribute combines several."""
    return TIMES in attribute


def after_mending(points: Sequence[CurvePoint]) -> CurvePoint | None:
    """Return where a re-ranking stands that leaves a tenth of today's distance."""
    return next((point for point in points if point.step == MENDED_STEP), None)


def mended_exposure(outcome: AuditOutcome) -> dict[tuple[str, str], float]:
    """Return what each group would get if rankings were mended, by attribute and group.

    Where a sample of the queries was mended, it says how much the exposure of all would change. NaN
    where nothing was mended.
    """
    found = {}
    for attribute, groups in outcome.attributes().items():
        curve = outcome.figures.costs.get(attribute, [])
        point = after_mending(curve)
        for place, it in enumerate(groups):
            change = math.nan
            if point is not None:
                change = point.exposure[place].value - curve[0].exposure[place].value
            share = it.exposure.value + change
            found[attribute, it.group] = share if math.isnan(share) else min(max(share, 0.0), 1.0)
    return found


def audit_json(outcome: AuditOutcome) -> bytes:
    """Return ``audit.json``; equal outcomes give equal bytes.

    Names are sorted, numbers have 12 significant digits, and what has no value is null.
    """
    found = _rounded(_audit_object(outcome))
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # Half of a pair of surrogates, as a JSON of documents may hold, becomes an escape of JSON.
    return f"{text}\n".encode(errors="backslashreplace")


def _audit_object(outcome: AuditOutcome) -> dict[str, Any]:
    figures, queries, counts = outcome.figures, outcome.queries, outcome.figures.counts
    printed = outcome.printed()
    return {
        "format": FORMAT,
        "kind": "fairqr audit",
        "spec": outcome.spec.model_dump(mode="json")
        | {"discount": str(outcome.spec.discount), "target": str(outcome.spec.target)},
        "engine": dict(outcome.engine),
        "relevance": counts.relevance,
        "queries": {
            "design": queries.design,
            "lines": queries.lines,
            "distinct": queries.distinct,
            "weight": queries.weight,
            "asked": counts.asked,
            "answered": counts.answered,
            "empty": counts.empty,
            "failed": counts.failed,
            "with_relevance": counts.with_relevance,
            "empty_share": counts.empty_share,
            "failed_share": counts.failed_share,
            "effective": counts.effective,
            "too_many_failed": figures.too_many_failed,
        },
        "tests": {"family": figures.tests, "correction": "Holm", "alpha": ALPHA},
        "attributes": [
            {
                "attribute": attribute,
                "groups": [group.group for group in groups],
                "unlabelled_exposure": _estimate(figures.unknown[attribute]),
                "unlabelled_candidates": figures.unlabelled[attribute],
            }
            for attribute, groups in outcome.attributes().items()
        ],
        "groups": list(_group_objects(outcome)),
        "other_choices": {
            "queries": figures.varied_over,
            "leans": [
                {
                    "choice": it.choice,
                    "attribute": it.attribute,
                    "group": it.group,
                    "lean": _estimate(it.lean),
                    "is_other": it.is_other,
                }
                for it in figures.others
            ],
        },
        "stability": figures.stability
        and {
            "queries": figures.stability.queries,
            "same": figures.stability.same,
            "overlap": figures.stability.overlap,
        },
        "costs": [
            {
                "attribute": attribute,
                "points": [_point(point, outcome.attributes()[attribute]) for point in points],
            }
            for attribute, points in figures.costs.items()
        ],
        "contributions": [_contribution(it, printed[it.query]) for it in figures.contributions],
        "pairs": outcome.pairs and _pairs(outcome.pairs),
        "answers": outcome.answers and _answers(outcome.answers),
        "probe": outcome.probe and _probe(outcome.probe),
    }


def _probe(figures: ProbeFigures) -> dict[str, Any]:
    return {
        "model": figures.model,
        "attribute": figures.attribute,
        "words": list(figures.words),
        "queries": figures.queries,
        "one_sided": figures.one_sided,
        "failed": figures.failed,
        "verdict": figures.verdict,
        "sentence": figures.sentence,
        "pairs": figures.pairs,
        "protected_wins": figures.protected_wins,
        "unprotected_wins": figures.unprotected_wins,
        "flips": figures.flips,
        "p": figures.p,
        "lists": [{"asker": asker, **_estimate(it)} for asker, it in figures.lists.items()],
    }


def _answers(figures: AnswerFigures) -> dict[str, Any]:
    return {
        "generator": figures.generator,
        "attributor": figures.attributor,
        "questions": figures.questions,
        "answered": figures.answered,
        "failed": figures.failed,
        "citing": figures.citing,
        "documents": figures.documents,
        "unjudged": figures.unjudged,
        "groups": [
            {
                "attribute": it.attribute,
                "group": it.group,
                **{stage: _estimate(getattr(it, stage)) for stage in STAGES},
            }
            for it in figures.groups
        ],
    }


def _pairs(figures: PairFigures) -> dict[str, Any]:
    return {
        "scored_by": figures.scorer,
        "queries": figures.queries,
        "failed": figures.failed,
        "missing": figures.missing,
        "tests": {
            "family": sum(it.difference.p is not None for it in figures.comparisons),
            "correction": "Holm",
            "alpha": ALPHA,
        },
        "comparisons": [
            {
                "first": it.first,
                "second": it.second,
                "pairs": it.pairs,
                **{name: _estimate(getattr(it, name)) for name in PAIR_ESTIMATES},
            }
            for it in figures.comparisons
        ],
    }


def _group_objects(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    shares, mended = shares_of_candidates(outcome.figures.groups), mended_exposure(outcome)
    for group, share in zip(outcome.figures.groups, shares, strict=True):
        key = (group.attribute, group.group)
        ratio = group.impact_ratio.value
        yield {
            "attribute": group.attribute,
            "group": group.group,
            **{name: _estimate(getattr(group, name)) for name in ESTIMATES},
            "tested": group.tested,
            "verdict": group.verdict,
            "flips": group.flips,
            "lean_bounds": [group.lean_low, group.lean_high],
            "if_mended": mended[key],
            "detectable": outcome.figures.detectable.get(key, math.nan),
            "below_four_fifths": None if math.isnan(ratio) else ratio < FOUR_FIFTHS,
            "selected": group.selected,
            "candidates": group.candidates,
            "share_of_candidates": share,
            "is_small": group.is_small,
            "shrunken_rate": group.shrunken_rate,
        }


def shares_of_candidates(groups: Iterable[GroupFigures]) -> list[float]:
    """Return which share each group has of the labelled candidates of its attribute."""
    listed = list(groups)
    totals: dict[str, float] = {}
    for it in listed:
        totals[it.attribute] = totals.get(it.attribute, 0.0) + it.candidates
    return [
        it.candidates / totals[it.attribute] if totals[it.attribute] else math.nan for it in listed
    ]


def _estimate(it: Estimate) -> dict[str, Any]:
    has_interval = not (math.isnan(it.low) or math.isnan(it.high))
    return {
        "value": it.value,
        "interval": [it.low, it.high] if has_interval else None,
        "queries": it.queries,
        "p": it.p,
    }


def _point(point: CurvePoint, groups: list[GroupFigures]) -> dict[str, Any]:
    return {
        "step": point.step,
        "divergence": _estimate(point.divergence),
        "relevance": _estimate(point.relevance),
        "exposure": [
            {"group": group.group, **_estimate(it)}
            for group, it in zip(groups, point.exposure, strict=True)
        ],
    }


def _contribution(it: Contribution, query: PrintedQuery) -> dict[str, Any]:
    return {
        "attribute": it.attribute,
        "group": it.group,
        "number": query.number,
        "query": query.id,
        "text": query.text,
        "share": it.share,
        "lean": it.lean,
        "shown": list(it.shown),
        "fair": list(it.fair),
    }


def _rounded(found: Any) -> Any:
    """Return an object for JSON, its numbers rounded; NaN becomes None."""
    if isinstance(found, float):
        return float(f"{found:.{DIGITS}g}") + 0.0 if math.isfinite(found) else None
    if isinstance(found, dict):
        return {name: _rounded(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_rounded(value) for value in found]
    return found


def results_csv(outcome: AuditOutcome) -> str:
    """Return ``results.csv``: one row for each attribute and group."""
    return _csv(_group_rows(outcome), GROUP_COLUMNS, DIGITS)


def queries_csv(outcome: AuditOutcome) -> str:
    """Return ``queries.csv``: one row for each query, attribute and group.

    A query that found nothing or failed has one row, without an attribute.
    """
    return _csv(_query_rows(outcome), QUERY_COLUMNS, DIGITS_BY_QUERY)


def answers_csv(outcome: AuditOutcome) -> str:
    """Return ``answers.csv``: one row for each attribute and group."""
    return _csv(_answer_rows(outcome), ANSWER_COLUMNS, DIGITS)


def pairs_csv(outcome: AuditOutcome) -> str:
    """Return ``pairs.csv``: one row for each two versions; empty but for its head without pairs."""
    return _csv(_pair_rows(outcome), PAIR_COLUMNS, DIGITS)


_ENDS = ("", "_low", "_high", "_queries")
GROUP_COLUMNS = (
    "attribute",
    "group",
    "verdict",
    "tested",
    "p",
    "flips",
    *(f"{name}{end}" for name in ESTIMATES for end in _ENDS),
    "lean_least",
    "lean_greatest",
    "if_mended",
    "detectable",
    "below_four_fifths",
    "selected",
    "candidates",
    "share_of_candidates",
    "is_small",
    "shrunken_rate",
)
QUERY_COLUMNS = (
    "number",
    "query",
    "text",
    "weight",
    "status",
    "attribute",
    "group",
    "exposure",
    "target",
    "lean",
    "unlabelled",
)

PAIR_COLUMNS = (
    "first",
    "second",
    "pairs",
    *(f"{name}{end}" for name in PAIR_ESTIMATES for end in _ENDS),
    "p",
)
ANSWER_COLUMNS = (
    "attribute",
    "group",
    *(f"{stage}{end}" for stage in STAGES for end in _ENDS),
)
COST_COLUMNS = (
    "attribute",
    "step",
    "divergence",
    "relevance",
    "group",
    "exposure",
    "low",
    "high",
)
CONTRIBUTION_COLUMNS = (
    "attribute",
    "group",
    "number",
    "query",
    "text",
    "share",
    "lean",
    "shown",
    "fair",
)


def _group_rows(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    for group, row in zip(outcome.figures.groups, _group_objects(outcome), strict=True):
        for name in ESTIMATES:
            row |= _with_ends(name, getattr(group, name))
        row["p"] = getattr(group, group.tested).p
        row["lean_least"], row["lean_greatest"] = row.pop("lean_bounds")
        yield row


def _pair_rows(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    for it in outcome.pairs.comparisons if outcome.pairs else ():
        row: dict[str, Any] = {"first": it.first, "second": it.second, "pairs": it.pairs}
        for name in PAIR_ESTIMATES:
            row |= _with_ends(name, getattr(it, name))
        yield row | {"p": it.difference.p}


def _answer_rows(outcome: AuditOutcome) -> Iterator[dict[str, Any]]:
    for it in outcome.answers.groups if outcome.answers else ():
        row: dict[str, Any] = {"attribute": it.attribute, "group": it.group}
        for stage in STAGES:
            row |= _with_ends(stage, getattr(it, stage))
        yield row


def _with_ends(name: str, it: Estimate) -> dict[str, Any]:
    """Return the columns of an estimate."""
    values = (it.value, it.low, it.high, it.queries)
    return dict(zip((f"{name}{end}" for end in _ENDS), values, strict=True))


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
        columns = [array.tolist() for array in (part.exposure, part.target, part.lean)]
        unlabelled = part.unknown.tolist()
        for row, query in enumerate(part.queries):
            shared = first(query, "ok") | {"attribute": part.attribute}
            for place, group in enumerate(part.groups):
                exposure, target, lean = (column[row][place] for column in columns)
                yield shared | {
                    "group": group,
                    "exposure": exposure,
                    "target": target,
                    "lean": lean,
                    "unlabelled": unlabelled[row],
                }
    for it in outcome.figures.unanswered:
        yield dict.fromkeys(QUERY_COLUMNS) | first(it.query, it.status)


def _csv(rows: Iterable[Mapping[str, Any]], columns: tuple[str, ...], digits: int) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name), digits) for name in columns] for row in rows)
    return stream.getvalue()


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
        choices: The lean of each group by other choices than the audit's own.
        costs: A row for each point of a curve of mending, and group.
        contributions: The queries that add most to a lean, with the ids that are shown and those
            that a fair re-ranking would show.
        pairs: A row for each two versions of documents, as in ``pairs.csv``; empty without any.
        answers: A row for each attribute and group, as in ``answers.csv``; empty without any.
    """

    groups: DataFrame
    queries: DataFrame
    choices: DataFrame
    costs: DataFrame
    contributions: DataFrame
    pairs: DataFrame
    answers: DataFrame


def frames_of(outcome: AuditOutcome) -> AuditFrames:
    """Return the figures as DataFrames; what has no value is NaN.

    Raises:
        InputError: pandas is not installed.
    """
    found = _audit_object(outcome)
    choices = [
        {**it, "lean": it["lean"]["value"], **_ends(it["lean"])}
        for it in found["other_choices"]["leans"]
    ]
    costs = [
        {
            "attribute": curve["attribute"],
            "step": point["step"],
            "divergence": point["divergence"]["value"],
            "relevance": point["relevance"]["value"],
            "group": it["group"],
            "exposure": it["value"],
            **_ends(it),
        }
        for curve in found["costs"]
        for point in curve["points"]
        for it in point["exposure"]
    ]
    groups = [{name: row[name] for name in GROUP_COLUMNS} for row in _group_rows(outcome)]
    return AuditFrames(
        groups=frame(GROUP_COLUMNS, groups),
        queries=frame(QUERY_COLUMNS, list(_query_rows(outcome))),
        choices=frame(("choice", "attribute", "group", "lean", *_LOW_HIGH, "is_other"), choices),
        costs=frame(COST_COLUMNS, costs),
        contributions=frame(CONTRIBUTION_COLUMNS, found["contributions"]),
        pairs=frame(PAIR_COLUMNS, list(_pair_rows(outcome))),
        answers=frame(ANSWER_COLUMNS, list(_answer_rows(outcome))),
    )


_LOW_HIGH = ("low", "high")


def _ends(estimate: Mapping[str, Any]) -> dict[str, float]:
    return dict(zip(_LOW_HIGH, estimate["interval"] or (math.nan, math.nan), strict=True))
