"""The tables of a listwise probe: by ranker and asker, by window, and between askers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Paragraph
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeManifest
from fairqr.evaluation.probes.measured import (
    AskerDifference,
    ListwiseRow,
    MeasuredListwise,
)
from fairqr.evaluation.probes.report.common import (
    asker_name,
    average_cell,
    grouped,
    ranker_name,
    why_left_out,
)
from fairqr.evaluation.probes.report.leaning import (
    INITIAL,
    Lean,
    exposure_leans,
    references_of,
)

__all__ = [
    "asker_cell",
    "built_of",
    "by_collection",
    "query_side_blocks",
    "ranking_blocks",
    "window_blocks",
]


def built_of(measured: MeasuredListwise) -> dict[str, ProbeManifest]:
    """Return by name how the probe collections were built."""
    return {entry.name: entry.built for entry in measured.manifest.collections}


def by_collection(measured: MeasuredListwise) -> Iterator[tuple[str, list[ListwiseRow]]]:
    """Yield the rows of each collection; the initial order is the same for all, and comes once."""
    for name, rows in grouped((row.collection, row) for row in measured.rows):
        first = next((row for row in rows if row.ranker == INITIAL), None)
        yield name, [row for row in rows if row.ranker != INITIAL or row is first]


def asker_cell(row: ListwiseRow, built: ProbeManifest) -> Cell:
    """Return for whom a row is."""
    return Cell("any" if row.ranker == INITIAL else asker_name(row.asker, built))


def ranking_blocks(
    measured: MeasuredListwise, collections: Sequence[ProbeCollection]
) -> Iterator[Block]:
    """Yield relevance and exposure by ranker and asker."""
    experiment = measured.manifest.rankings
    several = len(experiment.windows) > 1
    built = built_of(measured)
    yield Paragraph(
        "The exposure ratio is the mean exposure of protected items over that of the others, in "
        "the whole list, v(a) = 1/ln(1+a): 1 where the groups are treated alike, above 1 where the "
        "protected group stands higher. The mean of ratios is a little above 1 even where no group "
        "is favoured, since 2 and 1/2 have the mean 1.25; tests are on the differences of both "
        "exposures, whose signs they turn at random. A lean is claimed only if the ratio is beyond "
        "both 1 and the one of lists in order of relevance: p is the greater one of the two, "
        "corrected by Holm for all rows of a table."
    )
    k = experiment.k
    references = {one.manifest.name: references_of(one) for one in collections}
    for name, rows in by_collection(measured):
        leans = exposure_leans(rows, references[name])
        yield parts.Table(
            f"{name}: relevance and exposure by ranker and asker (as table 1 of the paper), means "
            "over queries with their 95% bootstrap intervals and over how many queries they are.",
            (
                "ranker",
                *(["window"] if several else []),
                "query",
                f"P@{k}",
                f"nDCG@{k}",
                "exposure ratio",
                "sd of the ratio",
                "p of a lean",
                "queries without a ratio",
            ),
            tuple(
                (
                    Cell(row.ranker),
                    *([Cell(row.window or "none")] if several else []),
                    asker_cell(row, built[name]),
                    average_cell(row.precision),
                    average_cell(row.ndcg),
                    average_cell(row.ratio),
                    Cell(numbers.value(row.ratio.sd)),
                    _p_cell(lean),
                    why_left_out(row.ratio),
                )
                for row, lean in zip(rows, leans, strict=True)
            ),
        )
        yield from _relevance_alone(name, list(references[name].values()))


def _p_cell(lean: Lean | None) -> Cell:
    if lean is None:
        return Cell("–", "not tested")
    if lean.p is None:
        return Cell("–", "no ratio")
    few = ", too few queries" if lean.kind == "too_few" else ""
    return Cell(numbers.p_value(lean.p), f"by Holm {numbers.p_value(lean.holm_p)}{few}")


def _relevance_alone(name: str, found: Sequence[float]) -> Iterator[Block]:
    """Say what a ranker without a lean would have."""
    if found:
        mean = sum(found) / len(found)
        yield Paragraph(
            f"{name}: lists in order of relevance, and random otherwise, would have the exposure "
            f"ratio {mean:.4f} (mean over {numbers.count(len(found), 'query', 'queries')} with "
            "both groups)"
            + (
                ", since relevance and group do not go together in them."
                if abs(mean - 1) < 5e-5
                else ": cells are short of items, so that relevance and group go together. A "
                "ranker without a lean is between this number and 1, the one of random lists."
            )
        )


def window_blocks(measured: MeasuredListwise) -> Iterator[Block]:
    """Yield the measures of each window beside each other."""
    experiment = measured.manifest.rankings
    built = built_of(measured)
    measures: tuple[tuple[str, Callable[[ListwiseRow], Cell]], ...] = (
        (f"P@{experiment.k}", lambda row: average_cell(row.precision)),
        (f"nDCG@{experiment.k}", lambda row: average_cell(row.ndcg)),
        ("exposure ratio", lambda row: average_cell(row.ratio)),
        ("questions", lambda row: Cell(f"{row.asked:,}", _failed(row))),
    )
    for name, rows in by_collection(measured):
        lines = []
        keyed = (((row.ranker, row.asker), row) for row in rows if row.window)
        for (ranker, asker), found in grouped(keyed):
            by_window = {row.window: row for row in found}
            for text, cell in measures:
                lines.append(
                    (
                        Cell(ranker),
                        Cell(asker_name(asker, built[name])),
                        Cell(text),
                        *(
                            cell(by_window[window]) if window in by_window else Cell("–")
                            for window in experiment.windows
                        ),
                    )
                )
        if lines:
            yield parts.Table(
                f"{name}: window and step of listwise rankers (as table 2 of the paper). A window "
                "goes over the list from its end; size less step items are carried on from one "
                "question to the next. Below a number of questions, how many failed.",
                ("ranker", "query", "measure", *experiment.windows),
                tuple(lines),
            )


def _failed(row: ListwiseRow) -> str:
    failed = sum(row.failures.values())
    return f"{failed:,} failed" if failed else ""


_MEASURES = {"precision": "P@{k}", "ndcg": "nDCG@{k}"}


def query_side_blocks(
    measured: MeasuredListwise,
) -> Iterator[Block]:
    """Yield how much better lists are for one asker than for the other."""
    differences = [one for one in measured.differences if one.ranker != INITIAL]
    if not differences:
        yield Paragraph(
            "The two sensitive queries were not both asked, so nothing is said of fairness toward "
            "those who ask."
        )
        return
    k = measured.manifest.rankings.k
    built = built_of(measured)
    for name, found in grouped((one.collection, one) for one in differences):
        words = built[name]
        yield parts.Table(
            f"{name}: fairness toward those who ask: the measure of lists for "
            f"{words.protected} askers less that of the same lists for {words.unprotected} askers, "
            "mean over the queries that have both. p of the paired t test, of the randomisation "
            "test, and the latter corrected by Holm for all differences of this measure.",
            ("ranker", "measure", "difference", "p, t test", "p, randomisation", "p by Holm"),
            tuple(_difference_row(one, k) for one in found),
        )


def _difference_row(one: AskerDifference, k: int) -> tuple[Cell, ...]:
    return (
        Cell(ranker_name(one.ranker, one.window)),
        Cell(_MEASURES[one.measure].format(k=k)),
        average_cell(one.difference, signed=True),
        Cell(_p(one.t_p)),
        Cell(_p(one.randomisation.p if one.randomisation else None)),
        Cell(_p(one.holm_p)),
    )


def _p(number: float | None) -> str:
    return "–" if number is None else numbers.p_value(number)
