"""The sections on rankings: disparity by α, and relevance against disparity."""

from __future__ import annotations

from collections.abc import Iterator

from fairqr.base.statistics import corrected_by_holm
from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Figure, Paragraph
from fairqr.evaluation.rag.analysis.curves import (
    Curve,
    compare_policies,
    curve_of,
)
from fairqr.evaluation.rag.analysis.frame import Frame, policy_name
from fairqr.evaluation.rag.analysis.measuring import MeasuredRag
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.rag.report.common import (
    against,
    by_collection,
    lines_of,
    mean_cell,
    policy_rows,
    why_undefined,
)
from fairqr.evaluation.reports.drawing import can_draw
from fairqr.evaluation.reports.series import Point, Series, draw_series

__all__ = ["disparity_blocks", "relevance_blocks"]

LEVEL = 0.05

_OF_RANKINGS = (
    Name.EE_D,
    Name.EE_D_K,
    Name.EE_D_UNBIASED,
    Name.EE_R,
    Name.EE_R_FAIR_RAG,
    Name.EE_L,
    Name.NOT_USEFUL,
)


def disparity_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield disparity by α, the tests between α, and all measures of rankings."""
    yield Paragraph(
        "Expected exposure of the documents of each query's pool over all sampled rankings, "
        "averaged over generators by query where there are several, since each generator has its "
        "own useful documents."
    )
    for title, frame in by_collection(measured):
        if can_draw():
            yield from _by_alpha(title, frame)
        yield parts.Table(
            f"{title}: measures of the rankings, as the mean over queries with its 95% "
            "interval and over how many queries it is.",
            ("retriever", "policy", *map(str, _OF_RANKINGS)),
            tuple(
                (Cell(retriever), Cell(policy), *(mean_cell(found.mean(n)) for n in _OF_RANKINGS))
                for (retriever, policy), _, found in policy_rows(frame, by_generator=False)
            ),
        )
        yield from _tests(title, frame)


def _by_alpha(title: str, frame: Frame) -> Iterator[Block]:
    policies = [policy for policy in frame.policies if policy[0] != "oracle"]
    places = {policy: float(place) for place, policy in enumerate(policies)}
    lines = []
    for retriever in frame.retrievers:
        mine = frame.select(retriever=retriever)
        points = []
        for policy in policies:
            mean = mine.select(policy=policy).mean(Name.EE_D)
            if mean.value is not None:
                points.append(Point(places[policy], mean.value))
        if points:
            lines.append(Series(retriever, tuple(points)))
    if not lines:
        return
    told = "; ".join(
        f"{line.name}: "
        + ", ".join(f"{policy_name(policies[int(p.x)])} {p.y:.3f}" for p in line.points)
        for line in lines
    )
    yield Figure(
        file_name("disparity", title),
        f"{title}: normalised EE-D by α, mean over queries. 0 is even exposure, 1 that of one "
        "fixed ranking; the larger α, the nearer the samples are to the deterministic ranking.",
        f"Lines of EE-D by policy: {told}.",
        draw_series(
            lines,
            "policy",
            "EE-D, normalised",
            ticks=[(place, policy_name(policy)) for policy, place in places.items()],
        ),
    )


def _tests(title: str, frame: Frame) -> Iterator[Block]:
    found = [
        (retriever, test)
        for retriever in frame.retrievers
        for test in compare_policies(frame.select(retriever=retriever), Name.EE_D)
    ]
    if not found:
        return
    # For all tests of the table, not for those of one retriever.
    corrected = corrected_by_holm([test.p for _, test in found])
    rows = tuple(
        (
            Cell(retriever),
            Cell(f"{policy_name(test.other)} less {policy_name(test.one)}"),
            Cell(numbers.difference(test.difference)),
            Cell(str(test.count)),
            Cell(numbers.p_value(p)),
            Cell("–" if p is None else "yes" if p <= LEVEL else "no"),
        )
        for (retriever, test), p in zip(found, corrected, strict=True)
    )
    yield parts.Table(
        f"{title}: differences in normalised EE-D between α, over the queries where both have a "
        f"value. p is of the paired t test, corrected by Holm for all tests of this table that "
        f"have one; a difference is significant where it is at most {LEVEL:g}. Fewer than two "
        "differences, or equal ones, have none.",
        ("retriever", "difference between", "EE-D", "queries", "p", "significant"),
        rows,
    )


def relevance_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield relevance against disparity, with slope and area for each retriever."""
    for title, frame in by_collection(measured):
        lines = lines_of(frame, Name.EE_D, Name.EE_R, by="retriever")
        if lines and can_draw():
            yield against(
                title,
                lines,
                Name.EE_D,
                Name.EE_R,
                reading="A line for each retriever over its α, written at the points, and its "
                "deterministic ranking (fixed); the mean over generators. The star is the oracle, "
                "which puts useful documents first in random order. Up and to the left is best.",
            )
        yield _curves(title, frame)
        if text := why_undefined(frame, Name.EE_R):
            yield Paragraph(f"{title}: {text}")


def _curves(title: str, frame: Frame) -> parts.Table:
    rows = []
    for retriever in frame.retrievers:
        mine = frame.select(retriever=retriever)
        for convention, x, y in (
            ("bounds", Name.EE_D, Name.EE_R),
            ("fair-rag", Name.EE_D_K, Name.EE_R_FAIR_RAG),
        ):
            lines = lines_of(mine, x, y, by="retriever")
            points = [(p.x, p.y) for line in lines if not line.own for p in line.points]
            rows.append((Cell(retriever), Cell(convention), *_curve_cells(curve_of(points))))
    return parts.Table(
        f"{title}: EE-R as a function of EE-D over the policies of a retriever, its deterministic "
        "ranking among them: the slope of the least-squares line, and the area under the points "
        "(trapezoids) over the range of EE-D that there is. The mean height, area by width, can be "
        "compared between retrievers, the area only where the range is the same. Normalised by "
        "what can be reached (bounds), and as “Towards Fair RAG” does (fair-rag).",
        ("retriever", "normalisation", "slope", "area", "mean height", "range of EE-D", "policies"),
        tuple(rows),
    )


def _curve_cells(curve: Curve | None) -> tuple[Cell, ...]:
    if curve is None:
        return (Cell("–"), Cell("–"), Cell("–"), Cell("–"), Cell("0"))
    return (
        Cell(numbers.difference(curve.slope)),
        Cell(numbers.value(curve.area)),
        Cell(numbers.value(curve.height)),
        Cell(f"{numbers.value(curve.low)} to {numbers.value(curve.high)}"),
        Cell(str(curve.points)),
    )
