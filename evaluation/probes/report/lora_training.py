"""What was trained on, how the loss fell, and what failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Figure, Paragraph
from fairqr.evaluation.probes.report.common import counted, percent
from fairqr.evaluation.probes.report.pairwise import KINDS
from fairqr.evaluation.probes.tuning_records import MeasuredLora, StepRecord
from fairqr.evaluation.reports.drawing import bare, can_draw, new_figure, svg_of
from fairqr.evaluation.reports.style import GREY, LINES

__all__ = [
    "draw_losses",
    "lora_failure_blocks",
    "split_blocks",
    "training_blocks",
    "training_facts",
]

AT_RANDOM = float(np.log(2))
"""The cross-entropy of two labels that are held for equally likely."""

PARTS = 10


def split_blocks(measured: MeasuredLora) -> Iterator[Block]:
    """Yield how queries were dealt."""
    yield Paragraph(
        "Queries are dealt at random, by the seed, so that no query is on both sides. In training "
        "pairs the protected and the unprotected item win equally often, and each pair is trained "
        "on in both orders, in the same batch."
    )
    yield parts.Table(
        "Queries and pairs of training, and those held out.",
        (
            "collection",
            "queries trained on",
            "held out",
            "pairs trained on",
            "held-out pairs",
            "items left out of training, since they are probed with",
        ),
        tuple(
            (
                Cell(split.collection),
                Cell(str(len(split.train))),
                Cell(str(len(split.held_out))),
                _counts(split.training_pairs),
                _counts(split.held_out_pairs),
                Cell(f"{split.left_out:,}"),
            )
            for split in measured.manifest.splits
        ),
    )


def _counts(pairs: Mapping[str, int]) -> Cell:
    return Cell(f"{sum(pairs.values()):,}", counted(pairs) if pairs else "")


def training_blocks(measured: MeasuredLora) -> Iterator[Block]:
    """Yield the loss by step."""
    curve = measured.curve
    if not curve:
        yield Paragraph("No step of the training was done yet.")
        return
    pieces = np.array_split(np.array([step.loss for step in curve]), min(PARTS, len(curve)))
    means = [float(piece.mean()) for piece in pieces]
    told = ", ".join(f"{mean:.4f}" for mean in means)
    if can_draw():
        yield Figure(
            "loss",
            "The loss of each step, and in colour its mean over the steps around it. The dotted "
            f"line is ln 2 = {AT_RANDOM:.4f}, the loss of a model that holds both labels for "
            "equally likely. Winners were dealt at random, so a loss below it is what was learnt "
            "by heart.",
            f"The mean loss in {len(means)} parts of the training, in order: {told}.",
            draw_losses(curve),
        )
    yield Paragraph(
        f"{numbers.count(len(curve), 'step')} of {measured.manifest.steps:,} were done, on "
        f"{sum(step.examples for step in curve):,} examples with "
        f"{sum(step.tokens for step in curve):,} tokens; the learning rate went from "
        f"{curve[0].learning_rate:g} to {curve[-1].learning_rate:g}. The mean loss in "
        f"{len(means)} parts of the training, in order: {told}."
    )


def draw_losses(curve: Sequence[StepRecord]) -> str:
    """Draw the loss by step.

    Args:
        curve: At least one step, in order.

    Returns:
        An SVG file.
    """
    steps = [step.step for step in curve]
    losses = np.array([step.loss for step in curve])
    width = max(1, len(curve) // (2 * PARTS))
    mean = [float(losses[max(0, at - width) : at + width + 1].mean()) for at in range(len(losses))]
    with new_figure(6.6, 3.2) as figure:
        axes = figure.subplots()
        bare(axes)
        axes.plot(steps, losses, color=GREY, linewidth=0.8, zorder=2)
        axes.plot(steps, mean, color=LINES[0][0], linewidth=1.6, zorder=3)
        axes.axhline(AT_RANDOM, color=LINES[1][0], linestyle=":", linewidth=1.2, zorder=1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        return svg_of(figure)


def lora_failure_blocks(measured: MeasuredLora) -> Iterator[Block]:
    """Yield replies that prefer neither item."""
    yield parts.Table(
        "Replies to held-out pairs that prefer neither item, by kind; each pair has two.",
        ("collection", "pairs", "when", "replies", "failed", "failures by kind"),
        tuple(
            (
                Cell(one.collection),
                Cell(KINDS[one.kind]),
                Cell(when),
                Cell(f"{figures.replies:,}"),
                Cell(
                    f"{figures.failed:,}",
                    percent(figures.failed / figures.replies) if figures.replies else "",
                ),
                Cell(counted(figures.failures)),
            )
            for one in measured.groups
            if one.kind != "both"
            for when, figures in (("before", one.before), ("after", one.after))
        ),
    )


def training_facts(measured: MeasuredLora) -> dict[str, str]:
    """Return what the model was and what it was trained with."""
    manifest = measured.manifest
    return {
        "base": manifest.base,
        **({"sha256 of the base": manifest.base_sha256} if manifest.base_sha256 else {}),
        "steps": f"{manifest.steps:,}",
        "sha256 of the training examples": manifest.training,
    }
