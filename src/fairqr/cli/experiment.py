"""The commands ``fairqr experiment …``: run one of any kind, and write its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from fairqr.cli.common import PromptsFolder, Yes, pairs
from fairqr.cli.experiment_probes import report_probe, run_probe_file
from fairqr.cli.experiment_rag import report_fair_rag, run_fair_rag_here
from fairqr.cli.experiment_searches import report_searches, run_searches

__all__ = ["app"]

OF_RANKERS = frozenset({"llm_listwise", "llm_pairwise", "lora"})

T = TypeVar("T")

app = typer.Typer(
    help="Compare systems, fair RAG, or rankers, on a collection.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_() -> None:
    """List the experiments that come with fairqr."""
    from fairqr.evaluation.experiments.catalogue import SHIPPED, find_experiment, title_of

    for name in SHIPPED:
        typer.echo(f"{name}: {title_of(find_experiment(name))}")


@app.command("show")
def show(
    experiment: Annotated[str, typer.Argument(help="Its name, or a YAML file.")],
) -> None:
    """Print the file of an experiment, to change a copy of it."""
    from fairqr.evaluation.experiments.catalogue import find_experiment

    typer.echo(find_experiment(experiment).read_text(encoding="utf-8"), nl=False)


@app.command("run")
def run_(
    experiment: Annotated[str, typer.Argument(help="Its name, or a YAML file.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where everything goes; goes on if it is begun.")
    ],
    collection: Annotated[
        list[str] | None,
        typer.Option(help="A collection or its folder, instead of the file's; several for RAG."),
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
    topics: Annotated[
        int | None, typer.Option(help="Only the first so many topics, questions or queries.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "--generator",
            help="Instead of the file's model; several for RAG and rankers.",
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="An attached source, an index or the path of a source file with the collection's "
            "documents, to search instead."
        ),
    ] = None,
    retriever: Annotated[
        list[str] | None, typer.Option(help="RAG: instead of the file's retrievers.")
    ] = None,
    attributor: Annotated[
        str | None, typer.Option(help="RAG: what judges what an answer used, or none.")
    ] = None,
    pool: Annotated[
        int | None, typer.Option(help="RAG: at most so many documents a question.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="RAG: the collection's task, where its files do not say it.")
    ] = None,
    labels: Annotated[
        list[Path] | None,
        typer.Option(help="RAG: a folder of 'fairqr lamp label', instead of labelling anew."),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Instead of the file's seeds.")] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Searches, questions or pairs at a time, 2 where not given; 1 for times.",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="Who does the work: a number here, ray, ray://local or ray://HOST:PORT.",
            metavar="WORKERS",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="RAG, rankers: the version of a prompt, e.g. lamp5=v2."),
    ] = None,
    prompts: PromptsFolder = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write the report too, when all is done.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Run an experiment. One that was interrupted goes on where it stopped."""
    from fairqr.evaluation.experiments.catalogue import (
        find_experiment,
        kind_of_file,
        workers_of_file,
    )
    from fairqr.evaluation.workers.choice import parse_workers

    path = find_experiment(experiment)
    kind = kind_of_file(path)
    who = parse_workers(workers or workers_of_file(path), concurrency)
    of_searches = {"attribute": attribute, "queries": queries, "corpus": corpus}
    of_rag = {
        "retriever": retriever,
        "attributor": attributor,
        "pool": pool,
        "task": task,
        "labels": labels,
    }
    seeds = tuple(seed) if seed else None
    versions = pairs(prompt or [], "a version of a prompt", "lamp5=v2")
    if kind == "fair_rag":
        _refuse({"split": split, **of_searches, "yes": yes}, "of Fair RAG")
        rag_changes = {
            "collections": collection,
            "generators": model,
            "retrievers": retriever,
            "attributor": attributor,
            "pool": pool,
            "task": task,
            "queries": topics,
            "seeds": seeds,
        }
        run_fair_rag_here(
            path,
            rag_changes,
            output,
            prompts=prompts,
            versions=versions,
            labels=labels or [],
            workers=who,
            report=report,
        )
        return
    if kind in OF_RANKERS:
        _refuse({**of_searches, **of_rag}, "on rankers")
        run_probe_file(
            path,
            kind,
            {
                "collection": _only(collection, "--collection", "on rankers"),
                "split": split,
                "queries": topics,
                "seed": _only(seed, "--seed", "on rankers"),
            },
            output,
            models=model or [],
            versions=versions,
            prompts=prompts,
            workers=who,
            yes=yes,
            report=report,
        )
        return
    _refuse({**of_rag, "prompt": prompt, "yes": yes}, "with searches")
    changes = {
        "collection": _only(collection, "--collection", "with searches"),
        "split": split,
        "attributes": tuple(attribute) if attribute else None,
        "queries": tuple(queries) if queries else None,
        "topics": topics,
        "model": _only(model, "--model", "with searches"),
        "corpus": corpus,
        "seeds": seeds,
    }
    run_searches(path, changes, output, prompts=prompts, workers=who, report=report)


@app.command("report")
def report_(
    folder: Annotated[Path, typer.Argument(help="Where an experiment was run.")],
) -> None:
    """Write the report of an experiment: report.md, and report.html in one file with its plots."""
    from fairqr.evaluation.experiments.catalogue import kind_of_folder

    kind = kind_of_folder(folder)
    if kind == "fair_rag":
        report_fair_rag(folder)
    elif kind in OF_RANKERS:
        report_probe(folder)
    else:
        report_searches(folder)


def _refuse(options: Mapping[str, object], what: str) -> None:
    """Refuse options that an experiment has no use for.

    Raises:
        InputError: One of them is given.
    """
    from fairqr.base.errors import InputError

    for name, value in options.items():
        if value not in (None, [], False):
            raise InputError(f"An experiment {what} takes no --{name}; leave it out.")


def _only(values: Sequence[T] | None, option: str, what: str) -> T | None:
    """Return the one value of an option, or None where it was not given.

    Raises:
        InputError: There are several.
    """
    from fairqr.base.errors import InputError

    if values and len(values) > 1:
        raise InputError(f"An experiment {what} takes one {option}; give it once.")
    return values[0] if values else None
