"""The commands ``fairqr index …``."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.cli.common import AsJson, open_to_search, print_json, print_row, printable, run
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.retrieval.encoders.encoder import Encoder
    from fairqr.retrieval.sources.corpus import Corpus

app = typer.Typer()

Name = Annotated[str, typer.Argument(help="The name of the index.")]


@app.command()
def create(
    name: Name,
    path: Annotated[
        Path,
        typer.Argument(help="A JSON Lines file, a folder with one, or a built-in corpus."),
    ],
    schema: Annotated[
        Path | None, typer.Option(help="The schema; by default the one beside the file.")
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            help="Also store a vector of each document, made by this encoder, such as minilm. "
            "Without it, the index makes vectors at the first search that needs them.",
            metavar="ENCODER",
        ),
    ] = None,
) -> None:
    """Index a corpus; an index of the same name is replaced once the new one is complete.

    To search an index that you already have on a server, see 'fairqr attach --help'.
    """
    from fairqr.retrieval.encoders.opening import open_encoder
    from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus

    corpus = find_corpus(BUILT_IN.get(str(path), path), schema)
    encoder = open_encoder(vectors) if vectors else None

    run(_create(name, corpus, encoder))


async def _create(name: str, corpus: Corpus, encoder: Encoder | None) -> None:
    from fairqr.retrieval.sources.catalog import Catalog, info_of

    catalog = Catalog()
    with Progress() as progress:
        bar = progress.prepare(name)
        engine = await catalog.create(name, corpus, encoder=encoder, progress=bar)
    info = await info_of(engine)
    typer.echo(f"{name}: {info.documents} documents in {info.location}")


@app.command()
def add(
    name: Name, path: Annotated[Path, typer.Argument(help="A JSON Lines file of documents.")]
) -> None:
    """Add documents to an index; they replace documents with the same ids."""
    from fairqr.retrieval.sources.catalog import Catalog

    with Progress() as progress:
        written, total = run(Catalog().upsert(name, path, progress=progress.prepare(name)))
    typer.echo(f"{name}: {written} documents written, {total} in all")


@app.command()
def remove(
    name: Name, ids: Annotated[list[str], typer.Argument(help="The ids of the documents.")]
) -> None:
    """Remove documents from an index."""
    from fairqr.retrieval.sources.catalog import Catalog

    removed, left = run(Catalog().remove(name, ids))
    typer.echo(f"{name}: {removed} of {len(ids)} documents removed, {left} left")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List what can be searched by name: indexes, attached sources, and the built-in corpora."""
    from fairqr.retrieval.engines.engine import EngineInfo
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.corpus import BUILT_IN

    rows: dict[str, dict[str, Any]] = {}
    for found in run(Catalog().infos()):
        if isinstance(found, EngineInfo):
            rows[found.name] = dataclasses.asdict(found)
        else:
            name, engine, error = found
            rows[name] = {"name": name, "engine": engine, "error": error}
    if as_json:
        print_json(list(rows.values()))
        return
    for row in rows.values():
        if "error" in row:
            print_row(row["name"], row["engine"], row["error"])
        else:
            size = "" if row["documents"] is None else f"{row['documents']} documents"
            print_row(row["name"], row["engine"], size, row["source"])
    for name in BUILT_IN:
        if name not in rows:
            print_row(name, "built in", "indexed when it is first searched")


@app.command()
def info(name: Name, as_json: AsJson = False) -> None:
    """Show an index: its documents, its attributes and the share of each group."""
    found = run(_described(name))
    if as_json:
        print_json(found)
        return
    attributes = found.pop("attributes")
    for key, value in found.items():
        if value is not None:
            typer.echo(f"{key}: {printable(str(value))}")
    for attribute, groups in attributes.items():
        listed = (
            group if share is None else f"{group} {share:.1%}" for group, share in groups.items()
        )
        typer.echo(f"{attribute}: {printable(', '.join(listed))}")


async def _described(name: str) -> dict[str, Any]:
    """Describe an index; shares are None if its engine cannot count them."""
    async with contextlib.aclosing(await open_to_search(name)) as engine:
        found = dataclasses.asdict(await engine.info())
        counts = "corpus_shares" in engine.capabilities
        shares = await engine.corpus_shares() if counts else {}
    found["attributes"] = {
        attribute.name: dict(zip(attribute.universe, shares[attribute.name].tolist(), strict=True))
        if attribute.name in shares
        else dict.fromkeys(attribute.universe)
        for attribute in engine.schema.attributes.values()
    }
    return found


@app.command()
def delete(name: Name) -> None:
    """Delete an index."""
    from fairqr.retrieval.sources.catalog import Catalog

    run(Catalog().delete(name))
    typer.echo(f"{name}: deleted")
