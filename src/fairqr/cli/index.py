"""The commands ``fairqr index …``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from fairqr.base.errors import InputError
from fairqr.cli.common import open_to_search, print_json, printable, run
from fairqr.cli.progress import Progress

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Make, list and delete indexes.")

Name = Annotated[str, typer.Argument(help="The name of the index.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def create(
    name: Name,
    path: Annotated[
        Path,
        typer.Argument(help="A JSON Lines file, a folder with one, or a built-in corpus."),
    ],
    schema: Annotated[
        Path | None, typer.Option(help="The schema; the one beside the file where not given.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            help="Where the index is to be: tantivy (embedded) or elasticsearch.", metavar="BACKEND"
        ),
    ] = "tantivy",
    url: Annotated[
        str | None,
        typer.Option(
            help="With elasticsearch: the server; FAIRQR_ELASTICSEARCH_URL where not given.",
            metavar="URL",
        ),
    ] = None,
    credentials: Annotated[
        str | None,
        typer.Option(help="With elasticsearch: an entry [credentials.NAME] of the settings file."),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            help="With elasticsearch: also store a vector of each document, by this encoder, such "
            "as wordllama.",
            metavar="ENCODER",
        ),
    ] = None,
) -> None:
    """Index a corpus; an index of the same name is replaced once the new one is whole.

    On Elasticsearch this makes an index and attaches it. To search an index that you have already,
    see 'fairqr attach --help'.
    """
    from fairqr.retrieval.catalog import Catalog, info_of
    from fairqr.retrieval.corpus import BUILT_IN, find_corpus
    from fairqr.retrieval.encoders.opening import open_encoder

    if backend not in ("tantivy", "elasticsearch"):
        raise InputError(f"There is no backend '{backend}'; choose tantivy or elasticsearch.")
    if backend == "tantivy" and (url or credentials or vectors):
        raise InputError(
            "The embedded index takes no --url, --credentials or --vectors; leave them out, or add "
            "--backend elasticsearch."
        )
    corpus = find_corpus(BUILT_IN.get(str(path), path), schema)
    encoder = open_encoder(vectors) if vectors else None

    async def work() -> None:
        catalog = Catalog()
        with Progress() as progress:
            if backend == "elasticsearch":
                await catalog.create_on_elasticsearch(
                    name,
                    corpus,
                    url=url,
                    credentials=credentials,
                    encoder=encoder,
                    progress=progress.prepare(name),
                )
                engine = await catalog.resolve(name)
            else:
                engine = await catalog.create(name, corpus, progress=progress.prepare(name))
        info = await info_of(engine)
        typer.echo(f"{name}: {info.documents} documents in {info.location}")

    run(work())


@app.command()
def add(
    name: Name, path: Annotated[Path, typer.Argument(help="A JSON Lines file of documents.")]
) -> None:
    """Add documents to an index, in place of those with the same ids."""
    from fairqr.retrieval.catalog import Catalog

    async def work() -> None:
        with Progress() as progress:
            written, documents = await Catalog().upsert(name, path, progress=progress.prepare(name))
        typer.echo(f"{name}: {written} documents written, {documents} in all")

    run(work())


@app.command()
def remove(
    name: Name, ids: Annotated[list[str], typer.Argument(help="The ids of the documents.")]
) -> None:
    """Remove documents from an index."""
    from fairqr.retrieval.catalog import Catalog

    async def work() -> None:
        removed, documents = await Catalog().remove(name, ids)
        typer.echo(f"{name}: {removed} of {len(ids)} documents removed, {documents} left")

    run(work())


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List what can be searched by name: indexes, attached sources, and the built-in corpora."""
    from fairqr.retrieval.catalog import Catalog
    from fairqr.retrieval.corpus import BUILT_IN
    from fairqr.retrieval.engines.engine import EngineInfo

    infos = run(Catalog().infos())
    if as_json:
        rows = [
            dataclasses.asdict(info)
            if isinstance(info, EngineInfo)
            else dict(zip(("name", "engine", "error"), info, strict=True))
            for info in infos
        ]
        print_json(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    for info in infos:
        if isinstance(info, EngineInfo):
            size = "" if info.documents is None else f"{info.documents} documents"
            cells: tuple[str, ...] = (info.name, info.engine, size, info.source)
        else:
            cells = info
        typer.echo("\t".join(map(printable, cells)))
    listed = {info.name if isinstance(info, EngineInfo) else info[0] for info in infos}
    for name in BUILT_IN:
        if name not in listed:
            typer.echo(f"{name}\tbuilt in\tindexed when it is first searched")


@app.command()
def info(name: Name, as_json: Json = False) -> None:
    """Show what is known of an index: its documents, attributes and the share of each group."""

    async def work() -> None:
        engine = await open_to_search(name)
        try:
            found = dataclasses.asdict(await engine.info())
            counts = "corpus_shares" in engine.capabilities
            shares = await engine.corpus_shares() if counts else {}
        finally:
            await engine.aclose()
        found["attributes"] = {
            attribute.name: dict(
                zip(attribute.universe, shares[attribute.name].tolist(), strict=True)
            )
            if attribute.name in shares
            else dict.fromkeys(attribute.universe)
            for attribute in engine.schema.attributes.values()
        }
        if as_json:
            print_json(json.dumps(found, ensure_ascii=False, indent=2))
            return
        for key, value in found.items():
            if key != "attributes" and value is not None:
                typer.echo(f"{key}: {printable(str(value))}")
        for attribute, groups in found["attributes"].items():
            listed = ", ".join(
                group if share is None else f"{group} {share:.1%}"
                for group, share in groups.items()
            )
            typer.echo(f"{attribute}: {printable(listed)}")

    run(work())


@app.command()
def delete(name: Name) -> None:
    """Delete an index, also from the server that it was made on."""
    from fairqr.retrieval.catalog import Catalog

    run(Catalog().delete(name))
    typer.echo(f"{name}: deleted")
