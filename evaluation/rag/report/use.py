"""The section on use: what answers used of what they read, against exposure."""

from __future__ import annotations

from collections.abc import Iterator

from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Paragraph
from fairqr.evaluation.rag.analysis.frame import Frame
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

__all__ = ["use_blocks"]

SAME = 1e-9
"""Means that differ by less differ by rounding."""

_OF_USE = (
    Name.EAR,
    Name.EE_D_K_ANSWERED,
    Name.EAE_D_K,
    Name.SHARE,
    Name.SHARE_EXCESS,
    Name.USED_NOT_USEFUL,
)

_READING = (
    "A line for each generator, the mean over retrievers, over α, written at the points, and the "
    "deterministic rankings (fixed); the star is the oracle, the mean over generators."
)


def use_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield attribution rates and attributed exposure, against disparity and relevance."""
    if not any(frame.by_query(Name.EAR) for _, frame in by_collection(measured)):
        yield Paragraph("No answer has a verdict on what it used, so nothing can be said of use.")
        return
    judge = measured.manifest.attributor or "nothing"
    yield Paragraph(
        f"A document counts as used where the attributor ({judge}) says that the answer follows "
        "from it. Attributed exposure and its measures are reconstructed from the paper's text. "
        "They are over the samples that were answered, which may be fewer than those that were "
        "drawn, and EE-D/k of the same samples stands beside them. A document without a verdict is "
        "left out of the attribution rate, and counts as not used in attributed exposure."
    )
    for title, frame in by_collection(measured):
        if can_draw():
            yield from _figures(title, frame)
        yield parts.Table(
            f"{title}: what answers used, as the mean over queries with its 95% interval "
            "and over how many queries it is.",
            ("generator", "retriever", "policy", *map(str, _OF_USE)),
            tuple(
                (
                    *map(Cell, names),
                    *(
                        mean_cell(found.mean(name), signed=name is Name.SHARE_EXCESS)
                        for name in _OF_USE
                    ),
                )
                for names, _, found in policy_rows(frame, by_generator=True)
            ),
        )
        yield from _constant(title, frame)
        for name in (Name.EAR, Name.SHARE):
            if text := why_undefined(frame, name):
                yield Paragraph(f"{title}: {text}")


def _constant(title: str, frame: Frame) -> Iterator[Block]:
    """Say where the attribution rate tells nothing, since it is the same for every policy."""
    for generator in frame.generators:
        means = [
            mean.value
            for _, _, found in policy_rows(frame.select(generator=generator), by_generator=False)
            if (mean := found.mean(Name.EAR)).value is not None
        ]
        if len(means) < 2 or max(means) - min(means) > SAME:
            continue
        why = (
            "the attributor says of no document that an answer used it, so nothing can be said of "
            "use; try another attributor or threshold"
            if max(means) == 0
            else "so it does not tell policies apart"
        )
        yield Paragraph(
            f"{title}, {generator}: EAR is {numbers.value(means[0])} for every policy: {why}."
        )


def _figures(title: str, frame: Frame) -> Iterator[Block]:
    for x, y, reading, diagonal in (
        (Name.EE_D, Name.EAR, "", False),
        (Name.EE_R, Name.EAR, "", False),
        (
            Name.EE_D_K_ANSWERED,
            Name.EAE_D_K,
            " On the dotted line use is as uneven as exposure. No point is above it: where little "
            "is used, this measure is low.",
            True,
        ),
        (
            Name.EE_D_K_ANSWERED,
            Name.SHARE,
            " Above the dotted line, what is used is more concentrated than what is shown. "
            "Below it nothing is said: use that is picked evenly, and not always, is below.",
            True,
        ),
    ):
        lines = lines_of(frame, x, y, by="generator")
        if lines:
            yield against(title, lines, x, y, reading=_READING + reading, diagonal=diagonal)
