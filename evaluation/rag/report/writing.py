"""Putting the report of Fair RAG together, and writing it into the folder of its experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.report.markdown import to_markdown
from fairqr.evaluation.experiments.report.page import to_html
from fairqr.evaluation.experiments.report.parts import Block, Figure, Heading, Paragraph, Report
from fairqr.evaluation.rag.analysis.measuring import MeasuredRag, values_as_csv
from fairqr.evaluation.rag.report.exposure import disparity_blocks, relevance_blocks
from fairqr.evaluation.rag.report.groups import group_blocks
from fairqr.evaluation.rag.report.in_short import in_short
from fairqr.evaluation.rag.report.setup import (
    cost_blocks,
    failure_blocks,
    intro,
    label_blocks,
    setup_blocks,
)
from fairqr.evaluation.rag.report.use import use_blocks
from fairqr.evaluation.rag.report.utility import interval_blocks, utility_blocks
from fairqr.evaluation.rag.store import RagStore
from fairqr.evaluation.reports.drawing import can_draw

__all__ = ["build_rag_report", "write_rag_report"]

FIGURES = "figures"

_SECTIONS: tuple[tuple[str, Callable[[MeasuredRag], Iterator[Block]]], ...] = (
    ("Disparity by α", disparity_blocks),
    ("Relevance against disparity", relevance_blocks),
    ("Utility against exposure", utility_blocks),
    ("Random rankings against the deterministic one", interval_blocks),
    ("What answers use", use_blocks),
    ("", group_blocks),
    ("Labels of utility", label_blocks),
    ("What failed, and over how many things numbers are", failure_blocks),
    ("Cost", cost_blocks),
    ("How it was measured", setup_blocks),
)


def write_rag_report(store: RagStore, measured: MeasuredRag) -> list[Path]:
    """Write ``report.md``, its figures in ``figures/``, ``report.html`` and ``measures.csv``.

    Equal results give equal files.

    Returns:
        The files that were written.

    Raises:
        InputError: scipy is not installed, or matplotlib is not; without matplotlib both reports
            are written without plots.
    """
    report = build_rag_report(measured)
    figures = [block for block in report.blocks if isinstance(block, Figure)]
    # Figures first, so that the report never names one that is not there.
    written = [store.write(f"{FIGURES}/{figure.name}.svg", figure.svg) for figure in figures]
    markdown = store.write("report.md", to_markdown(report, FIGURES))
    page = store.write("report.html", to_html(report))
    values = store.write("measures.csv", values_as_csv(measured))
    if not can_draw():
        raise InputError(
            f"{markdown} and {page.name} were written without plots, which need matplotlib; "
            "install it with: pip install 'fairqr[evaluation]'"
        )
    return [markdown, page, values, *written]


def build_rag_report(measured: MeasuredRag) -> Report:
    """Put the report together.

    Raises:
        InputError: scipy is not installed.
    """
    blocks = [*intro(measured)]
    if not can_draw():
        blocks.append(Paragraph("There are no plots: matplotlib was not installed."))
    blocks += in_short(measured)
    for title, section in _SECTIONS:
        if title:
            blocks.append(Heading(title))
        blocks += section(measured)
    return Report(measured.manifest.experiment.title, tuple(blocks))
