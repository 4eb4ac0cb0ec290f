"""The sections with plots: trade-off, rounds, drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fairqr.evaluation.experiments.measuring import Measured, Table
from fairqr.evaluation.experiments.report import numbers
from fairqr.evaluation.experiments.report.drawing import can_draw
from fairqr.evaluation.experiments.report.naming import family_of, headings, roles_of, title_of
from fairqr.evaluation.experiments.report.panels import Line, Panel, draw_panels
from fairqr.evaluation.experiments.report.parts import Block, Figure, Paragraph
from fairqr.evaluation.experiments.report.rounds import Series, Value, refining, series
from fairqr.evaluation.experiments.report.scatter import Point, draw_trade_off
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.evaluation.experiments.store import Record, Round, file_name
from fairqr.evaluation.measures.product import Product

__all__ = ["divergence_figure", "drift_figure", "exposure_figure", "trade_off_blocks"]

MOST_GROUPS = 7


def trade_off_blocks(measured: Measured, table: Table) -> Iterator[Block]:
    """Yield the plot of relevance against fairness, or why there is none."""
    experiment, roles = measured.manifest.experiment, roles_of(table)
    if roles.relevance is None or roles.fairness is None:
        yield Paragraph(
            "There is no plot of relevance against fairness: the experiment lacks a measure of "
            "one of them."
        )
        return
    points = _points(experiment, table, roles.relevance, roles.fairness)
    if not points or not can_draw():
        return
    names = headings(experiment, table)
    results = next(iter(table.evaluations.values())).results
    main, up = results[roles.main].measure, results[roles.fairness].measure.higher_is_better
    both = {roles.relevance, roles.fairness}
    product = isinstance(main, Product) and {str(factor) for factor in main.factors} == both
    x, y = names[roles.relevance], names[roles.fairness]
    curves = (
        " On a dotted curve the product of both means is the same; the mean of the products, which "
        "the table has, differs a little."
        if product
        else ""
    )
    listed = "; ".join(f"{p.name} {p.x[0]:.4f}, {p.y[0]:.4f}" for p in points)
    yield Figure(
        file_name("trade_off", table.attribute, table.queries),
        f"{title_of(table)}: relevance ({x}) against fairness ({y}) of each system, means over "
        f"topics with 95% intervals. Best is {'top' if up else 'top, where it is low,'} "
        f"right.{curves}",
        f"Scatter plot of {x} and {y}: {listed}.",
        draw_trade_off(points, x, y, product=product, y_up=up is not False),
    )


def _points(experiment: Experiment, table: Table, x: str, y: str) -> list[Point]:
    families = {system.name: family_of(system) for system in experiment.all_systems()}
    points = []
    for name, evaluation in table.evaluations.items():
        across, upward = evaluation.results[x], evaluation.results[y]
        if across.mean is not None and upward.mean is not None:
            points.append(
                Point(
                    name,
                    families[name],
                    (across.mean, across.interval),
                    (upward.mean, upward.interval),
                )
            )
    return points


def exposure_figure(measured: Measured, table: Table) -> Iterator[Block]:
    """Yield the plot of the exposure of groups by round."""
    systems = refining(measured.manifest.experiment, table)
    if not systems or not can_draw():
        return
    targets = _mean_target([record for records in systems.values() for record in records])
    shown = sorted(targets, key=lambda group: -targets[group])[:MOST_GROUPS]
    panels, told = [], []
    for name, records in systems.items():
        lines: list[Line] = []
        counts: tuple[int, ...] = ()
        target = _mean_target(records)
        for group in shown:
            found = series(records, _exposure_of(group))
            lines.append(Line(group, found.means, target[group]))
            counts = found.counts
        panels.append(Panel(name, tuple(lines), counts))
        told.append(f"{name}: {_said(lines[0])}")
    left = len(targets) - len(shown)
    hidden = f" {numbers.count(left, 'group')} with a lower target are not shown." if left else ""
    yield Figure(
        file_name("exposure", table.attribute, table.queries),
        f"{title_of(table)}: the share of exposure of each group in the list that each round had, "
        "before any re-ranking (round 0 is the original query), and its target (dashed), as the "
        "search estimates it. Means over the topics that still ran and had a labelled document, "
        "whose number stands below the round: those that were near the target have stopped."
        f"{hidden}",
        f"Lines by round, one panel for each system. Exposure of {shown[0]}: {'; '.join(told)}.",
        draw_panels(panels, "share of exposure", context=False, zero=True),
    )


def divergence_figure(measured: Measured, table: Table) -> Iterator[Block]:
    """Yield the plot of the divergence by round."""
    systems = refining(measured.manifest.experiment, table)
    if not systems or not can_draw():
        return
    yield _by_system(
        "divergence",
        {name: series(found, lambda _, one: one.divergence) for name, found in systems.items()},
        table,
        "the divergence KL(ε*‖ε) of each round's list, before any re-ranking, from the target that "
        "the search estimates, in nats",
        "divergence (nats)",
    )


def drift_figure(table: Table, drift: dict[str, Series], measure: str) -> Iterator[Block]:
    """Yield the plot of relevance by round."""
    if drift and can_draw():
        yield _by_system(
            "drift",
            drift,
            table,
            f"{measure} of the list that each round had, before any re-ranking",
            measure,
        )


def _by_system(
    kind: str, systems: dict[str, Series], table: Table, what: str, label: str
) -> Figure:
    panels = [
        Panel(name, (Line(name, found.means),), found.counts) for name, found in systems.items()
    ]
    told = "; ".join(f"{panel.title}: {_said(panel.lines[0])}" for panel in panels)
    return Figure(
        file_name(kind, table.attribute, table.queries),
        f"{title_of(table)}: {what}. Means over the topics that still ran and had a value, whose "
        "number stands below the round; the other systems are grey.",
        f"Lines by round, one panel for each system. Means: {told}.",
        draw_panels(panels, label, context=True, zero=True),
    )


def _mean_target(records: Sequence[Record]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for record in records:
        for group, share in record.target.items():
            found.setdefault(group, []).append(share)
    return {group: float(np.mean(shares)) for group, shares in found.items()}


def _exposure_of(group: str) -> Value:
    """Return what gives a group's exposure; None where no document has a label."""

    def exposure(_: Record, one: Round) -> float | None:
        return one.exposure.get(group, 0.0) if any(one.exposure.values()) else None

    return exposure


def _said(line: Line) -> str:
    return ", ".join(numbers.value(mean) for mean in line.values)
