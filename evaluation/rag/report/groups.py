"""The section on groups: who is exposed, who should be, and who is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Heading, Paragraph
from fairqr.evaluation.rag.analysis.frame import Frame, Mean, QueryKey, mean_of
from fairqr.evaluation.rag.analysis.measuring import MeasuredRag
from fairqr.evaluation.rag.measures.groups import GroupExposure
from fairqr.evaluation.rag.report.common import mean_cell, policy_rows, title_of
from fairqr.evaluation.scores import Undefined
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import UNKNOWN

__all__ = ["group_blocks"]

_MEASURES: tuple[tuple[str, Callable[[GroupExposure], float]], ...] = (
    ("EE-D by group", lambda found: found.disparity),
    ("EE-R by group", lambda found: found.relevance),
    ("EE-L by group", lambda found: found.loss),
    ("EAE-D by group", lambda found: found.attributed_disparity),
)


def group_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield the tables of each collection with groups; nothing where none has any."""
    found = [name for name in measured.frame.collections if name in measured.schemas]
    if not found:
        return
    yield Heading("Groups")
    yield Paragraph(
        "What documents get, summed over groups by membership. Target is what a group gets where "
        "useful documents come first: it has the share that its useful documents earn, and not "
        "that of a population. Documents without a label stand apart as unknown, and are left out "
        "of the measures by group, whatever the schema does with them. The measures are not "
        "normalised; they are in squared documents, at most k²."
    )
    for name in found:
        frame = measured.frame.select(collection=name)
        for attribute in measured.schemas[name].attributes.values():
            title = f"{title_of(measured, name)}, {attribute.name}"
            groups = (*attribute.groups, UNKNOWN)
            yield _shares(title, frame, attribute.name, groups)
            yield _measures(title, frame, attribute.name)


def _shares(title: str, frame: Frame, attribute: str, groups: tuple[str, ...]) -> parts.Table:
    rows = []
    for names, _, found in policy_rows(frame, by_generator=True):
        own = _by_query(found, attribute)
        if not own:
            continue
        k = [_mean_share(own, lambda one: one.exposure, place) for place in range(len(groups))]
        target = [_mean_share(own, lambda one: one.target, place) for place in range(len(groups))]
        useful = [
            _mean_share(own, lambda one: one.useful_exposure, place) for place in range(len(groups))
        ]
        used = [_mean_share(own, lambda one: one.attributed, p) for p in range(len(groups))]
        rates = [_mean_rate(own, place) for place in range(len(groups))]
        cells = [
            Cell(
                numbers.value(k[place][0]),
                f"target {numbers.value(target[place][0])}, "
                f"of useful {numbers.value(useful[place][0])}, "
                f"of use {numbers.value(used[place][0])}, "
                f"rate {numbers.value(rates[place])}",
            )
            for place in range(len(groups))
        ]
        over = f"of useful {useful[0][1]}, of use {used[0][1]}"
        rows.append((*map(Cell, names), *cells, Cell(str(len(own)), over)))
    return parts.Table(
        f"{title}: the share of exposure of each group, and below it the share that is its target, "
        "its share of the exposure of useful documents, its share of what answers used, and its "
        "attribution rate: how much of its exposure was used. Means over the queries that have the "
        "share; the last column tells how many these are.",
        ("generator", "retriever", "policy", *groups, "queries"),
        tuple(rows),
    )


def _mean_share(
    own: dict[QueryKey, list[GroupExposure]],
    what: Callable[[GroupExposure], FloatArray],
    place: int,
) -> tuple[float | None, int]:
    """Return the mean share of a group over queries, and over how many; seeds come first."""
    shares = []
    for found in own.values():
        mean = np.mean([what(one) for one in found], axis=0)
        if mean.sum() > 0:
            shares.append(float(mean[place] / mean.sum()))
    return (float(np.mean(shares)) if shares else None), len(shares)


def _mean_rate(own: dict[QueryKey, list[GroupExposure]], place: int) -> float | None:
    """Return the mean attribution rate of a group over queries with one; seeds come first."""
    by_query = [
        [rate for one in found if not isinstance(rate := one.rates()[place], Undefined)]
        for found in own.values()
    ]
    rates = [float(np.mean(found)) for found in by_query if found]
    return float(np.mean(rates)) if rates else None


def _measures(title: str, frame: Frame, attribute: str) -> parts.Table:
    rows = []
    for names, _, found in policy_rows(frame, by_generator=True):
        own = _by_query(found, attribute)
        if not own:
            continue
        cells = [mean_cell(_mean(own, text, value)) for text, value in _MEASURES]
        rows.append((*map(Cell, names), *cells))
    return parts.Table(
        f"{title}: expected exposure by group, as the mean over queries with its 95% "
        "interval and over how many queries it is. EE-L is 0 where groups get their target; EAE-D "
        "is over the samples that were answered.",
        ("generator", "retriever", "policy", *(text for text, _ in _MEASURES)),
        tuple(rows),
    )


def _mean(
    own: dict[QueryKey, list[GroupExposure]], text: str, value: Callable[[GroupExposure], float]
) -> Mean:
    return mean_of([float(np.mean([value(one) for one in found])) for found in own.values()])


def _by_query(frame: Frame, attribute: str) -> dict[QueryKey, list[GroupExposure]]:
    """Return by query what the groups got under each seed."""
    found: dict[QueryKey, list[GroupExposure]] = {}
    for cell in frame.cells:
        if attribute in cell.groups:
            query = (cell.record.collection, cell.record.query)
            found.setdefault(query, []).append(cell.groups[attribute])
    return found
