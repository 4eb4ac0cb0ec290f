"""The commands ``fairqr lamp …``: labels of utility, for the measures of fair RAG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.base.errors import InputError
from fairqr.cli.common import run
from fairqr.cli.options import Count, command
from fairqr.cli.output import Printed, say
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.evaluation.rag.labelling import LabelSummary
    from fairqr.evaluation.rag.store import GenerationLabels

app = typer.Typer()


@command(app)
def label(
    path: str,
    *,
    generator: str,
    output: Path,
    task: str | None = None,
    limit: Count = 1000,
    pool: int | None = None,
    prompt: str | None = None,
    prompts: Path | None = None,
    concurrency: Count = 2,
    min_useful: Count = 2,
) -> None:
    """Label a collection: the gain of each document over the answer without documents.

    Args:
        path: A folder of LaMP, notables, or a JSON Lines file of your own.
        generator: The model that answers, such as seq2seq:google/flan-t5-small.
        output: The folder of the labels; an interrupted run resumes.
        task: The task, if the files do not name it.
        limit: The most questions to use.
        pool: Use at most this many documents per question; all by default.
        prompt: The version of the task's prompt: lamp5=v2, or just v2.
        prompts: A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]
        concurrency: How many questions run at a time.
        min_useful: Drop questions with fewer useful documents.
    """
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
    say(_lines(store, min_useful)[1])


@command(app)
def report(folder: Path, *, min_useful: Count = 2) -> Printed:
    """Print a summary of the labels: useful documents per question, and dropped questions.

    Args:
        folder: The folder of the labels.
        min_useful: Drop questions with fewer useful documents.
    """
    from fairqr.evaluation.rag.store import GenerationLabels

    return Printed(*_lines(GenerationLabels(folder), min_useful))


def _version(text: str | None, prompt: str) -> str | None:
    """Read the version of a prompt, written with its name or without.

    Raises:
        InputError: The collection uses another prompt.
    """
    name, equals, version = (text or "").rpartition("=")
    if equals and name != prompt:
        raise InputError(
            f"The collection uses the prompt {prompt}; write --prompt {prompt}={version}."
        )
    return version or None


def _lines(store: GenerationLabels, min_useful: int) -> tuple[dict[str, Any], list[str]]:
    """Return a summary of labels, for programs and for people."""
    from dataclasses import asdict

    from fairqr.evaluation.rag.labelling import summarise_labels

    manifest = store.manifest()
    summary = summarise_labels(store.lines.read(), min_useful)
    data = {"labels": manifest.model_dump(mode="json"), "summary": asdict(summary)}
    title = f"{manifest.title}, {manifest.task}, {manifest.generator}"
    return data, [title, *_summary_lines(summary)]


def _summary_lines(summary: LabelSummary) -> Iterator[str]:
    yield f"questions: {summary.labelled:,} labelled, {summary.kept:,} kept"
    for reason, count in summary.dropped.items():
        yield f"  dropped: {count:,}, {reason}"
    spread = "" if summary.useful_mean is None else f", {summary.useful_mean:.2f} a question"
    spread += "" if summary.useful_sd is None else f" (sd {summary.useful_sd:.2f})"
    yield f"documents of kept questions: {summary.documents:,}"
    yield f"useful documents: {summary.useful:,}{spread}"
    if summary.share is not None:
        yield f"share useful: {summary.share:.1%}"
    if summary.unlabelled:
        yield f"not labelled: {summary.unlabelled:,} documents, whose answers failed"
