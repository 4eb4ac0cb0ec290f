"""A fair search over an attached Elasticsearch, beside the plain searches that it sends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from elasticsearch import AsyncElasticsearch
from generated import GENDERS, REGIONS, group_words, queries
from measuring import Row, in_turns_async, median
from stubs import ROUNDS, ROUNDS_OPTIONS, InstantRefiner
from workspace import Workspace

from fairqr import FairSearch
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import find_corpus
from fairqr.retrieval.sources.source import ElasticsearchSource

# The servers of the integration tests.
sys.path.append(str(Path(__file__).parents[1]))

NAME = "attached"
TOP = 500
CLIENTS = 8
SLEEP = 0.05
MAX_RATIO = 1.4
MAX_OPENING_MILLISECONDS = 200.0
MAX_REQUESTS = 2 * (1 + ROUNDS) + 1


def attached_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure over a real server: one client, eight clients, requests, and opening the source.

    The plain searches are those that the fair search sends itself: the first 500 hits, and the
    documents that it shows. The server's client alone searches for the same 500 hits without
    labels.
    """
    from tests.integration.counting_proxy import counting_proxy
    from tests.integration.elasticsearch_server import running_server
    from tests.integration.filled_elasticsearch import fill

    corpus = find_corpus(workspace.corpus(workspace.documents))
    with running_server() as server, counting_proxy(server.url) as proxy, ExitStack() as stack:
        source = fill(stack, server.url, NAME, corpus)
        yield from asyncio.run(_one_client(workspace, source))
        yield from asyncio.run(_clients(workspace, source))
        through = source.model_copy(update={"url": proxy.url})
        yield asyncio.run(_requests(through, proxy))


async def _one_client(workspace: Workspace, source: ElasticsearchSource) -> list[Row]:
    asked = queries(100)
    start = time.perf_counter()
    engine = await Catalog().resolve(source)
    opening = (time.perf_counter() - start) * 1000
    client = AsyncElasticsearch(source.url)
    shown: dict[int, list[str]] = {}

    async with FairSearch.open(engine, InstantRefiner()) as search:

        async def fair(number: int) -> object:
            place = number % len(asked)
            result = await search.search(asked[place], attribute="gender", max_iterations=0)
            both = [*result.ranking, *result.baseline.ranking]
            shown[place] = list(dict.fromkeys(document.id for document in both))
            return result

        async def plain(number: int) -> object:
            place = number % len(asked)
            await engine.search([Query(asked[place], TOP)])
            return await engine.documents(shown.get(place, []))

        async def bare(number: int) -> object:
            return await client.search(
                index=source.index,
                query={"match": {"body": asked[number % len(asked)]}},
                size=TOP,
                source=False,
                track_total_hits=False,
            )

        for number in range(len(asked)):
            await fair(number)
        calls = {"fair": fair, "plain": plain, "bare": bare}
        taken = await in_turns_async(calls, workspace.rounds(200), 5)
    await client.close()
    await engine.aclose()
    mine = median(taken["fair"])
    what = f"fair search of {workspace.documents:,} documents on Elasticsearch, no model, p50"
    return [
        Row(
            "attached",
            what,
            mine,
            "ms",
            "its plain searches alone",
            median(taken["plain"]),
            f"≤ {MAX_RATIO:g}×",
            mine <= MAX_RATIO * median(taken["plain"]),
        ),
        Row("attached", what, mine, "ms", f"bare client, {TOP} hits", median(taken["bare"])),
        Row(
            "attached",
            "opening the source",
            opening,
            "ms",
            target=f"≤ {MAX_OPENING_MILLISECONDS:g} ms",
            reached=opening <= MAX_OPENING_MILLISECONDS,
        ),
    ]


async def _clients(workspace: Workspace, source: ElasticsearchSource) -> list[Row]:
    """Measure searches a second with several clients, without a model and with one that sleeps."""
    engine = await Catalog().resolve(source)
    words = {group: group_words(group) for group in (*GENDERS, *REGIONS)}
    each = workspace.rounds(20)
    rows = []
    for what, model, options in (
        ("no model", InstantRefiner(), {"max_iterations": 0}),
        (
            f"{ROUNDS} rounds, a model of {SLEEP * 1000:g} ms",
            InstantRefiner(words, SLEEP),
            ROUNDS_OPTIONS,
        ),
    ):
        async with FairSearch.open(engine, model) as search:
            seconds = await _crowd(search, queries(CLIENTS * each), options)
        rows.append(
            Row(
                "attached",
                f"{CLIENTS} clients in one process, {what}",
                CLIENTS * each / seconds,
                "results/s",
            )
        )
    await engine.aclose()
    return rows


async def _crowd(search: FairSearch, asked: Sequence[str], options: dict[str, Any]) -> float:
    await search.search(asked[0], attribute="gender", **options)
    left = iter(asked)

    async def client() -> None:
        for query in left:
            await search.search(query, attribute="gender", **options)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - start


async def _requests(source: Any, proxy: Any) -> Row:
    """Count the requests of one search of two rounds of refinement, over both attributes."""
    engine: SearchEngine = await Catalog().resolve(source)
    words = {group: group_words(group) for group in (*GENDERS, *REGIONS)}
    async with FairSearch.open(engine, InstantRefiner(words)) as search:
        proxy.clear()
        await search.search(queries(1)[0], attribute=("gender", "region"), **ROUNDS_OPTIONS)
    await engine.aclose()
    return Row(
        "attached",
        f"requests of one search with {ROUNDS} rounds, 2 attributes, 10 groups",
        len(proxy.passed),
        "requests",
        target=f"≤ {MAX_REQUESTS}",
        reached=len(proxy.passed) <= MAX_REQUESTS,
    )
