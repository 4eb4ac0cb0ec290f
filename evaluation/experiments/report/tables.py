"""The tables of results: means with intervals, and what they are over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fairqr.base.statistics import Interval, mean_interval
from fairqr.evaluation.comparison import Comparison, Comparisons
from fairqr.evaluation.evaluate import Evaluation
from fairqr.evaluation.experiments.measuring import Measured, Table
from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.naming import (
    common_topics,
    headings,
    measures_of,
    roles_of,
    share_topics,
    title_of,
)
from fairqr.evaluation.experiments.report.parts import Block, Cell
from fairqr.retrieval.dimension import factors_of

__all__ = ["result_tables"]

Means = Mapping[str, Mapping[str, tuple[float | None, Interval | None, int]]]
"""By system and measure: the mean, its interval, and over how many topics."""


def result_tables(measured: Measured, table: Table) -> Iterator[Block]:
    """Yield the results of one attribute and form of query, which must have a system."""
    experiment = measured.manifest.experiment
    names = headings(experiment, table)
    means = {
        system: {
            text: (result.mean, result.interval, result.count)
            for text, result in evaluation.results.items()
        }
        for system, evaluation in table.evaluations.items()
    }
    labelled = _labelled(measured, table, experiment.k)
    extra = {system: _labelled_cell(found) for system, found in labelled.items()}
    alike = share_topics(table)
    marks = (
        "The best value of each column is marked."
        if alike
        else "Means are partly over different topics, so none is marked as the best."
    )
    yield _means_table(
        f"{title_of(table)}: the mean over topics, its 95% interval, and over how many "
        f"topics it is. {marks}",
        table,
        names,
        means,
        mark=alike,
        extra=(f"{table.attribute} known in the top {experiment.k}", extra),
    )
    yield parts.Paragraph(_on_labels(table.attribute, experiment.k, labelled))
    if table.comparisons is None:
        yield parts.Paragraph(
            f"Nothing is compared with the baseline '{experiment.baseline}': it, or all others, "
            "have not searched for all topics."
        )
    else:
        yield _differences_table(table, table.comparisons, names, experiment.baseline)
    yield from _on_common_topics(table, names)


def _means_table(
    caption: str,
    table: Table,
    names: Mapping[str, str],
    means: Means,
    *,
    mark: bool,
    extra: tuple[str, Mapping[str, Cell]] | None = None,
) -> parts.Table:
    best = {
        str(measure): _best(means, str(measure), measure.higher_is_better)
        for measure in measures_of(table)
    }
    rows = []
    for system, found in means.items():
        cells = [
            Cell(
                numbers.value(mean),
                " ".join(filter(None, (numbers.span(interval), f"n={count}"))),
                best=mark and mean is not None and mean == best[text],
            )
            for text, (mean, interval, count) in found.items()
        ]
        more = [extra[1][system]] if extra else []
        rows.append((Cell(system), *cells, *more))
    header = ("system", *(names[text] for text in best), *([extra[0]] if extra else []))
    return parts.Table(caption, header, tuple(rows))


def _best(means: Means, text: str, higher_is_better: bool | None) -> float | None:
    values = [found[text][0] for found in means.values()]
    defined = [mean for mean in values if mean is not None]
    if not defined or higher_is_better is None:
        return None
    return max(defined) if higher_is_better else min(defined)


def _differences_table(
    table: Table, comparisons: Comparisons, names: Mapping[str, str], baseline: str
) -> parts.Table:
    main = roles_of(table).main
    by_system: dict[str, dict[str, Comparison]] = {}
    for row in comparisons.rows:
        by_system.setdefault(row.run, {})[str(row.measure)] = row
    rows = []
    for system, found in by_system.items():
        ratio = _relative(table.evaluations[baseline], table.evaluations[system], found[main])
        verdict = "holds" if found[main].holds(comparisons.alpha) else "does not hold"
        cells = [_difference_cell(found[text]) for text in names]
        rows.append((Cell(system), Cell(numbers.change(ratio), verdict), *cells))
    header = (
        "system",
        f"change of {names[main]}",
        *(f"{name}, p randomisation / t" for name in names.values()),
    )
    level = f"{comparisons.alpha:g}"
    return parts.Table(
        f"{title_of(table)}: differences from {baseline} over the topics where both have a value, "
        f"with their 95% interval, and p values by the paired randomisation test and, "
        f"after the stroke, the t test, each corrected by Holm for all {comparisons.tests} "
        f"comparisons of this table. A difference holds where the randomisation test's p is at "
        f"most {level}.",
        header,
        tuple(rows),
    )


def _difference_cell(row: Comparison) -> Cell:
    note = (
        f"{numbers.span(row.interval)} "
        f"p {numbers.p_value(row.randomisation_corrected)} / {numbers.p_value(row.t_corrected)}, "
        f"n={row.count}"
    )
    return Cell(numbers.difference(row.difference), note.strip())


def _relative(baseline: Evaluation, other: Evaluation, row: Comparison) -> float | None:
    """Return the change in proportion to the baseline's mean over the same topics."""
    measure = str(row.measure)
    own, theirs = baseline.results[measure].defined(), other.results[measure].defined()
    common = [value for topic, value in own.items() if topic in theirs]
    mean = float(np.mean(common)) if common else 0.0
    return row.difference / mean if mean and row.difference is not None else None


def _on_common_topics(table: Table, names: Mapping[str, str]) -> Iterator[Block]:
    """Yield the means over the topics where all systems have all values, where topics differ."""
    if share_topics(table):
        return
    common = common_topics(table)
    if not common:
        yield parts.Paragraph(
            "Systems have values for different topics, and no topic has all values of all systems: "
            "the means above are over different topics and cannot be compared with each other."
        )
        return
    means = {
        system: {
            text: _mean_over([result.defined()[topic] for topic in common])
            for text, result in evaluation.results.items()
        }
        for system, evaluation in table.evaluations.items()
    }
    yield _means_table(
        f"{title_of(table)}: the same over the {numbers.count(len(common), 'topic')} where every "
        "system has every value. These means can be compared with each other. The best value of "
        "each column is marked.",
        table,
        names,
        means,
        mark=True,
    )


def _mean_over(values: Sequence[float]) -> tuple[float | None, Interval | None, int]:
    return float(np.mean(values)), mean_interval(values), len(values)


def _labelled(measured: Measured, table: Table, k: int) -> dict[str, tuple[float, float]]:
    """Return for each system how many documents of a top k have a known group, and of how many."""
    labels = measured.scan.labels
    found = {}
    for system, records in table.records.items():
        known, all_ = [], []
        for record in (record for record in records if record.ids):
            ids = record.ids[:k]
            rows = np.ones(len(ids), dtype=bool)
            for attribute in factors_of(table.attribute):
                rows &= labels.memberships(attribute, ids, "exclude").any(axis=1)
            known.append(int(rows.sum()))
            all_.append(len(ids))
        found[system] = (float(np.mean(known)), float(np.mean(all_))) if known else (0.0, 0.0)
    return found


def _labelled_cell(found: tuple[float, float]) -> Cell:
    return Cell(f"{found[0]:.1f} of {found[1]:.1f}")


def _on_labels(attribute: str, k: int, labelled: Mapping[str, tuple[float, float]]) -> str:
    """Say over how many documents the measures of groups are."""
    known = [found[0] for found in labelled.values()]
    if all(found[0] == found[1] for found in labelled.values()):
        return (
            f"The {attribute} of every document in the top {k} is known, so measures of groups are "
            "over all of them."
        )
    return (
        f"The {attribute} of {min(known):.1f} to {max(known):.1f} documents of a top {k} is known, "
        "on average. Where a measure leaves the unknown out, it is over these documents only, and "
        "says nothing of the others."
    )
