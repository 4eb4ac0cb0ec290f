"""The commands ``fairqr dataset …``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairqr.cli.options import command
from fairqr.cli.output import Printed, number, percent, row_lines, say, table
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairqr.evaluation.collections.statistics import CollectionStatistics

app = typer.Typer()


@command(app)
def list_() -> Printed:
    """List the built-in and the imported collections."""
    from dataclasses import asdict

    from fairqr.evaluation.collections.finding import list_collections

    found = list_collections()
    rows = [
        (
            listed.name,
            listed.kind,
            "" if listed.documents is None else f"{listed.documents:,} documents",
            ", ".join(listed.splits),
            listed.problem or listed.title,
        )
        for listed in found
    ]
    return Printed([asdict(listed) for listed in found], row_lines(rows))


@command(app)
def info(name: str, *, split: str | None = None) -> Printed:
    """Show what a collection holds: its sizes, groups, coverage of labels, and targets.

    Args:
        name: The name of a collection, or its folder.
        split: Which judgements to use, if there are several sets: train or eval.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.collections.statistics import describe_collection

    with Progress() as progress:
        collection = find_collection(name, split, progress=progress.count(f"importing {name}"))
        found = describe_collection(collection, progress.count(f"reading {collection.name}"))
    about = collection.about.model_dump(exclude_defaults=True)
    lines = [f"{found.name}: {found.title}" if found.title != found.name else found.name]
    for field in ("source", "licence", "note"):
        if text := getattr(collection.about, field):
            lines.append(f"{field}: {text}")
    lines.append(f"folder: {collection.folder}")
    data = {**found.as_dict(), "folder": str(collection.folder), "about": about}
    return Printed(data, [*lines, *_sizes(found), *_attributes(found)])


@command(app, "import")
def import_(loader: str, paths: list[Path], *, name: str, replace: bool = False) -> None:
    """Import files as a collection.

    Args:
        loader: trec-fair-2021, trec-fair-2022, trec2022-subset, ir-datasets or jsonl.
        paths: The files, or the folder with them; for ir-datasets the id of the dataset.
        name: The name of the collection.
        replace: Replace a collection of that name.
    """
    from fairqr.evaluation.collections.finding import find_loader, import_collection

    chosen = find_loader(loader)
    with Progress() as progress:
        counted = progress.count(f"importing {name}")
        folder, report = import_collection(chosen, paths, name, replace=replace, progress=counted)
    say([f"{name}: imported into {folder}", *(f"  {line}" for line in report.lines())])


def _sizes(found: CollectionStatistics) -> Iterator[str]:
    low, middle, high = found.relevant
    name = f" of {found.split}" if found.split else ""
    yield f"{found.documents:,} documents"
    yield f"{found.topics} topics{name}, {found.judgements:,} judgements"
    yield (
        f"relevant documents of a topic: {low:,} at least, {middle:,g} in the median, "
        f"{high:,} at most; {found.relevant_documents:,} different ones"
    )
    if found.topics_without_relevant:
        named = ", ".join(found.topics_without_relevant[:10])
        more = ", …" if len(found.topics_without_relevant) > 10 else ""
        yield f"topics without a relevant document: {named}{more}"
    if found.missing_documents:
        yield f"{found.missing_documents:,} judged documents are not among the documents"
    if found.ignored_judgements:
        yield f"{found.ignored_judgements:,} judgements belong to no topic and are ignored"
    yield f"target: {found.target}"


def _attributes(found: CollectionStatistics) -> Iterator[RenderableType]:
    total = found.relevant_documents
    for name, statistics in found.attributes.items():
        share = f" ({statistics.labelled / total:.1%})" if total else ""
        known = 1 - statistics.corpus["unknown"]
        yield ""
        yield (
            f"{name}: known for {known:.1%} of the documents, and for {statistics.labelled:,} of "
            f"{total:,}{share} relevant ones"
        )
        columns = {
            "documents": statistics.corpus,
            "relevant": statistics.relevant,
            "population": statistics.population or {},
            "target": statistics.target or {},
        }
        yield table(
            ["", *map(number, columns)],
            (
                (f"  {group}", *(percent(shares.get(group), 2) for shares in columns.values()))
                for group in statistics.corpus
            ),
        )
        if statistics.target is None:
            yield f"  no target: {statistics.no_target}"
        else:
            yield f"  target: the mean over {statistics.target_topics} topics"
