"""The commands ``fairqr trace …``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.cli.common import AsJson, print_json

if TYPE_CHECKING:
    from fairqr.cli.trace_comparing import Row
    from fairqr.cli.trace_summary import RunSummary

    Listed = tuple[str, RunSummary | None, str]
    """The name of a recorded run, its summary, and how it ended."""

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look at recorded runs, and compare them.")

NOTHING = "—"
_HEADS = (
    *("run", "began", "what", "method", "models"),
    *("calls", "tokens", "seconds", "divergence", "status"),
)

_WIDEST = 1000

Folder = Annotated[
    Path | None, typer.Option(help="Of recorded runs; FAIRQR_TRACE_DIR where not given.")
]
Name = Annotated[str, typer.Argument(help="A file, or a run as `fairqr trace list` names it.")]


@app.callback()
def _trace() -> None:
    """Look at recorded runs, and compare them."""


@app.command("list")
def list_(
    folder: Folder = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List recorded runs, the newest first."""
    from fairqr.cli.trace_reading import trace_folder, traces_in

    place = trace_folder(folder)
    files = traces_in(place)
    runs = [(file.stem, *_summary(file)) for file in files[:limit]]
    if as_json:
        _print_list(runs)
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
    from fairqr.cli.trace_tree import trees_of

    console = Console(highlight=False)
    for tree in trees_of(read_spans(find_trace(file, folder))):
        console.print(tree)


@app.command()
def compare(one: Name, other: Name, folder: Folder = None, as_json: AsJson = False) -> None:
    """Show two recorded runs side by side: prompts, models, decisions, and what they cost."""
    import json
    from dataclasses import asdict

    from fairqr.cli.trace_comparing import rows_of
    from fairqr.cli.trace_reading import find_trace, read_spans
    from fairqr.cli.trace_summary import summary_of

    files = [find_trace(name, folder) for name in (one, other)]
    runs = [summary_of(read_spans(file)) for file in files]
    rows = rows_of(*runs)
    if as_json:
        named = [{"name": file.stem, **asdict(run)} for file, run in zip(files, runs, strict=True)]
        different = [[row.section, row.name] for row in rows if row.differs]
        print_json(json.dumps({"runs": named, "differences": different}, indent=2))
        return
    _draw_comparison(files[0].stem, files[1].stem, rows)


def _summary(file: Path) -> tuple[RunSummary | None, str]:
    """Return the summary of a recorded run and how it ended; no summary where it cannot be read."""
    from fairqr.base.errors import InputError
    from fairqr.cli.trace_reading import read_spans
    from fairqr.cli.trace_summary import summary_of

    try:
        summary = summary_of(read_spans(file))
    except InputError:
        return None, "unreadable"
    return summary, summary.status


def _print_list(runs: list[Listed]) -> None:
    import json
    from dataclasses import asdict

    rows = []
    for name, summary, status in runs:
        told = asdict(summary) if summary else {"status": status}
        told.pop("rounds", None)
        rows.append({"name": name, **told})
    print_json(json.dumps(rows, indent=2))


def _draw_list(runs: list[Listed]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fairqr.cli.common import printable

    table = Table(*_HEADS, box=None, pad_edge=False, header_style="bold")
    for name, summary, status in runs:
        cells = (name, *(_cells(summary) if summary else ("",) * (len(_HEADS) - 2)), status)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    # As wide as it has to be: a terminal breaks lines better than a table breaks words.
    Console(highlight=False, width=_WIDEST).print(table)


def _cells(run: RunSummary) -> tuple[str, ...]:
    from fairqr.cli.render import shortened
    from fairqr.cli.trace_comparing import time_text

    calls = f"{run.model_calls:,}"
    if run.cached_calls:
        calls += f" (+{run.cached_calls:,} cached)"
    what = f"{run.kind}: {shortened(run.query, 40)}" if run.query else run.kind
    before, after = (NOTHING if it is None else f"{it:.4f}" for it in (run.before, run.after))
    return (
        time_text(run.started),
        what,
        run.method or NOTHING,
        ", ".join(dict.fromkeys(run.models.values())) or NOTHING,
        calls,
        f"{run.input_tokens + run.output_tokens:,}",
        f"{run.seconds:.1f}",
        NOTHING if run.before is None else f"{before} → {after}",
    )


def _draw_comparison(one: str, other: str, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fairqr.cli.common import printable

    # As texts, since a name of a file may hold what rich takes for markup.
    heads = (Text(""), Text(""), Text(printable(one)), Text(printable(other)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            table.add_row("", Text(section, style="bold"))
        style = "yellow" if row.differs else ""
        texts = (Text(printable(text), style=style) for text in row.texts)
        table.add_row("≠" if row.differs else "", Text(printable(f"  {row.name}")), *texts)
    Console(highlight=False).print(table)
    count = sum(row.differs for row in rows)
    typer.echo(f"{count} differences, marked ≠" if count != 1 else "1 difference, marked ≠")
