"""The command ``fairqr probe build``: queries with items, for probes of rankers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.cli.collection_options import NOTABLES, Protected, Split, Words, source_of
from fairqr.cli.common import AsJson, print_json, printable, run
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.evaluation.probes.collection import ProbeCollection


def build(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.")],
    attribute: Annotated[
        str, typer.Option(help="An attribute of the collection's schema, such as gender.")
    ],
    collection: Annotated[
        str, typer.Argument(help="A collection with judgements: its name or its folder.")
    ] = NOTABLES,
    protected: Protected = None,
    words: Words = None,
    size: Annotated[int, typer.Option(help="Items per query, a multiple of 4.")] = 200,
    order: Annotated[
        str, typer.Option(help="The initial order: shuffled, bm25 or discriminatory.")
    ] = "shuffled",
    seed: Annotated[int, typer.Option(min=0, help="The seed of the draws and of the order.")] = 0,
    queries: Annotated[
        int | None, typer.Option(min=1, help="The most queries to use; all by default.")
    ] = None,
    titles_only: Annotated[
        bool, typer.Option("--titles-only", help="Keep only the titles, no texts.")
    ] = False,
    split: Split = None,
    as_json: AsJson = False,
) -> None:
    """Build a probe collection: per query, relevant and irrelevant items of both groups.

    Irrelevant items are drawn from the relevant items of other queries.
    """
    from fairqr.cli.parameters import checked
    from fairqr.evaluation.probes.building import open_probe_collection
    from fairqr.evaluation.probes.collection import check_folder, write_probe_collection
    from fairqr.evaluation.probes.specification import ProbeSettings, ProbeSource

    # Report a wrong folder before a large corpus is read.
    check_folder(output)
    values = {
        "collection": collection,
        "split": split,
        "queries": queries,
        "size": size,
        "order": order,
        "seed": seed,
    }
    settings = checked(ProbeSettings, values)
    with Progress() as progress:
        importing = progress.count(f"importing {collection}")
        source = source_of(collection, split, attribute, protected, words, progress=importing)
        built = run(
            open_probe_collection(
                checked(ProbeSource, source),
                settings,
                texts=not titles_only,
                preparing=progress.count,
            )
        )
    write_probe_collection(built, output)
    items = sum(len(query.items) for query in built.queries)
    if as_json:
        data = {"folder": str(output), "items": items, **built.manifest.model_dump(mode="json")}
        print_json(data)
        return
    for line in [*_told(built, items), f"written: {output}"]:
        typer.echo(printable(line))


def _told(built: ProbeCollection, items: int) -> Iterator[str]:
    """Say what was built, what is missing, and what was left out."""
    manifest = built.manifest
    yield manifest.name
    kept = "titles and texts" if manifest.texts else "titles"
    yield (
        f"{manifest.queries:,} queries, {items:,} items ({kept}); at most {manifest.size:,} items "
        f"a query, {manifest.size // 4:,} a cell"
    )
    yield f"initial order: {manifest.order}; seed {manifest.seed}"
    yield f"protected: {manifest.protected} ({', '.join(manifest.protected_groups)})"
    yield f"unprotected: {manifest.unprotected} ({', '.join(manifest.unprotected_groups)})"
    for cell, lack in manifest.short.items():
        yield (
            f"short: {cell.replace('_', ' ')}, in {lack['queries']:,} of {manifest.queries:,} "
            f"queries, {lack['items']:,} items together"
        )
    for reason, topics in manifest.dropped.items():
        yield f"dropped: {topics:,} topics, {reason.replace('_', ' ')}"
    if manifest.undecided:
        yield f"left out: {manifest.undecided:,} relevant documents of neither side"
    if manifest.missing:
        yield f"left out: {manifest.missing:,} relevant documents that the corpus lacks"
