"""The commands ``fairqr dataset …``: collections with topics and judgements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.cli.options import command
from fairqr.cli.output import Printed, fact_lines, listing, number, percent, say, table
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer()

MOST_TOPICS = 10
"""How many topics without a relevant document are named; ``--json`` has all."""

SHOWN_OTHERWISE = ("name", "title", "attributes", "relevant", "topics_without_relevant")
"""The parts of a collection's description that are not shown as they are."""


@command(app, "list")
def list_collections() -> Printed:
    """List the built-in and the imported collections."""
    from fairqr.evaluation.collections import finding

    rows = finding.list_collections()
    return Printed(rows, [listing(rows, "name", "kind", "documents", "splits", "problem")])


@command(app, "info")
def describe(
    name: Annotated[str, typer.Argument(help="The name of a collection, or its folder.")],
    *,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", help="Which judgements to use, if there are several sets: train or eval."
        ),
    ] = None,
) -> Printed:
    """Show what a collection holds: its sizes, groups, coverage of labels, and targets."""
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.collections.statistics import describe_collection

    with Progress() as progress:
        collection = find_collection(name, split)
        counter = progress.count(f"reading {collection.name}")
        description = describe_collection(collection, counter)
    about = collection.about.model_dump(exclude_defaults=True)
    data = {**description, "folder": str(collection.folder), "about": about}

    lines: list[Any] = [f"{description['name']}: {description['title']}"]
    lines += fact_lines(_facts_of(data))
    for attribute, shares in description["attributes"].items():
        lines += ["", _share_table(attribute, shares)]
        if shares["target"]:
            lines.append(f"target: the mean over {shares['target_topics']} topics")
        else:
            lines.append(f"no target: {shares['no_target']}")
    return Printed(data, lines)


def _facts_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a collection holds, except for its title and its groups."""
    facts = {name: value for name, value in data.items() if name not in SHOWN_OTHERWISE}
    low, median, high = data["relevant"]
    facts["relevant of a topic"] = f"{low:,} to {high:,}, {median:,g} in the median"
    without_relevant = data["topics_without_relevant"]
    unnamed = len(without_relevant[MOST_TOPICS:])
    facts["topics without a relevant document"] = without_relevant[:MOST_TOPICS] or None
    facts["more of these topics"] = unnamed or None
    return facts


def _share_table(attribute: str, shares: Mapping[str, Any]) -> Table:
    """Draw the share of each group in the documents, the relevant ones and the targets."""
    columns = {"documents": shares["corpus"]}
    for name in ("relevant", "population", "target"):
        columns[name] = shares[name] or {}
    rows = []
    for group in shares["corpus"]:
        cells = [percent(column.get(group), 2) for column in columns.values()]
        rows.append((group, *cells))
    return table([attribute, *map(number, columns)], rows)


@command(app, "import")
def import_(
    loader: Annotated[
        str,
        typer.Argument(
            help=(
                "trec-fair-2021, trec-fair-2022, trec-fair-2022-all (with the track's other "
                "dimensions), trec2022-subset or jsonl."
            )
        ),
    ],
    paths: Annotated[list[Path], typer.Argument(help="The files, or the folder with them.")],
    *,
    name: Annotated[str, typer.Option("--name", help="The name of the collection.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a collection of that name.")
    ] = False,
) -> None:
    """Import files as a collection."""
    from fairqr.evaluation.collections.finding import import_collection

    with Progress() as progress:
        counter = progress.count(f"importing {name}")
        folder, contents = import_collection(loader, paths, name, replace=replace, progress=counter)
    lines = [f"  {line}" for line in contents]
    say([f"{name}: imported into {folder}", *lines])
