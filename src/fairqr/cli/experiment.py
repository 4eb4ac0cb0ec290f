"""The commands ``fairqr experiment …``: run an experiment of any kind, and write its report."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.cli.common import PromptsFolder, Yes, agree, run, warn
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.evaluation.experiments.kinds import Kind

app = typer.Typer()


def _explain(ctx: typer.Context, settings: list[str] | None) -> list[str] | None:
    """For ``--set help``, list the parameters of the experiment, and end."""
    if settings and "help" in settings:
        from fairqr.cli.parameters import explain
        from fairqr.evaluation.experiments.catalogue import read_experiment

        explain([read_experiment(ctx.params["experiment"]).kind.spec])
        raise typer.Exit
    return settings


@app.command("list")
def list_() -> None:
    """List the experiments that come with fairqr."""
    from fairqr.evaluation.experiments.catalogue import SHIPPED, read_experiment

    for name in SHIPPED:
        typer.echo(f"{name}: {read_experiment(name).values['title']}")


@app.command("show")
def show(
    experiment: Annotated[str, typer.Argument(help="The name of an experiment, or a YAML file.")],
) -> None:
    """Print the file of an experiment, to change a copy of it."""
    from fairqr.evaluation.experiments.catalogue import read_experiment

    typer.echo(read_experiment(experiment).path.read_text(encoding="utf-8"), nl=False)


@app.command("run")
def run_(
    experiment: Annotated[
        str,
        typer.Argument(
            is_eager=True,  # '--set help' reads it
            help="The name of an experiment, or a YAML file.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="The folder of the run; an interrupted run resumes."),
    ],
    collection: Annotated[
        list[str] | None,
        typer.Option(
            help="Use this collection (a name or a folder) instead of the file's. Fair RAG takes "
            "several."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Use this model instead of the file's. Fair RAG and rankers take several."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            callback=_explain,
            help="Change any other value of the file, for example topics=5; '--set help' lists "
            "those of this experiment.",
        ),
    ] = None,
    labels: Annotated[
        list[Path] | None,
        typer.Option(help="Fair RAG: use the labels in this folder of 'fairqr lamp label'."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="How many searches, questions or pairs run at a time; use 1 to measure times. "
            "[default: 2]",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="Where the work runs: a number of tasks in this process, ray, ray://local or "
            "ray://HOST:PORT.",
            metavar="WORKERS",
        ),
    ] = None,
    prompts: PromptsFolder = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write the report when the run is done.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Run an experiment; an interrupted run resumes."""
    from fairqr.base.errors import InputError
    from fairqr.evaluation.experiments.catalogue import read_experiment
    from fairqr.evaluation.experiments.kinds import FAIR_RAG, RunOptions
    from fairqr.evaluation.workers.choice import parse_workers
    from fairqr.prompts.library import PromptLibrary

    file = read_experiment(experiment)
    kind = file.kind
    if labels and kind.name != FAIR_RAG:
        raise InputError(f"An experiment {kind.about} takes no --labels; leave it out.")
    changes = _changes(
        kind,
        [
            *(f"{kind.collections}={name}" for name in collection or []),
            *(f"{kind.models}={name}" for name in model or []),
            *(settings or []),
        ],
    )
    with Progress() as watcher:
        options = RunOptions(
            output,
            watcher,
            PromptLibrary(prompts),
            parse_workers(workers or file.workers, concurrency),
            labels=labels or [],
            prompts_set=frozenset(changes.get("prompts", ())),
            yes=yes,
            report=report,
            agree=partial(agree, yes=yes),
        )
        run(kind.run(file.spec(changes), options))
    if report:
        _report(kind, output)
    else:
        typer.echo(f"done: {output}; 'fairqr experiment report {output}' writes the report")


@app.command("report")
def report_(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
) -> None:
    """Write the report of an experiment: report.md, and report.html in one file with its plots."""
    from fairqr.evaluation.experiments.catalogue import kind_of_folder
    from fairqr.evaluation.experiments.kinds import KINDS

    _report(KINDS[kind_of_folder(folder)], folder)


def _report(kind: Kind, folder: Path) -> None:
    for path in kind.report(folder, warn):
        typer.echo(f"written: {path}")


def _changes(kind: Kind, texts: Iterable[str]) -> dict[str, Any]:
    """Read the values that the user sets in an experiment.

    Raises:
        InputError: This kind of experiment has no such parameter, or a value is wrong.
    """
    from fairqr.base.errors import InputError, one_line
    from fairqr.cli.parameters import parameters_of, read_parameters

    texts = list(texts)
    labels = [parameter.label for parameter in parameters_of([kind.spec])]
    for text in texts:
        name = text.partition("=")[0]
        if "=" in text and name.partition(".")[0] not in kind.spec.model_fields:
            raise InputError(
                f"An experiment {kind.about} has no '{one_line(name, 60)}'; it has "
                f"{', '.join(labels)}."
            )
    return read_parameters([kind.spec], texts)
