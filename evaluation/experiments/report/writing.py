"""Putting a report together, and writing it into the folder of its experiment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.measuring import Measured, Table
from fairqr.evaluation.experiments.report.drawing import can_draw
from fairqr.evaluation.experiments.report.effort import (
    at_once,
    cost_blocks,
    drift_blocks,
    rounds_table,
)
from fairqr.evaluation.experiments.report.figures import (
    divergence_figure,
    exposure_figure,
    trade_off_blocks,
)
from fairqr.evaluation.experiments.report.findings import findings_section
from fairqr.evaluation.experiments.report.markdown import to_markdown
from fairqr.evaluation.experiments.report.naming import title_of
from fairqr.evaluation.experiments.report.page import to_html
from fairqr.evaluation.experiments.report.parts import Block, Figure, Heading, Paragraph, Report
from fairqr.evaluation.experiments.report.published import published_section
from fairqr.evaluation.experiments.report.setup import completeness_section, intro, setup_section
from fairqr.evaluation.experiments.report.tables import result_tables
from fairqr.evaluation.experiments.specification import Section
from fairqr.evaluation.experiments.store import Store

__all__ = ["build_report", "write_report"]

FIGURES = "figures"
_TITLES: dict[Section, str] = {
    "table": "Results",
    "trade_off": "Relevance against fairness",
    "rounds": "Rounds",
    "drift": "Drift from what was asked",
    "cost": "Cost",
    "published": "Published numbers",
}


def write_report(store: Store, measured: Measured) -> list[Path]:
    """Write ``report.md``, its figures in ``figures/``, and ``report.html``.

    Equal results give equal files.

    Returns:
        The files that were written.

    Raises:
        InputError: matplotlib is not installed; both reports are then written without plots.
    """
    report = build_report(measured)
    figures = [block for block in report.blocks if isinstance(block, Figure)]
    # Figures first, so that the report never names one that is not there.
    written = [store.write(f"{FIGURES}/{figure.name}.svg", figure.svg) for figure in figures]
    markdown = store.write("report.md", to_markdown(report, FIGURES))
    page = store.write("report.html", to_html(report))
    if not can_draw():
        raise InputError(
            f"{markdown} and {page.name} were written without plots, which need matplotlib; "
            "install it with: pip install 'fairqr[evaluation]'"
        )
    return [markdown, page, *written]


def build_report(measured: Measured) -> Report:
    """Put the report together."""
    blocks = [*intro(measured)]
    if not can_draw():
        blocks.append(Paragraph("There are no plots: matplotlib was not installed."))
    blocks += findings_section(measured)
    for section in dict.fromkeys(measured.manifest.experiment.report):
        blocks += _section(section, measured)
    blocks += [*completeness_section(measured), *setup_section(measured)]
    return Report(measured.manifest.experiment.title, tuple(blocks))


def _section(section: Section, measured: Measured) -> Iterator[Block]:
    if section == "published":
        yield from published_section()
        return
    yield Heading(_TITLES[section])
    if section == "cost":
        yield Paragraph(
            "Times are of the machine that the experiment was run on, with "
            f"{at_once(measured)} searches at once, and tell systems apart rather than what a "
            "server would need. What the cache answered counts as what it cost when it was first "
            "asked for. Training of systems that learn is not included."
        )
    for table in measured.tables:
        if len(measured.tables) > 1:
            yield Heading(title_of(table), 3)
        if table.evaluations:
            yield from _of_table(section, measured, table)
        else:
            yield Paragraph(f"{title_of(table)}: no system has searched for all topics yet.")


def _of_table(section: Section, measured: Measured, table: Table) -> Iterator[Block]:
    match section:
        case "table":
            yield from result_tables(measured, table)
        case "trade_off":
            yield from trade_off_blocks(measured, table)
        case "rounds":
            yield from exposure_figure(measured, table)
            yield from divergence_figure(measured, table)
            yield from rounds_table(measured, table)
        case "drift":
            yield from drift_blocks(measured, table)
        case "cost":
            yield from cost_blocks(measured, table)
