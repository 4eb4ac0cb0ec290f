"""The commands ``fairqr experiment …``: systems compared on the topics of a collection."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.cli.common import notes, run, warn

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from fairqr.evaluation.experiments.plan import Cell
    from fairqr.evaluation.experiments.store import Record, Store

__all__ = ["app"]

app = typer.Typer(
    help="Compare systems on the topics of a collection.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_() -> None:
    """List the experiments that come with fairqr."""
    from fairqr.evaluation.experiments.specification import (
        SHIPPED,
        find_experiment,
        load_experiment,
    )

    for name in SHIPPED:
        typer.echo(f"{name}: {load_experiment(find_experiment(name)).title}")


@app.command("show")
def show(
    experiment: Annotated[str, typer.Argument(help="Its name, or a YAML file.")],
) -> None:
    """Print the file of an experiment, to change a copy of it."""
    from fairqr.evaluation.experiments.specification import find_experiment

    typer.echo(find_experiment(experiment).read_text(encoding="utf-8"), nl=False)


@app.command("run")
def run_(
    experiment: Annotated[str, typer.Argument(help="Its name, or a YAML file.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where everything goes; goes on if it is begun.")
    ],
    collection: Annotated[
        str | None, typer.Option(help="A collection or its folder, instead of the file's.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The judgements, where a collection has several.")
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="Instead of the file's attributes.")
    ] = None,
    queries: Annotated[
        list[str] | None, typer.Option(help="title or title+10, instead of the file's.")
    ] = None,
    topics: Annotated[int | None, typer.Option(help="Only the first so many topics.")] = None,
    model: Annotated[str | None, typer.Option(help="Instead of the file's model.")] = None,
    backend: Annotated[str | None, typer.Option(help="tantivy or elasticsearch.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Instead of the file's seeds.")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Searches at a time; 1 to measure times.")
    ] = 2,
    prompts: Annotated[
        Path | None, typer.Option(help="A folder of your own prompts; FAIRQR_PROMPTS_DIR.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write the report too, when all is done.")
    ] = False,
) -> None:
    """Run an experiment. One that was interrupted goes on where it stopped."""
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.experiments.measuring import measure_experiment, write_results
    from fairqr.evaluation.experiments.plan import make_plan
    from fairqr.evaluation.experiments.running import run_plan
    from fairqr.evaluation.experiments.specification import find_experiment, load_experiment
    from fairqr.evaluation.experiments.store import Store
    from fairqr.prompts.library import PromptLibrary

    changes: dict[str, Any] = {
        "collection": collection,
        "split": split,
        "attributes": tuple(attribute) if attribute else None,
        "queries": tuple(queries) if queries else None,
        "topics": topics,
        "model": model,
        "backend": backend,
        "seeds": tuple(seed) if seed else None,
    }
    asked = load_experiment(find_experiment(experiment), changes)
    found = find_collection(asked.collection, asked.split)
    library = PromptLibrary(prompts)
    plan = make_plan(asked, found, library)
    store = Store(output)
    for sentence in plan.left_out:
        warn(sentence)
    with _Watching() as watcher:
        left_out = run(
            run_plan(plan, found, store, prompts=library, watcher=watcher, at_once=concurrency)
        )
    for sentence in left_out:
        warn(sentence)
    if report:
        _report(store)
    else:
        write_results(store, measure_experiment(store, found, with_tests=False))
        typer.echo(f"done: {output}; 'fairqr experiment report {output}' writes the report")


@app.command("report")
def report_(
    folder: Annotated[Path, typer.Argument(help="Where an experiment was run.")],
) -> None:
    """Write the report of an experiment: report.md, and report.html in one file with its plots."""
    from fairqr.evaluation.experiments.store import Store

    _report(Store(folder))


def _report(store: Store) -> None:
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.experiments.measuring import measure_experiment, write_results
    from fairqr.evaluation.experiments.report import write_report

    asked = store.manifest().experiment
    measured = measure_experiment(store, find_collection(asked.collection, asked.split))
    write_results(store, measured)
    for path in write_report(store, measured):
        typer.echo(f"written: {path}")


class _Watching:
    """Shows how far a run is: a bar for people who watch, one line a system for logs."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._searches: Any = None

    def __enter__(self) -> _Watching:
        if sys.stderr.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=notes(),
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def total(self, searches: int, done: int) -> None:
        """Take how many searches there are, and how many were done before."""
        if self._bar:
            self._searches = self._bar.add_task("searches", total=searches, completed=done)
        else:
            typer.echo(f"{searches} searches, of which {done} are done", err=True)

    def started(self, cell: Cell) -> None:
        """Take which cell is begun."""
        what = f"{cell.attribute}, {cell.form}: {cell.system.name}"
        if self._bar:
            self._bar.update(self._searches, description=what)
        else:
            typer.echo(what, err=True)

    def finished(self, record: Record) -> None:
        """Take a search that is done."""
        if self._bar:
            self._bar.advance(self._searches)

    def preparing(self, what: str) -> Any:
        """Take what is indexed or encoded; return what is told how many documents."""
        if not self._bar:
            return None
        task = self._bar.add_task(what, total=None)
        bar = self._bar
        return lambda count: bar.update(task, completed=count)
