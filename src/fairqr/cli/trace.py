"""The commands ``fairqr trace …``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.base.errors import InputError
from fairqr.cli.options import Count, command
from fairqr.cli.output import (
    MISSING,
    Printed,
    console,
    counted,
    decimal,
    number,
    shortened,
    table,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairqr.cli.trace_reading import RecordedSpan
    from fairqr.graph.answer.result import AnswerResult
    from fairqr.graph.probe.result import ProbeResult
    from fairqr.graph.search.result import SearchResult

    Result = SearchResult | AnswerResult | ProbeResult

app = typer.Typer()

_WIDEST = 1000

# Lists of ids and the explanation follow from the rest, scores mean something within one ranking
# alone, the plain retrieval has the ranking of round 0, and times are no difference.
_LEFT_OUT = {"ids", "explanation", "scores", "verdicts", "used", "score", "baseline ranking"}
_LEFT_OUT |= {"milliseconds", "cached_milliseconds"}
_NAMES = ("attribute", "group", "asker", "text", "index")
"""Keys that identify an item of a list; without them, its position does."""


@command(app)
def list_(*, folder: Path | None = None, limit: Count = 20) -> Printed:
    """List recorded runs, the newest first.

    Args:
        folder: The folder of recorded runs. [default: FAIRQR_TRACE_DIR]
        limit: The most runs to show.
    """
    from fairqr.cli.trace_reading import read_spans, trace_folder, traces_in
    from fairqr.cli.trace_summary import summary_of

    place = trace_folder(folder)
    files = traces_in(place)
    runs: list[dict[str, Any]] = []
    for file in files[:limit]:
        try:
            runs.append({"name": file.stem, **summary_of(read_spans(file))})
        except InputError:
            runs.append({"name": file.stem, "status": "unreadable"})
    heads = ("run", "began", "what", "method", "models", "calls", "tokens", "seconds", "divergence")
    # As wide as it has to be: a terminal breaks lines better than a table breaks words.
    wide = console(width=_WIDEST)
    lines: list[Any] = [f"No run is recorded in {place}."]
    if runs:
        with wide.capture() as captured:
            wide.print(table((*heads, "status"), map(_cells, runs)))
        lines = [line.rstrip() for line in captured.get().splitlines()]
    if len(files) > limit:
        lines.append(f"… and {len(files) - limit:,} older; --limit shows more.")
    return Printed(runs, lines)


def _cells(run: Mapping[str, Any]) -> tuple[str, ...]:
    from datetime import datetime

    if len(run) == 2:
        return (run["name"], *[""] * 8, run["status"])
    try:
        began = f"{datetime.fromtimestamp(run['started']):%Y-%m-%d %H:%M:%S}"
    except (OSError, OverflowError, ValueError):
        began = MISSING
    cached = f" (+{run['cached_calls']:,} cached)" if run["cached_calls"] else ""
    return (
        run["name"],
        began,
        f"{run['kind']}: {shortened(run['query'], 40)}" if run["query"] else run["kind"],
        run["method"] or MISSING,
        ", ".join(run["models"]) or MISSING,
        f"{run['model_calls']:,}{cached}",
        f"{run['input_tokens'] + run['output_tokens']:,}",
        f"{run['seconds']:.1f}",
        f"{decimal(run['before'], 4)} → {decimal(run['after'], 4)}",
        run["status"],
    )


@command(app)
def show(file: str, *, folder: Path | None = None) -> None:
    """Print the steps of a recorded run in order, with times, tokens and what they say.

    Args:
        file: A file, or a run as 'fairqr trace list' names it.
        folder: The folder of recorded runs. [default: FAIRQR_TRACE_DIR]
    """
    from fairqr.cli.trace_reading import find_trace, read_spans

    spans = sorted(read_spans(find_trace(file, folder)), key=lambda span: span["start"])
    began = spans[0]["start"]
    heads = (number("after s"), number("ms"), "step", "status", "says")
    console().print(
        table(
            heads,
            (
                (
                    f"{span['start'] - began:.2f}",
                    f"{span['milliseconds']:.1f}",
                    span["name"],
                    "" if span["status"] == "ok" else span["status"],
                    "; ".join(_said(span)),
                )
                for span in spans
            ),
        )
    )


def _said(span: RecordedSpan) -> Iterator[str]:
    """Yield the attributes and the events of a step."""
    for key, value in span["attributes"].items():
        yield f"{key.removeprefix('fairqr.')}: {_value_text(value)}"
    for event in span["events"]:
        told = " ".join(_value_text(value) for value in event["attributes"].values())
        yield f"{event['name'].removeprefix('fairqr.')}: {told}"


@command(app)
def compare(one: Path, other: Path) -> Printed:
    """Show where two results differ: settings, exposure, rankings, keywords, and cost.

    Args:
        one: A result, as --json printed it.
        other: Another one.
    """
    results = [_read_result(file) for file in (one, other)]
    kinds = [type(it).__name__.removesuffix("Result").lower() for it in results]
    if kinds[0] != kinds[1]:
        raise InputError(
            f"One result is of '{kinds[0]}', the other of '{kinds[1]}'; compare two of one kind."
        )
    first, second = (dict(_leaves(it.model_dump(mode="json"), ())) for it in results)
    differing = [
        (names, first.get(names), second.get(names))
        for names in dict.fromkeys([*first, *second])
        if not _same(first.get(names), second.get(names))
    ]

    def lines() -> Iterator[RenderableType]:
        yield table(
            ["", one.name, other.name],
            ((" ".join(names), _value_text(a), _value_text(b)) for names, a, b in differing),
        )
        yield counted(len(differing), "difference")

    rows = [
        {
            "section": names[0] if names[1:] else "asked",
            "name": " ".join(names[1:] or names),
            "one": a,
            "other": b,
        }
        for names, a, b in differing
    ]
    return Printed({"differences": rows}, lines())


def _read_result(file: Path) -> Result:
    """Read what ``--json`` printed.

    Raises:
        InputError: The file cannot be read, or is not a result.
    """
    from pydantic import TypeAdapter, ValidationError

    from fairqr.graph.answer.result import AnswerResult
    from fairqr.graph.probe.result import ProbeResult
    from fairqr.graph.search.result import SearchResult

    adapter: TypeAdapter[Result] = TypeAdapter(SearchResult | AnswerResult | ProbeResult)
    try:
        return adapter.validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"The result {file} cannot be read: {error.strerror}.") from None
    except ValidationError:
        raise InputError(
            f"The file {file} is not a result; name files that 'fairqr search --json', 'fairqr "
            "answer --json' or 'fairqr probe query --json' wrote."
        ) from None


def _leaves(value: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value inside another, with the names that lead to it."""
    if names and (names[-1] in _LEFT_OUT or " ".join(names) in _LEFT_OUT):
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, (*names, str(name)))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for place, item in enumerate(value):
            if {"rank", "id", "title"} <= item.keys():
                yield (*names, f"{item['id']} {item['title']}".strip()), item["rank"]
                continue
            named = "=".join(str(item[name]) for name in _NAMES if name in item) or str(place)
            rest = {name: it for name, it in item.items() if name not in _NAMES}
            yield from _leaves(rest, (*names, named))
    elif isinstance(value, list):
        yield names, ", ".join(map(str, value)) or None
    else:
        yield names, None if value == "" else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


def _value_text(value: Any) -> str:
    """Return a value for people."""
    if value is None:
        return MISSING
    if isinstance(value, list):
        return ", ".join(map(_value_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
