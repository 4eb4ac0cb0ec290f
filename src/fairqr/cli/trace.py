"""The commands ``fairqr trace …``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.cli.common import AsJson, print_json, printable

if TYPE_CHECKING:
    from fairqr.cli.result_comparison import Row
    from fairqr.cli.trace_summary import RunSummary

    Listed = tuple[str, RunSummary | None, str]
    """The name of a recorded run, its summary, and how it ended."""

app = typer.Typer()

NOTHING = "—"
_HEADS = (
    *("run", "began", "what", "method", "models"),
    *("calls", "tokens", "seconds", "divergence", "status"),
)

_WIDEST = 1000

Folder = Annotated[
    Path | None, typer.Option(help="The folder of recorded runs. [default: FAIRQR_TRACE_DIR]")
]
Result = Annotated[Path, typer.Argument(help="A result, as --json printed it.")]
Name = Annotated[str, typer.Argument(help="A file, or a run as `fairqr trace list` names it.")]


@app.command("list")
def list_(
    folder: Folder = None,
    limit: Annotated[int, typer.Option(min=1, help="The most runs to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List recorded runs, the newest first."""
    from dataclasses import asdict

    from fairqr.cli.trace_reading import trace_folder, traces_in

    place = trace_folder(folder)
    files = traces_in(place)
    runs = [(file.stem, *_summary(file)) for file in files[:limit]]
    if as_json:
        print_json(
            [
                {"name": name, **(asdict(run) if run else {"status": status})}
                for name, run, status in runs
            ]
        )
    elif not runs:
        typer.echo(f"No run is recorded in {place}.")
    else:
        _draw_list(runs)
        if len(files) > limit:
            typer.echo(f"… and {len(files) - limit:,} older; --limit shows more.")


@app.command()
def show(file: Name, folder: Folder = None) -> None:
    """Draw a recorded run as a tree, with times, tokens and decisions."""
    from rich.console import Console

    from fairqr.cli.trace_reading import find_trace, read_spans
    from fairqr.cli.trace_tree import cost_text, trees_of

    console = Console(highlight=False)
    spans = read_spans(find_trace(file, folder))
    for tree in trees_of(spans):
        console.print(tree)
    typer.echo(cost_text(spans))


@app.command()
def compare(one: Result, other: Result, as_json: AsJson = False) -> None:
    """Show two results side by side: settings, exposure, rankings, keywords, and cost."""
    from fairqr.cli.result_comparison import read_result, rows_of

    rows = rows_of(read_result(one), read_result(other))
    if as_json:
        named = ("section", "name", "one", "other")
        differing = [dict(zip(named, row, strict=False)) for row in rows if row.differs]
        print_json({"differences": differing})
        return
    _draw_comparison(one.name, other.name, rows)


def _summary(file: Path) -> tuple[RunSummary | None, str]:
    """Return the summary of a recorded run and how it ended; no summary if it cannot be read."""
    from fairqr.base.errors import InputError
    from fairqr.cli.trace_reading import read_spans
    from fairqr.cli.trace_summary import summary_of

    try:
        summary = summary_of(read_spans(file))
    except InputError:
        return None, "unreadable"
    return summary, summary.status


def _draw_list(runs: list[Listed]) -> None:
    from rich.console import Console

    from fairqr.cli.terminal import table

    empty = ("",) * (len(_HEADS) - 2)
    rows = [(name, *(_cells(run) if run else empty), status) for name, run, status in runs]
    # As wide as it has to be: a terminal breaks lines better than a table breaks words.
    Console(highlight=False, width=_WIDEST).print(table(_HEADS, rows))


def _cells(run: RunSummary) -> tuple[str, ...]:
    from fairqr.cli.terminal import shortened

    calls = f"{run.model_calls:,}"
    if run.cached_calls:
        calls += f" (+{run.cached_calls:,} cached)"
    what = f"{run.kind}: {shortened(run.query, 40)}" if run.query else run.kind
    before, after = (NOTHING if it is None else f"{it:.4f}" for it in (run.before, run.after))
    return (
        _time_text(run.started),
        what,
        run.method or NOTHING,
        ", ".join(dict.fromkeys(run.models.values())) or NOTHING,
        calls,
        f"{run.input_tokens + run.output_tokens:,}",
        f"{run.seconds:.1f}",
        NOTHING if run.before is None else f"{before} → {after}",
    )


def _time_text(seconds: float) -> str:
    """Return a time, in seconds since the epoch, for people; a dash if it is invalid."""
    from datetime import datetime

    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
    except (OSError, OverflowError, ValueError):
        return NOTHING


def _draw_comparison(one: str, other: str, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.text import Text

    from fairqr.cli.terminal import counted, table
    from fairqr.cli.trace_tree import value_text

    lines: list[list[str | Text]] = []
    section = None
    for row in rows:
        if not row.is_shown:
            continue
        if row.section != section:
            section = row.section
            lines.append(["", Text(printable(section), style="bold"), "", ""])
        style = "yellow" if row.differs else ""
        values = (NOTHING if it is None else value_text(it) for it in (row.one, row.other))
        texts = (Text(printable(value), style=style) for value in values)
        lines.append(["≠" if row.differs else "", f"  {row.name}", *texts])
    Console(highlight=False).print(table(["", "", printable(one), printable(other)], lines))
    count = sum(row.differs for row in rows)
    typer.echo(f"{counted(count, 'difference')}, marked ≠")
