"""The sections on answers: utility against exposure, and the five intervals of disparity."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Paragraph
from fairqr.evaluation.rag.analysis.curves import EDGES, IntervalCell, IntervalRow, interval_rows
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

__all__ = ["interval_blocks", "utility_blocks"]

LEVEL = 0.05

_OF_ANSWERS = (Name.EU, Name.EU_MAX, Name.EU_MAX_RETRIEVER, Name.EU_MAX_FAIR_RAG)


def utility_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield expected utility by policy, and against EE-R and EE-D."""
    utilities = {entry.name: entry for entry in measured.manifest.collections}
    yield Paragraph(
        "Expected utility (EU) is the mean over the answered samples; generations that failed are "
        "left out, and empty answers are worth 0. u_max is the best that any answer of the same "
        "generator to the same query was worth: over oracle samples, all α, all retrievers and the "
        "deterministic rankings; or, as the paper's code has it, over the oracle and the α of the "
        "same retriever."
    )
    for title, frame in by_collection(measured):
        entry = utilities.get(frame.collections[0])
        if entry:
            yield Paragraph(
                f"{title}: utility is {entry.utility}, at most {entry.greatest:g} ({entry.task})."
            )
        for x, end in ((Name.EE_R, "right"), (Name.EE_D, "left")):
            lines = lines_of(frame, x, Name.EU_MAX, by="generator")
            if lines and can_draw():
                yield against(
                    title,
                    lines,
                    x,
                    Name.EU_MAX,
                    reading="A line for each generator, the mean over retrievers, over α, written "
                    "at the points, and the deterministic rankings (fixed); the star is the "
                    f"oracle, the mean over generators. Up and to the {end} is best.",
                )
        yield parts.Table(
            f"{title}: expected utility, as it is and by u_max, as the mean over queries with its "
            "95% interval and over how many queries it is.",
            ("generator", "retriever", "policy", *map(str, _OF_ANSWERS)),
            tuple(
                (*map(Cell, names), *(mean_cell(found.mean(name)) for name in _OF_ANSWERS))
                for names, _, found in policy_rows(frame, by_generator=True)
            ),
        )
        if text := why_undefined(frame, Name.EU_MAX):
            yield Paragraph(f"{title}: {text}")
        yield from _official(measured, title, frame.collections[0])


def _official(measured: MeasuredRag, title: str, collection: str) -> Iterator[Block]:
    """Yield the measures that LaMP's own evaluation gives, where it has any."""
    rows = [(key, found) for key, found in measured.official.items() if key[0] == collection]
    if not rows:
        return
    names = list(dict.fromkeys(name for _, found in rows for name in found.values))
    yield parts.Table(
        f"{title}: LaMP's own measures of the answers from deterministic rankings. Generations "
        "that failed are left out.",
        ("generator", "retriever", *names, "answers", "failed"),
        tuple(
            (
                Cell(generator),
                Cell(retriever),
                *(Cell(numbers.value(found.values.get(name))) for name in names),
                Cell(str(found.answers)),
                Cell(str(found.failed)),
            )
            for (_, generator, retriever), found in rows
        ),
    )


def interval_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield the five-interval tables, by both conventions."""
    for convention, disparity, utility in (
        ("by what can be reached", Name.EE_D, Name.EU_MAX),
        ("as “Towards Fair RAG” normalises", Name.EE_D_K, Name.EU_MAX_FAIR_RAG),
    ):
        rows = interval_rows(measured.frame, disparity, utility)
        if rows:
            yield _interval_table(measured, convention, disparity, utility, rows)


def _interval_table(
    measured: MeasuredRag,
    convention: str,
    disparity: Name,
    utility: Name,
    rows: list[IntervalRow],
) -> parts.Table:
    titles = {entry.name: entry.title for entry in measured.manifest.collections}
    header = [f"{disparity} [{low:g}, {high:g})" for low, high in itertools.pairwise(EDGES)]
    return parts.Table(
        f"Utility of random rankings less that of the deterministic ranking, by how uneven the "
        f"exposure is, {convention}: {utility}, the mean over queries, for each of which the "
        f"pairs with an α whose {disparity} is in the interval are averaged first. * where the "
        "paired t test over queries, corrected by Holm for all cells of the table, has p at most "
        f"{LEVEL:g}; n counts pairs / queries. The "
        "deterministic ranking has exactly 1 and stands outside; so do pairs whose rankings were "
        "all the same.",
        (
            "collection",
            "generator",
            "retriever",
            "deterministic",
            *header,
            "all the same",
            "without a value",
        ),
        tuple(
            (
                Cell(titles.get(row.collection, row.collection)),
                Cell(row.generator),
                Cell(row.retriever),
                Cell(numbers.value(row.deterministic), f"n={row.queries}"),
                *map(_interval_cell, row.cells),
                Cell(str(row.fixed)),
                Cell(str(row.left_out)),
            )
            for row in rows
        ),
    )


def _interval_cell(cell: IntervalCell) -> Cell:
    if not cell.pairs:
        return Cell("–", "n=0 / 0")
    star = "*" if cell.corrected is not None and cell.corrected <= LEVEL else ""
    note = f"p {numbers.p_value(cell.corrected)}, n={cell.pairs} / {cell.queries}"
    return Cell(numbers.difference(cell.difference) + star, note)
