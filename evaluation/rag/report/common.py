"""What the sections of the report share: cells of tables, rows, lines of plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.report import numbers
from fairqr.evaluation.experiments.report.parts import Cell, Figure
from fairqr.evaluation.rag.analysis.frame import Frame, Mean, PolicyKey, policy_name
from fairqr.evaluation.rag.analysis.measuring import MeasuredRag
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.reports.series import Point, Series, draw_series

__all__ = [
    "ORACLE",
    "against",
    "by_collection",
    "lines_of",
    "mean_cell",
    "policy_rows",
    "short_name",
    "title_of",
    "why_undefined",
]

ORACLE: PolicyKey = ("oracle", None)


def title_of(measured: MeasuredRag, collection: str) -> str:
    """Return what a collection is called, for people."""
    for entry in measured.manifest.collections:
        if entry.name == collection:
            return entry.title
    return collection


def by_collection(measured: MeasuredRag) -> Iterator[tuple[str, Frame]]:
    """Yield the title and the cells of each collection."""
    for name in measured.frame.collections:
        yield title_of(measured, name), measured.frame.select(collection=name)


def mean_cell(mean: Mean, *, signed: bool = False) -> Cell:
    """Return a mean with its interval and over how many queries it is."""
    text = numbers.difference(mean.value) if signed else numbers.value(mean.value)
    return Cell(text, " ".join(filter(None, (numbers.span(mean.interval), f"n={mean.count}"))))


def short_name(policy: PolicyKey) -> str:
    """Return what stands beside a point."""
    return "fixed" if policy[0] == "deterministic" else policy_name(policy).removeprefix("α = ")


def policy_rows(
    frame: Frame, *, by_generator: bool
) -> Iterator[tuple[tuple[str, ...], PolicyKey, Frame]]:
    """Yield what a table has a row for: its names, its policy and its cells.

    Args:
        frame: Of one collection.
        by_generator: Whether each generator has rows of its own; else they are averaged by query.
    """
    for generator in frame.generators if by_generator else [None]:
        mine = frame if generator is None else frame.select(generator=generator)
        names = () if generator is None else (generator,)
        for retriever in mine.retrievers:
            found = mine.select(retriever=retriever)
            for policy in found.policies:
                yield (*names, retriever, policy_name(policy)), policy, found.select(policy=policy)
        if ORACLE in mine.policies:
            yield (*names, "none", "oracle"), ORACLE, mine.select(policy=ORACLE)


def why_undefined(frame: Frame, name: Name) -> str:
    """Say how many values of a measure are missing, and why; empty where none is."""
    found = frame.undefined(name)
    if not found:
        return ""
    told = "; ".join(f"{count:,} × {reason.sentence}" for reason, count in found.items())
    number = numbers.count(len(frame.cells), "pair")
    return f"of {number} of a policy and a query, {name} has no value for: {told}"


def lines_of(frame: Frame, x: Name, y: Name, *, by: str) -> list[Series]:
    """Return a line for each retriever or generator over its policies, by α; and the oracle.

    Args:
        frame: Of one collection.
        x: The measure across, of which a point has the mean over queries.
        y: The measure upward.
        by: ``retriever``, mean over generators, or ``generator``, mean over retrievers.
    """
    found = []
    for name in frame.retrievers if by == "retriever" else frame.generators:
        mine = frame.select(**{by: name})  # type: ignore[arg-type]
        policies = [policy for policy in mine.policies if policy[0] != "oracle"]
        points = [
            point
            for policy in policies
            if (point := _point(mine.select(policy=policy), x, y, short_name(policy)))
        ]
        if points:
            found.append(Series(name, tuple(points)))
    oracle = _point(frame.select(policy=ORACLE), x, y, "")
    if found and oracle:
        found.append(Series("oracle", (oracle,), own=True))
    return found


def _point(frame: Frame, x: Name, y: Name, label: str) -> Point | None:
    across, upward = frame.by_query(x), frame.by_query(y)
    both = [query for query in across if query in upward]
    if not both:
        return None
    means = [sum(found[query] for query in both) / len(both) for found in (across, upward)]
    return Point(means[0], means[1], label)


def against(
    title: str,
    lines: Sequence[Series],
    x: Name,
    y: Name,
    *,
    reading: str,
    diagonal: bool = False,
) -> Figure:
    """Return the plot of one measure against another.

    Args:
        title: Of the collection.
        lines: At least one.
        x: The measure across.
        y: The measure upward.
        reading: How to read it, whole sentences.
        diagonal: Whether to draw y = x.
    """
    told = "; ".join(
        f"{line.name}: "
        + ", ".join(f"{p.label} ({p.x:.3f}, {p.y:.3f})".strip() for p in line.points)
        for line in lines
    )
    return Figure(
        file_name(str(y), str(x), title),
        f"{title}: {y} against {x}, means over the queries that have both. {reading}",
        f"Lines of {y} over {x}: {told}.",
        draw_series(lines, str(x), str(y), diagonal=diagonal),
    )
