"""The commands ``fairqr index …``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from fairqr.cli.common import BackendOption, UrlOption, choice, indexing_bar, run

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Make, list and delete indexes.")

Name = Annotated[str, typer.Argument(help="The name of the index.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def create(
    name: Name,
    path: Annotated[Path, typer.Argument(help="A JSON Lines file, or a folder with one.")],
    schema: Annotated[
        Path | None, typer.Option(help="The schema; the one beside the file where not given.")
    ] = None,
    backend: Annotated[str | None, BackendOption] = None,
    url: Annotated[str | None, UrlOption] = None,
) -> None:
    """Index a corpus; an index of the same name is replaced once the new one is whole."""
    from fairqr.retrieval.catalog import Catalog, Choice
    from fairqr.retrieval.corpus import find_corpus

    corpus = find_corpus(path, schema)

    async def work() -> None:
        with indexing_bar() as bar:
            where = choice(backend, url) or Choice()
            index = await Catalog().create(name, corpus, where, bar(name))
        info = await index.info()
        await index.close()
        typer.echo(f"{name}: {info.documents} documents in {info.location}")

    run(work())


@app.command()
def add(
    name: Name,
    path: Annotated[Path, typer.Argument(help="A JSON Lines file of documents.")],
    backend: Annotated[str | None, BackendOption] = None,
    url: Annotated[str | None, UrlOption] = None,
) -> None:
    """Add documents to an index, in place of those with the same ids."""
    from fairqr.retrieval.catalog import Catalog
    from fairqr.retrieval.documents import read_documents

    async def work() -> None:
        index = await Catalog().open(name, choice(backend, url))
        with indexing_bar() as bar:
            count = await index.upsert(read_documents(path, index.schema), bar(name))
        info = await index.info()
        await index.close()
        typer.echo(f"{name}: {count} documents written, {info.documents} in all")

    run(work())


@app.command()
def remove(
    name: Name,
    ids: Annotated[list[str], typer.Argument(help="The ids of the documents.")],
    backend: Annotated[str | None, BackendOption] = None,
    url: Annotated[str | None, UrlOption] = None,
) -> None:
    """Remove documents from an index."""
    from fairqr.retrieval.catalog import Catalog

    async def work() -> None:
        index = await Catalog().open(name, choice(backend, url))
        count = await index.delete(ids)
        info = await index.info()
        await index.close()
        typer.echo(f"{name}: {count} of {len(ids)} documents removed, {info.documents} left")

    run(work())


@app.command("list")
def list_(
    backend: Annotated[str | None, BackendOption] = None,
    url: Annotated[str | None, UrlOption] = None,
    as_json: Json = False,
) -> None:
    """List the indexes made here and the built-in corpora, or all of fairqr's on a server."""
    from fairqr.retrieval.catalog import Catalog
    from fairqr.retrieval.corpus import BUILT_IN
    from fairqr.retrieval.index import IndexInfo

    where = choice(backend, url)
    infos = run(Catalog().infos(where))
    if as_json:
        rows = [
            dataclasses.asdict(info)
            if isinstance(info, IndexInfo)
            else dict(zip(("name", "backend", "error"), info, strict=True))
            for info in infos
        ]
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    for info in infos:
        if isinstance(info, IndexInfo):
            typer.echo(f"{info.name}\t{info.backend}\t{info.documents} documents\t{info.source}")
        else:
            typer.echo("\t".join(info))
    if where is not None:
        return
    indexed = {info.name if isinstance(info, IndexInfo) else info[0] for info in infos}
    for name in BUILT_IN:
        if name not in indexed:
            typer.echo(f"{name}\tbuilt in\tindexed when it is first searched")


@app.command()
def info(
    name: Name,
    backend: Annotated[str | None, BackendOption] = None,
    url: Annotated[str | None, UrlOption] = None,
    as_json: Json = False,
) -> None:
    """Show what is known of an index: its documents, attributes and the share of each group."""
    from fairqr.retrieval.catalog import Catalog

    async def work() -> None:
        index = await Catalog().open(name, choice(backend, url))
        found = dataclasses.asdict(await index.info())
        found["attributes"] = {
            attribute.name: dict(
                zip(
                    attribute.universe,
                    (await index.corpus_shares(attribute.name)).tolist(),
                    strict=True,
                )
            )
            for attribute in index.schema.attributes.values()
        }
        await index.close()
        if as_json:
            typer.echo(json.dumps(found, ensure_ascii=False, indent=2))
            return
        for key, value in found.items():
            if key != "attributes":
                typer.echo(f"{key}: {value}")
        for attribute, shares in found["attributes"].items():
            listed = ", ".join(f"{group} {share:.1%}" for group, share in shares.items())
            typer.echo(f"{attribute}: {listed}")

    run(work())


@app.command()
def delete(
    name: Name,
    backend: Annotated[str | None, BackendOption] = None,
    url: Annotated[str | None, UrlOption] = None,
) -> None:
    """Delete an index."""
    from fairqr.retrieval.catalog import Catalog

    run(Catalog().delete(name, choice(backend, url)))
    typer.echo(f"{name}: deleted")
