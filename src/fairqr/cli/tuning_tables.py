"""Printing what a tuning changed."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.cli.common import print_json

if TYPE_CHECKING:
    from fairqr.evaluation.probes.tuning_records import MeasuredLora

__all__ = ["print_measured"]

WIDTH = 140
"""Of a table where nobody looks, so that none of its words is broken."""


def print_measured(measured: MeasuredLora, folder: Path, *, as_json: bool) -> None:
    """Print what a tuning changed, where the adapter is, and what to do with it."""
    adapter = folder / "adapter"
    if as_json:
        print_json(json.dumps(_as_dict(measured, adapter), ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name in ("pairs", "", "n", "protected", "unprotected", "ratio", "flips", "averaged"):
        table.add_column(name, justify="left" if name in ("pairs", "") else "right", no_wrap=True)
    for group in measured.groups:
        for when, it in (("before", group.before), ("after", group.after)):
            table.add_row(
                f"{group.collection}, {group.kind}" if when == "before" else "",
                when,
                str(it.pairs),
                _percent(it.protected.value),
                _percent(it.unprotected.value),
                "–" if it.ratio is None else f"{it.ratio:.2f}",
                _percent(it.flips.value),
                _percent(it.averaged.protected.value),
            )
    for relevance in measured.relevance:
        for when in ("before", "after"):
            table.add_row(
                f"{relevance.collection}, relevance: the relevant item" if when == "before" else "",
                when,
                str(relevance.pairs),
                _percent(getattr(relevance.both_orders, when).value),
                "",
                "",
                "",
                _percent(getattr(relevance.averaged, when).value),
            )
    # A name is no markup.
    Console(highlight=False, markup=False, width=None if _is_seen() else WIDTH).print(table)
    typer.echo("")
    for sentence in measured.sentences:
        typer.echo(sentence)
    typer.echo(f"\nadapter: {adapter}")
    typer.echo(f"next: {_next(measured, adapter)}")
    typer.echo("(that asks about all queries, those that it was trained on among them)")


def _is_seen() -> bool:
    return sys.stdout.isatty()


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


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
    words += ["--shown", experiment.shown, "--length", str(experiment.length)]
    return shlex.join([*words, "--prompt", manifest.prompt])


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
