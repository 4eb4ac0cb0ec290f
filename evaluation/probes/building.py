"""Building a probe collection from documents with judgements (FORMULAS L3).

A query has as many relevant as irrelevant items, and of each as many of the protected group as of
the others, as in the collections of DELTR (Zehlike & Castillo 2020) that Wang et al. (2024, "Do
Large Language Models Rank Fairly?") ask about. What is irrelevant for a query is relevant for
another one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import get_args

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.topics import Topic
from fairqr.evaluation.probes.collection import (
    CELLS,
    Order,
    ProbeCollection,
    ProbeManifest,
    ProbeQuery,
    shortfalls,
)
from fairqr.evaluation.probes.drawing import Drawn, draw_items
from fairqr.evaluation.probes.orders import reorder_collection
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sides import Sides

__all__ = ["build_probe_collection", "source_fingerprint"]


async def build_probe_collection(
    collection: Collection,
    sides: Sides,
    *,
    size: int = 200,
    order: Order = "shuffled",
    seed: int = 0,
    texts: bool = True,
    queries: int | None = None,
    engine: SearchEngine | None = None,
    source: str | None = None,
    progress: Progress | None = None,
) -> ProbeCollection:
    """Draw the items of each topic, and put them in an order.

    A cell gets size/4 documents, drawn without replacement. One that has fewer stays short, and
    the others are not filled up for it. A topic without a relevant item is dropped. All others have
    items of both sides, since what is relevant for any topic is a candidate for each, and so items
    in two cells or more. How many queries are asked for does not change what each has.

    Args:
        collection: Its documents are read once; no more of them are held than are drawn.
        sides: Which documents are protected; one of no side is left out.
        size: Items of a query, a multiple of 4.
        order: See :func:`fairqr.evaluation.probes.orders.reorder`.
        seed: Of the draws and of the order.
        texts: Keep texts beside titles.
        queries: At most so many, the first ones that are not dropped; topics after them are not
            looked at. All where None.
        engine: Over the documents, for the order ``bm25``.
        source: What finds the collection again; its name where None.
        progress: Told now and then how many documents were read.

    Raises:
        InputError: A number is out of range, there is no such order, the order needs an
            engine, or a side has no item at all.
        CorpusError: The documents cannot be read, or a line is none.
        UnknownAttributeError: The schema has no such attribute.
        IndexUnavailableError: The engine cannot be reached.
    """
    _check(size, order, seed, queries, engine)
    each = size // len(CELLS)
    fingerprint = await asyncio.to_thread(source_fingerprint, collection)
    drawn = await asyncio.to_thread(
        draw_items, collection, sides, each=each, seed=seed, texts=texts, progress=progress
    )
    kept, without_relevant = _queries(collection.topics, drawn, each, queries)
    protected, unprotected = sides.words
    manifest = ProbeManifest(
        name=f"{collection.name}, {sides.attribute}: {protected}",
        source=source or collection.name,
        split=collection.split,
        source_fingerprint=fingerprint,
        attribute=sides.attribute,
        protected=protected,
        unprotected=unprotected,
        protected_groups=sides.protected,
        unprotected_groups=sides.unprotected,
        size=size,
        order=order,
        seed=seed,
        texts=texts,
        queries=len(kept),
        dropped={"no_relevant_item": without_relevant} if without_relevant else {},
        short=shortfalls(kept),
        undecided=drawn.undecided,
        missing=drawn.missing,
    )
    built = ProbeCollection(manifest=manifest, queries=tuple(kept))
    return await reorder_collection(built, order, engine=engine)


def source_fingerprint(collection: Collection) -> str:
    """Return a hash that changes with the documents, their schema, the topics or the judgements.

    Raises:
        OSError: The documents cannot be read.
    """
    digest = hashlib.sha256(collection.corpus.fingerprint().encode())
    for topic in collection.topics:
        judged = sorted(collection.qrels.get(topic.id, {}).items())
        digest.update(json.dumps([topic.id, topic.title, topic.keywords, judged]).encode())
    return digest.hexdigest()


def _queries(
    topics: Sequence[Topic], drawn: Drawn, each: int, most: int | None
) -> tuple[list[ProbeQuery], int]:
    """Return the queries, and how many topics without a relevant item stood before the last."""
    kept: list[ProbeQuery] = []
    without = 0
    for topic in topics:
        if len(kept) == most:
            break
        cells = drawn.cells[topic.id]
        if not cells["relevant_unprotected"] and not cells["relevant_protected"]:
            without += 1
            continue
        items = tuple(item for cell in CELLS for item in cells[cell])
        short = {cell: each - len(cells[cell]) for cell in CELLS if len(cells[cell]) < each}
        kept.append(ProbeQuery(id=topic.id, query=topic.title, items=items, short=short))
    return kept, without


def _check(
    size: int, order: str, seed: int, queries: int | None, engine: SearchEngine | None
) -> None:
    if size < len(CELLS) or size % len(CELLS):
        raise InputError(
            f"The number of items of a query must be a multiple of {len(CELLS)}, such as 200, "
            f"not {size}."
        )
    if order not in get_args(Order):
        raise InputError(f"There is no order '{order}'; choose {', '.join(get_args(Order))}.")
    if order == "bm25" and engine is None:
        raise InputError("The order bm25 needs a search engine over the documents; give one.")
    if seed < 0:
        raise InputError(f"The seed must be 0 or more, not {seed}.")
    if queries is not None and queries < 1:
        raise InputError(f"The number of queries must be 1 or more, not {queries}.")
