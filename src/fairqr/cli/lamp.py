"""The commands ``fairqr lamp …``: labels of utility, for the measures of fair RAG."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.cli.common import AsJson, PromptsFolder, pairs, print_json, run
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.evaluation.rag.labelling import LabelSummary
    from fairqr.evaluation.rag.store import GenerationLabels

app = typer.Typer()

MinUseful = Annotated[int, typer.Option(min=1, help="Drop questions with fewer useful documents.")]


@app.command("label")
def label(
    path: Annotated[
        str, typer.Argument(help="A folder of LaMP, notables, or a JSON Lines file of your own.")
    ],
    generator: Annotated[
        str, typer.Option(help="The model that answers, such as seq2seq:google/flan-t5-small.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="The folder of the labels; an interrupted run resumes."
        ),
    ],
    task: Annotated[str | None, typer.Option(help="The task, if the files do not name it.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most questions to use.")] = 1000,
    pool: Annotated[
        int | None,
        typer.Option(min=1, help="Use at most this many documents per question; all by default."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="The version of the task's prompt: lamp5=v2, or just v2.")
    ] = None,
    prompts: PromptsFolder = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="How many questions run at a time.")
    ] = 2,
    min_useful: MinUseful = 2,
) -> None:
    """Label a collection: the gain of each document over the answer without documents."""
    from fairqr.evaluation.rag.finding import find_rag_collection
    from fairqr.evaluation.rag.labelling import label_collection, label_manifest, labelling_calls
    from fairqr.evaluation.rag.store import GenerationLabels
    from fairqr.evaluation.workers.tools import LocalPool
    from fairqr.prompts.library import PromptLibrary

    collection = find_rag_collection(path, task=task, limit=limit, pool=pool)
    library = PromptLibrary(prompts)
    template = library.get(collection.task.prompt, _version(prompt, collection.task.prompt))
    store = GenerationLabels(output)
    manifest = label_manifest(collection, generator, template, pool)
    store.check(manifest)
    done = {one.query for one in store.lines.read()}
    todo = [query for query in collection.queries if query.id not in done]
    typer.echo(
        f"{collection.name}: {len(todo):,} of {len(collection.queries):,} questions to label, "
        f"at most {labelling_calls(todo):,} answers",
        err=True,
    )
    workers = LocalPool.of(library, store.replies, concurrency)
    with Progress() as watcher:
        run(label_collection(collection, manifest, template, store, workers, watcher=watcher))
    _print(store, min_useful)


@app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of the labels.")],
    min_useful: MinUseful = 2,
    as_json: AsJson = False,
) -> None:
    """Print a summary of the labels: useful documents per question, and dropped questions."""
    from fairqr.evaluation.rag.labelling import summarise_labels
    from fairqr.evaluation.rag.store import GenerationLabels

    store = GenerationLabels(folder)
    if not as_json:
        _print(store, min_useful)
        return
    manifest = store.manifest().model_dump(mode="json")
    summary = dataclasses.asdict(summarise_labels(store.lines.read(), min_useful))
    print_json({"labels": manifest, "summary": summary})


def _version(text: str | None, prompt: str) -> str | None:
    """Read the version of a prompt, written with its name or without.

    Raises:
        InputError: The collection uses another prompt.
    """
    from fairqr.base.errors import InputError

    if text is None or "=" not in text:
        return text
    ((name, version),) = pairs([text], "a version of a prompt", "lamp5=v2").items()
    if name != prompt:
        raise InputError(
            f"The collection uses the prompt {prompt}; write --prompt {prompt}={version}."
        )
    return version


def _print(store: GenerationLabels, min_useful: int) -> None:
    from fairqr.base.errors import one_line
    from fairqr.evaluation.rag.labelling import summarise_labels

    manifest = store.manifest()
    summary = summarise_labels(store.lines.read(), min_useful)
    typer.echo(one_line(f"{manifest.title}, {manifest.task}, {manifest.generator}"))
    for line in _told(summary):
        typer.echo(line)


def _told(summary: LabelSummary) -> list[str]:
    lines = [f"questions: {summary.labelled:,} labelled, {summary.kept:,} kept"]
    lines += [f"  dropped: {count:,}, {reason}" for reason, count in summary.dropped.items()]
    spread = ""
    if summary.useful_mean is not None:
        spread = f", {summary.useful_mean:.2f} a question"
        if summary.useful_sd is not None:
            spread += f" (sd {summary.useful_sd:.2f})"
    lines.append(f"documents of kept questions: {summary.documents:,}")
    lines.append(f"useful documents: {summary.useful:,}{spread}")
    if summary.share is not None:
        lines.append(f"share useful: {summary.share:.1%}")
    if summary.unlabelled:
        lines.append(f"not labelled: {summary.unlabelled:,} documents, whose answers failed")
    return lines
