"""The commands ``fairqr experiment …``: run an experiment of any kind, and write its report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.base.errors import InputError, one_line
from fairqr.cli.common import agree, run
from fairqr.cli.options import command
from fairqr.cli.output import warn
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.evaluation.experiments.kinds import Kind

app = typer.Typer()


@command(app)
def list_() -> None:
    """List the experiments that come with fairqr."""
    from fairqr.evaluation.experiments.catalogue import SHIPPED, read_experiment

    for name in SHIPPED:
        typer.echo(f"{name}: {read_experiment(name).values['title']}")


@command(app)
def show(experiment: str) -> None:
    """Print the file of an experiment, to change a copy of it.

    Args:
        experiment: The name of an experiment, or a YAML file.
    """
    from fairqr.evaluation.experiments.catalogue import read_experiment

    typer.echo(read_experiment(experiment).path.read_text(encoding="utf-8"), nl=False)


@command(app, "run")
def run_(
    experiment: str,
    *,
    output: Path | None = None,
    collection: list[str] | None = None,
    model: list[str] | None = None,
    set_: list[str] | None = None,
    labels: list[Path] | None = None,
    concurrency: int | None = None,
    workers: str | None = None,
    prompts: Path | None = None,
    report: bool = False,
    yes: bool = False,
) -> None:
    """Run an experiment; an interrupted run resumes.

    Args:
        experiment: The name of an experiment, or a YAML file.
        output: The folder of the run; an interrupted run resumes.
        collection: Use this collection (a name or a folder) instead of the file's. Fair RAG takes
            several.
        model: Use this model instead of the file's. Fair RAG and rankers take several.
        set_: Change any other value of the file, for example topics=5; '--set help' lists those of
            this experiment.
        labels: Fair RAG: use the labels in this folder of 'fairqr lamp label'.
        concurrency: How many searches, questions or pairs run at a time; use 1 to measure times.
            [default: 2]
        workers: Where the work runs: a number of tasks in this process, ray, ray://local or
            ray://HOST:PORT.
        prompts: A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]
        report: Write the report when the run is done.
        yes: Run even if the model may be asked more than 2,000 times or read more than 1,000,000
            tokens.
    """
    from fairqr.cli.parameters import explain
    from fairqr.evaluation.experiments.catalogue import read_experiment
    from fairqr.evaluation.experiments.kinds import FAIR_RAG, RunOptions
    from fairqr.evaluation.workers.choice import parse_workers
    from fairqr.prompts.library import PromptLibrary

    file = read_experiment(experiment)
    kind = file.kind
    if "help" in (set_ or []):
        explain([kind.spec])
        return
    if output is None:
        raise InputError("An experiment needs a folder for its results; name one with -o.")
    if labels and kind.name != FAIR_RAG:
        raise InputError(f"An experiment {kind.about} takes no --labels; leave it out.")
    named = [f"{kind.collections}={name}" for name in collection or []]
    named += [f"{kind.models}={name}" for name in model or []]
    changes = _changes(kind, [*named, *(set_ or [])])
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
        report_(output)
    else:
        typer.echo(f"done: {output}; 'fairqr experiment report {output}' writes the report")


@command(app, "report")
def report_(folder: Path) -> None:
    """Write the report of an experiment: report.md, and report.html in one file with its plots.

    Args:
        folder: The folder of a run.
    """
    from fairqr.evaluation.experiments.catalogue import kind_of_folder
    from fairqr.evaluation.experiments.kinds import KINDS

    for path in KINDS[kind_of_folder(folder)].report(folder, warn):
        typer.echo(f"written: {path}")


def _changes(kind: Kind, texts: list[str]) -> dict[str, Any]:
    """Read the values that the user sets in an experiment.

    Raises:
        InputError: This kind of experiment has no such parameter, or a value is wrong.
    """
    from fairqr.cli.parameters import parameters_of, read_parameters

    for text in texts:
        name = text.partition("=")[0]
        if "=" in text and name.partition(".")[0] not in kind.spec.model_fields:
            labels = ", ".join(parameter.label for parameter in parameters_of([kind.spec]))
            raise InputError(
                f"An experiment {kind.about} has no '{one_line(name, 60)}'; it has {labels}."
            )
    return read_parameters([kind.spec], texts)
