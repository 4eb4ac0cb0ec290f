"""The commands ``fairqr index …``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from fairqr.cli.common import open_to_search, run
from fairqr.cli.options import command
from fairqr.cli.output import Printed, row_lines
from fairqr.cli.progress import Progress

app = typer.Typer()


@command(app)
def create(
    name: str, path: Path, *, schema: Path | None = None, vectors: str | None = None
) -> None:
    """Index a corpus; an index of the same name is replaced once the new one is complete.

    To search an index that you already have on a server, see 'fairqr attach --help'.

    Args:
        name: The name of the index.
        path: A JSON Lines file, a folder with one, or a built-in corpus.
        schema: The schema; by default the one beside the file.
        vectors: Also store a vector of each document, made by this encoder, such as minilm.
            Without it, the index makes vectors at the first search that needs them.
    """
    from fairqr.retrieval.encoders.opening import open_encoder
    from fairqr.retrieval.sources.catalog import Catalog, info_of
    from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus

    corpus = find_corpus(BUILT_IN.get(str(path), path), schema)
    encoder = open_encoder(vectors) if vectors else None

    async def work() -> None:
        with Progress() as progress:
            bar = progress.prepare(name)
            engine = await Catalog().create(name, corpus, encoder=encoder, progress=bar)
        info = await info_of(engine)
        typer.echo(f"{name}: {info.documents} documents in {info.location}")

    run(work())


@command(app)
def add(name: str, path: Path) -> None:
    """Add documents to an index; they replace documents with the same ids.

    Args:
        name: The name of the index.
        path: A JSON Lines file of documents.
    """
    from fairqr.retrieval.sources.catalog import Catalog

    with Progress() as progress:
        written, total = run(Catalog().upsert(name, path, progress=progress.prepare(name)))
    typer.echo(f"{name}: {written} documents written, {total} in all")


@command(app)
def remove(name: str, ids: list[str]) -> None:
    """Remove documents from an index.

    Args:
        name: The name of the index.
        ids: The ids of the documents.
    """
    from fairqr.retrieval.sources.catalog import Catalog

    removed, left = run(Catalog().remove(name, ids))
    typer.echo(f"{name}: {removed} of {len(ids)} documents removed, {left} left")


@command(app)
def list_() -> Printed:
    """List what can be searched by name: indexes, attached sources, and the built-in corpora."""
    from fairqr.retrieval.engines.engine import EngineInfo
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.corpus import BUILT_IN

    rows: list[dict[str, Any]] = []
    for found in run(Catalog().infos()):
        if isinstance(found, EngineInfo):
            rows.append(dataclasses.asdict(found))
        else:
            rows.append(dict(zip(("name", "engine", "error"), found, strict=True)))
    shown = [
        (row["name"], row["engine"], _size(row), row.get("error") or row["source"]) for row in rows
    ]
    taken = {row["name"] for row in rows}
    later = "indexed when it is first searched"
    shown += [(name, "built in", "", later) for name in BUILT_IN if name not in taken]
    return Printed(rows, row_lines(shown))


def _size(row: Mapping[str, Any]) -> str:
    return "" if row.get("documents") is None else f"{row['documents']} documents"


@command(app)
def info(name: str) -> Printed:
    """Show an index: its documents, its attributes and the share of each group.

    Args:
        name: The name of the index.
    """
    found = run(_described(name))
    told = {key: value for key, value in found.items() if value is not None}
    attributes = told.pop("attributes")
    lines = [f"{key}: {value}" for key, value in told.items()]
    for attribute, groups in attributes.items():
        listed = [
            group if share is None else f"{group} {share:.1%}" for group, share in groups.items()
        ]
        lines.append(f"{attribute}: {', '.join(listed)}")
    return Printed(found, lines)


async def _described(name: str) -> dict[str, Any]:
    """Describe an index; shares are None if its engine cannot count them."""
    async with contextlib.aclosing(await open_to_search(name, retriever="bm25")) as engine:
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


@command(app)
def delete(name: str) -> None:
    """Delete an index.

    Args:
        name: The name of the index.
    """
    from fairqr.retrieval.sources.catalog import Catalog

    run(Catalog().delete(name))
    typer.echo(f"{name}: deleted")
