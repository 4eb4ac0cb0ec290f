"""Printing what a tuning changed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.cli.common import print_json

if TYPE_CHECKING:
    from fairqr.evaluation.probes.tuning_records import MeasuredLora

__all__ = ["print_measured"]

WIDTH = 140
"""The width of a table that no terminal shows."""


def print_measured(measured: MeasuredLora, folder: Path, *, as_json: bool) -> None:
    """Print what a tuning changed, where the adapter is, and what to do with it."""
    adapter = folder / "adapter"
    if as_json:
        print_json(_as_dict(measured, adapter))
        return
    from fairqr.cli.terminal import Output, number, table

    names = ("n", "protected", "unprotected", "ratio", "flips", "averaged")
    # Where nobody looks, the table is wide enough to break no word.
    console = Output(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table(["pairs", "", *map(number, names)], _rows(measured)))
    typer.echo("")
    for sentence in measured.sentences:
        typer.echo(sentence)
    typer.echo(f"\nadapter: {adapter}")
    typer.echo(f"next: {_next(measured, adapter)}")
    typer.echo("(that asks about all queries, including those it was trained on)")


def _rows(measured: MeasuredLora) -> Iterator[Sequence[str]]:
    from fairqr.cli.terminal import decimal, percent

    for group in measured.groups:
        for when, it in (("before", group.before), ("after", group.after)):
            yield (
                f"{group.collection}, {group.kind}" if when == "before" else "",
                when,
                str(it.pairs),
                percent(it.protected.value),
                percent(it.unprotected.value),
                decimal(it.ratio),
                percent(it.flips.value),
                percent(it.averaged.protected.value),
            )
    for relevance in measured.relevance:
        for when in ("before", "after"):
            yield (
                f"{relevance.collection}, relevance: the relevant item" if when == "before" else "",
                when,
                str(relevance.pairs),
                percent(getattr(relevance.both_orders, when).value),
                *("", "", ""),
                percent(getattr(relevance.averaged, when).value),
            )


def _next(measured: MeasuredLora, adapter: Path) -> str:
    """Return the command that probes the adapter as it was probed here."""
    manifest = measured.manifest
    experiment, source = manifest.experiment, manifest.experiment.sources[0]
    words = ["fairqr", "probe", "pairwise", "--model", f"causal:{adapter}"]
    if source.folder:
        words += ["--from", source.folder]
    else:
        words += ["--collection", str(experiment.collection)]
        words += ["--attribute", str(source.attribute), "--protected", str(source.protected)]
    settings = (
        f"shown={experiment.shown}",
        f"length={experiment.length}",
        f"prompts.{manifest.prompt}",
    )
    return shlex.join([*words, *(part for each in settings for part in ("--set", each))])


def _as_dict(measured: MeasuredLora, adapter: Path) -> dict[str, Any]:
    return {
        "adapter": str(adapter),
        "experiment": measured.manifest.experiment.model_dump(mode="json"),
        "splits": [split.model_dump(mode="json") for split in measured.manifest.splits],
        "groups": [asdict(it) for it in measured.groups],
        "relevance": [asdict(it) for it in measured.relevance],
        "losses": [it.loss for it in measured.curve],
        "sentences": list(measured.sentences),
        "missing": measured.missing,
    }
