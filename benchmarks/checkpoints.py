"""How much a checkpointer is given to keep for one run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

from generated import GENDERS, REGIONS, group_words, queries
from langgraph.checkpoint.memory import InMemorySaver
from measuring import Row
from stubs import InstantRefiner
from workspace import Workspace

from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context
from fairqr.retrieval.engines.engine import SearchEngine

MAX_MEGABYTES = 0.2
ROUNDS = 5


def checkpoint_rows(workspace: Workspace) -> Iterator[Row]:
    """Count the serialised bytes of all checkpoints and writes of a run of 5 rounds.

    Two attributes, four refined queries a round; the loop is kept from stopping early.
    """
    engine = workspace.engine()
    for depth in (200, 1_000):
        bytes_of = {
            durability: asyncio.run(_kept(engine, depth, durability))
            for durability in ("exit", "async")
        }
        for durability in ("exit", "async"):
            megabytes = bytes_of[durability] / 1e6
            yield Row(
                "checkpoints",
                f"{ROUNDS} rounds, depth {depth:,}, durability {durability}",
                megabytes,
                "MB",
                "" if durability == "exit" else "durability exit",
                None if durability == "exit" else bytes_of["exit"] / 1e6,
                f"≤ {MAX_MEGABYTES:g} MB",
                megabytes <= MAX_MEGABYTES,
            )


async def _kept(engine: SearchEngine, depth: int, durability: Literal["exit", "async"]) -> int:
    """Run once and return how many bytes the checkpointer holds."""
    saver = InMemorySaver()
    refiner = InstantRefiner({group: group_words(group) for group in (*GENDERS, *REGIONS)})
    graph = build_search_graph(engine, refiner, checkpointer=saver)
    context = Context(
        depth=depth, ask="always", patience=ROUNDS + 1, max_iterations=ROUNDS, max_groups=4
    )
    done = await graph.ainvoke(
        {"query": queries(1)[0]},
        {"configurable": {"thread_id": "one"}},
        context=context,
        durability=durability,
    )
    assert len(done["result"]["iterations"]) == ROUNDS + 1
    blobs = sum(len(data) for _, data in saver.blobs.values())
    checkpoints = sum(
        len(checkpoint[1]) + len(metadata[1])
        for spaces in saver.storage.values()
        for kept in spaces.values()
        for checkpoint, metadata, _ in kept.values()
    )
    writes = sum(
        len(data) for written in saver.writes.values() for _, _, (_, data), _ in written.values()
    )
    return blobs + checkpoints + writes
