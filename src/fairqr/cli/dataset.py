"""The commands ``fairqr dataset …``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.cli.collection_options import Split
from fairqr.cli.common import AsJson, print_json, print_row, printable
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.evaluation.collections.statistics import AttributeStatistics, CollectionStatistics

app = typer.Typer()


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the built-in and the imported collections."""
    from fairqr.evaluation.collections.finding import list_collections

    found = list_collections()
    if as_json:
        print_json([{**asdict(listed), "folder": str(listed.folder)} for listed in found])
        return
    for listed in found:
        documents = "" if listed.documents is None else f"{listed.documents:,} documents"
        what = listed.problem or listed.title
        columns = (listed.name, listed.kind, documents, ", ".join(listed.splits), what)
        print_row(*filter(None, columns))


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="The name of a collection, or its folder.")],
    split: Split = None,
    as_json: AsJson = False,
) -> None:
    """Show what a collection holds: its sizes, groups, coverage of labels, and targets."""
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.collections.statistics import describe_collection

    with Progress() as progress:
        collection = find_collection(name, split, progress=progress.count(f"importing {name}"))
        found = describe_collection(collection, progress.count(f"reading {collection.name}"))
    if as_json:
        data = {**found.as_dict(), "folder": str(collection.folder)}
        data["about"] = collection.about.model_dump(exclude_defaults=True)
        print_json(data)
        return
    lines = [f"{found.name}: {found.title}" if found.title != found.name else found.name]
    for field in ("source", "licence", "note"):
        if text := getattr(collection.about, field):
            lines.append(f"{field}: {text}")
    lines += [f"folder: {collection.folder}", *_sizes(found)]
    for line in lines:
        typer.echo(printable(line))
    for attribute, statistics in found.attributes.items():
        typer.echo()
        _print_attribute(attribute, statistics, found)


@app.command("import")
def import_(
    loader: Annotated[
        str,
        typer.Argument(
            help="trec-fair-2021, trec-fair-2022, trec2022-subset, ir-datasets or jsonl."
        ),
    ],
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="The files, or the folder with them; for ir-datasets the id of the dataset."
        ),
    ],
    name: Annotated[str, typer.Option(help="The name of the collection.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a collection of that name.")
    ] = False,
) -> None:
    """Import files as a collection."""
    from fairqr.evaluation.collections.finding import find_loader, import_collection

    chosen = find_loader(loader)
    with Progress() as progress:
        counted = progress.count(f"importing {name}")
        folder, report = import_collection(chosen, paths, name, replace=replace, progress=counted)
    typer.echo(f"{name}: imported into {folder}")
    for line in report.lines():
        typer.echo(printable(f"  {line}"))


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


def _print_attribute(
    name: str, statistics: AttributeStatistics, found: CollectionStatistics
) -> None:
    from fairqr.cli.terminal import Output, number, percent, table

    total = found.relevant_documents
    share = f" ({statistics.labelled / total:.1%})" if total else ""
    known = 1 - statistics.corpus["unknown"]
    typer.echo(
        printable(
            f"{name}: known for {known:.1%} of the documents, and for {statistics.labelled:,} of "
            f"{total:,}{share} relevant ones"
        )
    )
    columns = {
        "documents": statistics.corpus,
        "relevant": statistics.relevant,
        "population": statistics.population or {},
        "target": statistics.target or {},
    }
    rows = [
        (f"  {group}", *(percent(shares.get(group), 2) for shares in columns.values()))
        for group in statistics.corpus
    ]
    Output().print(table(["", *map(number, columns)], rows))
    if statistics.target is None:
        typer.echo(printable(f"  no target: {statistics.no_target}"))
    else:
        typer.echo(f"  target: the mean over {statistics.target_topics} topics")
