"""The commands ``fairqr trace …``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.base.errors import InputError
from fairqr.cli.options import Count, command
from fairqr.cli.output import Printed, console, counted, number, shortened, table

if TYPE_CHECKING:
    from fairqr.cli.trace_reading import RecordedSpan

app = typer.Typer()


@command(app)
def list_(*, folder: Path | None = None, limit: Count = 20) -> Printed:
    """List recorded runs, the newest first.

    Args:
        folder: The folder of recorded runs. [default: FAIRQR_TRACE_DIR]
        limit: The most runs to show.
    """
    from fairqr.cli.trace_reading import read_spans, summary_of, trace_folder, traces_in

    place = trace_folder(folder)
    files = traces_in(place)
    runs: list[dict[str, Any]] = []
    for file in files[:limit]:
        try:
            runs.append({"name": file.stem, **summary_of(read_spans(file))})
        except InputError:
            runs.append({"name": file.stem, "status": "unreadable"})
    lines = ["  ".join(filter(None, _cells(run))) for run in runs]
    lines = lines or [f"No run is recorded in {place}."]
    if len(files) > limit:
        lines.append(f"… and {len(files) - limit:,} older; --limit shows more.")
    return Printed(runs, lines)


def _cells(run: Mapping[str, Any]) -> Iterator[str]:
    from datetime import datetime

    yield run["name"]
    yield run["status"]
    if "started" in run:
        with contextlib.suppress(OSError, OverflowError, ValueError):
            yield f"{datetime.fromtimestamp(run['started']):%Y-%m-%d %H:%M:%S}"
        yield f"{run['seconds']:.1f} s"
        yield counted(run["model_calls"], "model call")
        yield f"{run['input_tokens'] + run['output_tokens']:,} tokens"
        yield run["method"] or ""
        yield shortened(run["query"] or "", 40)


@command(app)
def show(file: str, *, folder: Path | None = None) -> None:
    """Print the steps of a recorded run in order, with times, tokens and what they say.

    Args:
        file: A file, or a run as 'fairqr trace list' names it.
        folder: The folder of recorded runs. [default: FAIRQR_TRACE_DIR]
    """
    from fairqr.cli.trace_reading import find_trace, read_spans

    spans = sorted(read_spans(find_trace(file, folder)), key=lambda span: span["start"])
    rows = (
        (
            f"{span['start'] - spans[0]['start']:.2f}",
            f"{span['milliseconds']:.1f}",
            span["name"],
            "" if span["status"] == "ok" else span["status"],
            "; ".join(_said(span)),
        )
        for span in spans
    )
    console().print(table((number("after s"), number("ms"), "step", "status", "says"), rows))


def _said(span: RecordedSpan) -> Iterator[str]:
    """Yield the attributes and the events of a step."""
    for key, value in span["attributes"].items():
        yield f"{key.removeprefix('fairqr.')}: {_value_text(value)}"
    for event in span["events"]:
        told = " ".join(map(_value_text, event["attributes"].values()))
        yield f"{event['name'].removeprefix('fairqr.')}: {told}"


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
