"""The order in which a ranker sees the items of a query first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairqr.base.errors import InputError
from fairqr.base.statistics import stream
from fairqr.evaluation.probes.collection import (
    CELLS,
    Order,
    ProbeCollection,
    ProbeItem,
    ProbeQuery,
)
from fairqr.retrieval.engines.engine import Query, SearchEngine

__all__ = ["reorder", "reorder_collection"]


async def reorder(
    query: ProbeQuery, order: Order, *, seed: int = 0, engine: SearchEngine | None = None
) -> ProbeQuery:
    """Return a query with its items in an order, whatever order they were in.

    ``shuffled`` is a permutation that seed and query decide. ``discriminatory`` has one cell after
    the other, as :data:`~fairqr.evaluation.probes.collection.CELLS` lists them, and each cell in an
    order that seed and query decide. ``bm25`` is the ranking of the engine by the query; equal
    scores stand in order of id, and what the query does not find comes last.

    Args:
        query: With its items.
        order: Which.
        seed: Of the first two.
        engine: For ``bm25``.

    Raises:
        InputError: ``bm25`` has no engine.
        UnsupportedError: The engine cannot rank given documents.
        IndexUnavailableError: The engine cannot be reached.
    """
    items: Sequence[ProbeItem]
    # Drawn from the ids in their own order, so that how they stood before changes nothing.
    by_id = sorted(query.items, key=lambda item: item.id)
    if order == "bm25":
        if engine is None:
            raise InputError(
                "The order bm25 needs a search engine over the documents; give one, or choose "
                "shuffled."
            )
        ids = tuple(item.id for item in by_id)
        (hits,) = await engine.search([Query(query.query, len(ids), only=ids)])
        ranks = {id_: rank for rank, id_ in enumerate(hits.ids)}
        items = sorted(by_id, key=lambda item: ranks.get(item.id, len(ranks)))
    elif order == "shuffled":
        items = _permuted(by_id, seed, f"{query.id} shuffled")
    else:
        cells = {cell: [item for item in by_id if item.cell == cell] for cell in CELLS}
        items = [
            item for cell in CELLS for item in _permuted(cells[cell], seed, f"{query.id} {cell}")
        ]
    return query.model_copy(update={"items": tuple(items)})


async def reorder_collection(
    collection: ProbeCollection, order: Order, *, engine: SearchEngine | None = None
) -> ProbeCollection:
    """Return a collection in another order, which its manifest then says; the seed is its own.

    Args:
        collection: In any order.
        order: See :func:`reorder`.
        engine: For ``bm25``, over the documents it was built from.

    Raises:
        InputError: ``bm25`` has no engine.
        UnsupportedError: The engine cannot rank given documents.
        IndexUnavailableError: The engine cannot be reached.
    """
    seed = collection.manifest.seed
    queries = [
        await reorder(query, order, seed=seed, engine=engine) for query in collection.queries
    ]
    changes: Mapping[str, object] = {"order": order}
    return ProbeCollection(
        manifest=collection.manifest.model_copy(update=changes), queries=tuple(queries)
    )


def _permuted(items: Sequence[ProbeItem], seed: int, name: str) -> list[ProbeItem]:
    return [items[place] for place in stream(seed, name).permutation(len(items))]
