"""Results of a tuning on the terminal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.cli.common import print_json

if TYPE_CHECKING:
    from fairqr.evaluation.probes.tuning_measures import MeasuredLora

WIDTH = 140
"""The width of a table that is not shown on a terminal."""

CHANGES = {
    "ratio": "ratio, nearer to 1",
    "consistent": "one winner in both orders",
    "log_odds": "log-odds, nearer to 0",
    "both_orders": "relevant item wins, both orders",
    "averaged": "relevant item wins, averaged",
}
VERDICTS = {
    "up": "rose",
    "down": "fell",
    "none": "no sure change",
    "too_few": "too few queries",
    "untested": "",
}


def print_measured(measured: MeasuredLora, folder: Path, *, as_json: bool) -> None:
    """Print what a tuning changed, where the adapter is, and how to probe it."""
    adapter = folder / "adapter"
    if as_json:
        print_json(_as_dict(measured, adapter))
        return
    from fairqr.cli.terminal import Output, number, table

    # Outside a terminal, the table is wide enough to break no word.
    console = Output(width=None if sys.stdout.isatty() else WIDTH)
    shares = map(number, ("n", "protected", "unprotected", "ratio", "flips", "averaged"))
    console.print(table(["pairs", "", *shares], _rows(measured)))
    numbers = map(number, ("n", "before", "after", "change", "p by Holm"))
    console.print(table(["pairs", "what changed", *numbers, ""], _changes(measured)))
    typer.echo(
        "A change is above 0 if a share rose, or if a ratio or log-odds came nearer to fair."
    )
    typer.echo(f"\nadapter: {adapter}")
    typer.echo(f"next: {_next(measured, adapter)}")
    typer.echo("(this asks about all queries, including those of the training)")


def _rows(measured: MeasuredLora) -> Iterator[Sequence[str]]:
    from fairqr.cli.terminal import decimal, percent

    for row in measured.figures.itertuples():
        yield (
            f"{row.collection}, {row.kind}" if row.when == "before" else "",
            row.when,
            str(row.pairs),
            percent(row.protected),
            percent(row.unprotected),
            decimal(row.ratio),
            percent(row.flips),
            percent(row.averaged),
        )


def _changes(measured: MeasuredLora) -> Iterator[Sequence[str]]:
    from fairqr.cli.terminal import decimal

    for row in measured.changes.itertuples():
        numbers = (row.before, row.after, row.difference, row.p_holm)
        yield (
            f"{row.collection}, {row.kind}",
            CHANGES[row.measure],
            str(row.pairs),
            *(decimal(number, 3) for number in numbers),
            VERDICTS[row.verdict],
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
    from fairqr.evaluation.reports.tables import records_of

    return {
        "adapter": str(adapter),
        "experiment": measured.manifest.experiment.model_dump(mode="json"),
        "splits": [split.model_dump(mode="json") for split in measured.manifest.splits],
        **{name: records_of(frame) for name, frame in measured.frames.items()},
        "missing": measured.missing,
    }
