"""Where an experiment or a command gets a probe collection: from its folder, or built anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.probes.building import build_probe_collection, source_fingerprint
from fairqr.evaluation.probes.collection import Order, ProbeCollection, shortfalls
from fairqr.evaluation.probes.files import read_probe_collection
from fairqr.evaluation.probes.orders import reorder_collection
from fairqr.evaluation.probes.specification import ProbeExperiment, ProbeSource
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sides import parse_sides

__all__ = ["first_queries", "open_probe_collection", "open_probe_collections"]

Preparing = Callable[[str], Progress]
"""Called with what begins, and gives what is told how many documents are done."""


async def open_probe_collections(
    experiment: ProbeExperiment, *, texts: bool, preparing: Preparing | None = None
) -> list[ProbeCollection]:
    """Read or build the probe collections of an experiment, in its order.

    Args:
        experiment: Names their sources.
        texts: Keep texts beside titles.
        preparing: Told what is imported, read and indexed.

    Raises:
        InputError: Two have one name; and as :func:`open_probe_collection` raises it.
    """
    collections = [
        await open_probe_collection(
            source,
            experiment.collection,
            experiment.split,
            size=experiment.size,
            order=experiment.order,
            seed=experiment.seed,
            queries=experiment.queries,
            texts=texts,
            preparing=preparing,
        )
        for source in experiment.sources
    ]
    names = [collection.manifest.name for collection in collections]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"Two probe collections are called '{one_line(twice[0])}'; leave one of them out."
        )
    return collections


async def open_probe_collection(
    source: ProbeSource,
    collection_name: str | None,
    split: str | None = None,
    *,
    size: int = 200,
    order: Order | None = None,
    seed: int = 0,
    queries: int | None = None,
    texts: bool = True,
    preparing: Preparing | None = None,
) -> ProbeCollection:
    """Read a probe collection, or build it.

    A folder says its size, seed and texts itself. It gives the first ``queries``, in another order
    where one is named.

    Args:
        source: The folder, or the attribute and its protected groups.
        collection_name: What :func:`fairqr.evaluation.collections.find_collection` finds.
        split: Its judgements, where there are several.
        size: Items of a query, a multiple of 4.
        order: Initial; where None, that of the folder, or ``shuffled``.
        seed: Of the draws and of the order.
        queries: At most so many of the first; all where None.
        texts: Keep texts beside titles.
        preparing: Told what is imported, read and indexed.

    Raises:
        InputError: The folder has no probe collection, or none can be built of what is named.
        CorpusError: There is no such collection, or its documents cannot be read.
        UnknownAttributeError: The schema has no such attribute.
        IndexUnavailableError: The index, which only ``bm25`` needs, cannot be reached.
    """
    if queries is not None and queries < 1:
        raise InputError(f"The number of queries must be 1 or more, not {queries}.")
    if source.folder is not None:
        read = await asyncio.to_thread(read_probe_collection, Path(source.folder))
        return await _in_order(first_queries(read, queries), order, preparing)
    if collection_name is None or source.attribute is None or source.protected is None:
        raise InputError("Name a collection, an attribute and its protected group, or a folder.")
    collection = await _find(collection_name, split, preparing)
    attribute = collection.corpus.schema.attribute(source.attribute)
    sides = parse_sides(attribute, source.protected, source.words)
    engine = await _engine(collection, preparing) if order == "bm25" else None
    try:
        return await build_probe_collection(
            collection,
            sides,
            size=size,
            order=order or "shuffled",
            seed=seed,
            texts=texts,
            queries=queries,
            engine=engine,
            source=collection_name,
            progress=preparing(f"reading {collection.name}") if preparing else None,
        )
    finally:
        if engine is not None:
            await engine.aclose()


def first_queries(collection: ProbeCollection, most: int | None) -> ProbeCollection:
    """Return a collection with at most so many of its queries; its manifest counts only these."""
    if most is None or most >= len(collection.queries):
        return collection
    kept = collection.queries[:most]
    changes = {"queries": len(kept), "short": shortfalls(kept)}
    return ProbeCollection(manifest=collection.manifest.model_copy(update=changes), queries=kept)


async def _in_order(
    read: ProbeCollection, order: Order | None, preparing: Preparing | None
) -> ProbeCollection:
    manifest = read.manifest
    if order is None or order == manifest.order:
        return read
    if order != "bm25":
        return await reorder_collection(read, order)
    collection = await _find(manifest.source, manifest.split, preparing)
    if await asyncio.to_thread(source_fingerprint, collection) != manifest.source_fingerprint:
        raise InputError(
            f"The collection '{manifest.source}' has changed since the probe collection "
            f"'{manifest.name}' was built of it, so bm25 would rank other documents; build it "
            "again, or choose another order."
        )
    engine = await _engine(collection, preparing)
    try:
        return await reorder_collection(read, order, engine=engine)
    finally:
        await engine.aclose()


async def _find(name: str, split: str | None, preparing: Preparing | None) -> Collection:
    progress = preparing(f"importing {name}") if preparing else None
    return await asyncio.to_thread(find_collection, name, split, progress=progress)


async def _engine(collection: Collection, preparing: Preparing | None) -> SearchEngine:
    return await Catalog().resolve(
        collection.corpus_name,
        progress=(lambda name: preparing(f"indexing {name}")) if preparing else None,
    )
