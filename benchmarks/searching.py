"""Search and update of the embedded index, against tantivy without us."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bare import BareIndex
from generated import documents, queries
from measuring import Row, in_turns_async, median, p95
from workspace import Workspace

from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.tantivy.store import upsert_documents
from fairqr.retrieval.sources.labels import LabelReader

TOP = 500
MAX_SEARCH_RATIO = 1.5
UPDATED = 100
MAX_UPDATE_MILLISECONDS = 50.0


def search_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure a search by 10 terms for the top 500, ids and scores.

    The bare peers run the same queries: one on our own files, for hits without ids; the other on
    files of its own with stored ids, which it reads, as one does without us. The target is one for
    the full number of documents, where a search costs more than what stands around it.
    """
    engine = workspace.engine()
    same_files = BareIndex(engine.folder / "text")
    own_files = workspace.bare()
    asked = queries(200)

    async def ours(number: int) -> object:
        return await engine.search([Query(asked[number % len(asked)], TOP)])

    async def hits(number: int) -> object:
        return same_files.hits(asked[number % len(asked)], TOP)

    async def ids(number: int) -> object:
        return own_files.search(asked[number % len(asked)], TOP)

    taken = asyncio.run(
        in_turns_async(
            {"ours": ours, "hits": hits, "ids": ids}, workspace.rounds(600), len(asked) // 10
        )
    )
    what = f"search {workspace.documents:,} documents, 10 terms, top {TOP}"
    for name, peer in (("hits", "tantivy, hits only"), ("ids", "tantivy, stored ids")):
        for part, figure in (("p50", median), ("p95", p95)):
            mine, theirs = figure(taken["ours"]), figure(taken[name])
            judged = name == "hits" and part == "p50"
            yield Row(
                "search",
                f"{what}, {part}",
                mine,
                "ms",
                peer,
                theirs,
                f"≤ {MAX_SEARCH_RATIO}×" if judged else "",
                mine <= MAX_SEARCH_RATIO * theirs if judged and not workspace.quick else None,
            )


def update_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure replacing 100 documents and seeing the new ones; the peer does the same."""
    engine, bare = workspace.engine(), workspace.bare()
    labels = LabelReader(engine.schema, {})

    def update(number: int) -> object:
        upsert_documents(engine.folder, changed[number], labels)
        return engine.snapshot()

    async def ours(number: int) -> object:
        return await asyncio.to_thread(update, number)

    async def theirs(number: int) -> None:
        bare.update(changed[number])

    rounds = workspace.rounds(25)
    changed = [documents(UPDATED, seed) for seed in range(rounds)]
    taken = asyncio.run(in_turns_async({"ours": ours, "bare": theirs}, rounds))
    mine = median(taken["ours"])
    yield Row(
        "update",
        f"replace {UPDATED} of {workspace.documents:,} documents",
        mine,
        "ms",
        "tantivy, the same",
        median(taken["bare"]),
        f"≤ {MAX_UPDATE_MILLISECONDS:g} ms",
        mine <= MAX_UPDATE_MILLISECONDS,
    )
