"""The commands ``fairqr trace …``, and the files that recorded runs are in."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

import typer
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from fairqr.base.errors import InputError, one_line
from fairqr.base.settings import path_of
from fairqr.cli.options import Count, command
from fairqr.cli.output import Printed, console, number, shortened, table

app = typer.Typer()

SUFFIX = ".jsonl"
RUN = "invoke_workflow fairqr"
"""The span of a whole run."""


class Event(TypedDict):
    """Something that happened within a step."""

    name: str
    attributes: dict[str, Any]


class RecordedSpan(TypedDict):
    """A step of a recorded run, as :func:`fairqr.base.telemetry.span` writes it."""

    name: str
    span: str
    parent: str | None
    start: float
    milliseconds: float
    status: str
    attributes: dict[str, Any]
    events: list[Event]


_SPAN = TypeAdapter(RecordedSpan)


@command(app)
def list_(*, folder: Path | None = None, limit: Count = 20) -> Printed:
    """List recorded runs, the newest first.

    Args:
        folder: The folder of recorded runs. [default: FAIRQR_TRACE_DIR]
        limit: The most runs to show.
    """
    place = trace_folder(folder)
    try:
        files = [file for file in place.iterdir() if file.suffix == SUFFIX and file.is_file()]
    except OSError as error:
        raise InputError(f"The folder {place} cannot be read: {error.strerror}.") from None
    files.sort(key=lambda file: (-file.stat().st_mtime, file.name))
    runs: list[dict[str, Any]] = []
    for file in files[:limit]:
        try:
            runs.append({"name": file.stem, **summary_of(read_spans(file))})
        except InputError:
            runs.append({"name": file.stem, "status": "unreadable"})
    heads = ("run", "status", "started", number("s"), number("calls"), number("tokens"), "query")
    lines: list[Any] = [table(heads, map(_cells, runs))]
    if len(files) > limit:
        lines.append(f"… and {len(files) - limit:,} older; --limit shows more.")
    return Printed(runs, lines if runs else [f"No run is recorded in {place}."])


def _cells(run: dict[str, Any]) -> list[str]:
    cells = [run["name"], run["status"]]
    if "started" in run:
        started = ""
        with contextlib.suppress(OSError, OverflowError, ValueError):
            started = f"{datetime.fromtimestamp(run['started']):%Y-%m-%d %H:%M:%S}"
        tokens = run["input_tokens"] + run["output_tokens"]
        cells += [started, f"{run['seconds']:.1f}", f"{run['model_calls']:,}", f"{tokens:,}"]
        cells.append(shortened(run["query"] or "", 40))
    return cells


@command(app)
def show(file: str, *, folder: Path | None = None) -> None:
    """Print the steps of a recorded run in order, with times, tokens and what they say.

    Args:
        file: A file, or a run as 'fairqr trace list' names it.
        folder: The folder of recorded runs. [default: FAIRQR_TRACE_DIR]
    """
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
        yield f"{key.removeprefix('fairqr.')}: {_text(value)}"
    for event in span["events"]:
        told = " ".join(map(_text, event["attributes"].values()))
        yield f"{event['name'].removeprefix('fairqr.')}: {told}"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def trace_folder(given: Path | None = None) -> Path:
    """Return the folder of recorded runs.

    Args:
        given: The folder to use instead of the configured one.

    Raises:
        InputError: No folder is given or configured.
    """
    folder = given or path_of("trace_dir")
    if folder is None:
        raise InputError(
            "No folder of traces is configured; name one with --folder, FAIRQR_TRACE_DIR or "
            "trace_dir in the settings file."
        )
    return folder


def find_trace(name: str, folder: Path | None = None) -> Path:
    """Return the file of a recorded run.

    Args:
        name: A path to a file, or a name in the folder, with or without ``.jsonl``.
        folder: The folder of recorded runs, instead of the configured one.

    Raises:
        InputError: There is no such file.
    """
    # Unlike Path.is_file, os.path.isfile takes any text.
    if folder is None and os.path.isfile(name):
        return Path(name)
    place = trace_folder(folder)
    for found in (place / name, place / f"{name}{SUFFIX}"):
        if os.path.isfile(found):
            return found
    raise InputError(
        f"There is no trace {one_line(ascii(name), 80)} in {place}; 'fairqr trace list' names them."
    )


def new_trace(folder: Path, what: str) -> Path:
    """Return the file to record a run in; a missing folder is made.

    Args:
        folder: The folder of recorded runs.
        what: The command that runs; the file's name has the time and this.

    Raises:
        InputError: The folder cannot be made.
    """
    try:
        # What is recorded may be private.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder of traces {folder} cannot be made: {error.strerror}; "
            "correct the setting trace_dir."
        ) from None
    return folder / f"{datetime.now():%Y%m%d-%H%M%S}-{what}-{token_hex(3)}{SUFFIX}"


def read_spans(file: Path) -> list[RecordedSpan]:
    """Read a recorded run; a last line that was cut off is left out.

    Raises:
        InputError: The file cannot be read, or is not a recorded run.
    """
    try:
        # A killed run may have ended within a character. Some characters in texts end a line for
        # Python's splitlines, but not in JSON.
        *lines, rest = file.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError as error:
        raise InputError(f"The trace {file} cannot be read: {error.strerror}.") from None
    spans: list[RecordedSpan] = []
    for line in [*lines, rest] if rest else lines:
        try:
            spans.append(_SPAN.validate_python(json.loads(line)))
        except (ValueError, RecursionError):
            if spans and len(spans) == len(lines):
                break
            raise InputError(
                f"{file}, line {len(spans) + 1} is not a span of a run; "
                "name a file that 'fairqr search --trace' wrote."
            ) from None
    if not spans:
        raise InputError(f"The trace {file} is empty; record one with 'fairqr search --trace'.")
    return spans


def summary_of(spans: Sequence[RecordedSpan]) -> dict[str, Any]:
    """Return the summary of a recorded run; its attributes may hold anything.

    Args:
        spans: At least one.

    Returns:
        When it ``started``, in seconds since the epoch; how many ``seconds`` it took; its
        ``status``: ``ok``, the class of the error that ended it, or ``unfinished``; the ``query``,
        or None if content was not recorded; its ``model_calls``, ``input_tokens`` and
        ``output_tokens``.
    """
    started = min(span["start"] for span in spans)
    ended = max(span["start"] + span["milliseconds"] / 1000 for span in spans)
    said = [span["attributes"] for span in spans]
    calls = [it for it in said if "gen_ai.request.model" in it]
    queries = [it["fairqr.query"] for it in said if isinstance(it.get("fairqr.query"), str)]

    def tokens(kind: str) -> int:
        counts = [call.get(f"gen_ai.usage.{kind}_tokens") for call in calls]
        return sum(it for it in counts if type(it) is int and 0 <= it < 10**12)

    # The span of a run is written when it ends; a run that was resumed ended as its last part did.
    runs = [span["status"] for span in spans if span["name"] == RUN]
    inside = any(span["name"].startswith("fairqr.") and span["parent"] for span in spans)
    return {
        "started": started,
        "seconds": max(0.0, ended - started),
        "status": runs[-1] if runs else "unfinished" if inside else "ok",
        "query": queries[-1] if queries else None,
        "model_calls": len(calls),
        "input_tokens": tokens("input"),
        "output_tokens": tokens("output"),
    }
