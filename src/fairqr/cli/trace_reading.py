"""Recorded runs: where they are, what is in them, and how they ended."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from fairqr.base.errors import InputError, one_line


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
SUFFIX = ".jsonl"
RUN = "invoke_workflow fairqr"
"""The span of a whole run."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


def trace_folder(given: Path | None = None) -> Path:
    """Return the folder of recorded runs.

    Args:
        given: The folder to use instead of the configured one.

    Raises:
        InputError: No folder is given or configured.
    """
    from fairqr.base.settings import path_of

    folder = given or path_of("trace_dir")
    if folder is None:
        raise InputError(
            "No folder of traces is configured; name one with --folder, FAIRQR_TRACE_DIR or "
            "trace_dir in the settings file."
        )
    return folder


def traces_in(folder: Path) -> list[Path]:
    """Return the files of recorded runs in a folder, the last changed first.

    Raises:
        InputError: It cannot be read.
    """
    try:
        files = [file for file in folder.iterdir() if file.suffix == SUFFIX and file.is_file()]
    except OSError as error:
        raise InputError(f"The folder {folder} cannot be read: {error.strerror}.") from None
    return sorted(files, key=lambda file: (-file.stat().st_mtime, file.name))


def find_trace(name: str, folder: Path | None = None) -> Path:
    """Return the file of a recorded run.

    Args:
        name: A path to a file, or a name in the folder, with or without ``.jsonl``.
        folder: The folder of recorded runs, instead of the configured one.

    Raises:
        InputError: There is no such file, or the name is not valid.
    """
    # Unlike Path.is_file, os.path.isfile takes any text.
    if folder is None and os.path.isfile(name):
        return Path(name)
    if not _NAME.fullmatch(name) or set(name) == {"."}:
        raise InputError(
            f"There is no trace {one_line(ascii(name), 80)}; name a file, or a run as "
            "'fairqr trace list' does."
        )
    place = trace_folder(folder)
    for candidate in (place / name, place / f"{name}{SUFFIX}"):
        if candidate.is_file():
            return candidate
    raise InputError(f"There is no trace '{name}' in {place}; 'fairqr trace list' names them.")


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
        lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError as error:
        raise InputError(f"The trace {file} cannot be read: {error.strerror}.") from None
    if lines[-1] == "":
        lines.pop()
        cut_off = 0
    else:
        cut_off = len(lines)
    spans: list[RecordedSpan] = []
    for number, line in enumerate(lines, start=1):
        try:
            spans.append(_SPAN.validate_python(json.loads(line)))
        except (ValueError, RecursionError):
            if number != cut_off or number == 1:
                raise InputError(
                    f"{file}, line {number} is not a span of a run; "
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
        if content was recorded, and the ``method``; its ``model_calls``, ``input_tokens`` and
        ``output_tokens``; and the divergence ``before`` and ``after``, in nats. What the record
        lacks is None.
    """
    ordered = sorted(spans, key=lambda span: span["start"])
    ended = max(span["start"] + span["milliseconds"] / 1000 for span in ordered)
    said: dict[str, Any] = {}
    for span in ordered:
        said |= span["attributes"]
    calls = [it["attributes"] for it in ordered if "gen_ai.request.model" in it["attributes"]]
    scored = [event["attributes"] for span in ordered for event in span["events"]]
    divergences = [
        score
        for it in scored
        if it.get("gen_ai.evaluation.name") == "divergence"
        and isinstance(score := it.get("gen_ai.evaluation.score.value"), float)
    ]

    def tokens(kind: str) -> int:
        counts = [call.get(f"gen_ai.usage.{kind}_tokens") for call in calls]
        return sum(it for it in counts if type(it) is int and 0 <= it < 10**12)

    query, method = said.get("fairqr.query"), said.get("fairqr.method")
    return {
        "started": ordered[0]["start"],
        "seconds": max(0.0, ended - ordered[0]["start"]),
        "status": _status(ordered),
        "query": query if isinstance(query, str) else None,
        "method": method if isinstance(method, str) else None,
        "model_calls": len(calls),
        "input_tokens": tokens("input"),
        "output_tokens": tokens("output"),
        "before": divergences[0] if divergences else None,
        "after": divergences[-1] if divergences else None,
    }


def _status(spans: Sequence[RecordedSpan]) -> str:
    if runs := [span for span in spans if span["name"] == RUN]:
        # A run that was resumed ended as its last part did.
        resumed = [run["attributes"].get("fairqr.resumed") is True for run in runs]
        last = max((at for at, is_resumed in enumerate(resumed) if is_resumed), default=0)
        return next((span["status"] for span in runs[last:] if span["status"] != "ok"), "ok")
    # The span of a run is written when it ends.
    inside = any(span["name"].startswith("fairqr.") and span["parent"] for span in spans)
    return "unfinished" if inside else "ok"
