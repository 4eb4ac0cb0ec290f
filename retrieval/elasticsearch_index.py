"""The index on an Elasticsearch server.

How documents lie there is told in :mod:`fairqr.retrieval.elasticsearch_layout`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from elasticsearch import ApiError, AsyncElasticsearch, TransportError

from fairqr.errors import IndexNotFoundError, IndexVersionError
from fairqr.retrieval.documents import Document
from fairqr.retrieval.elasticsearch_build import (
    build_elasticsearch,
    delete_elasticsearch,
    list_elasticsearch,
    live_index,
)
from fairqr.retrieval.elasticsearch_bulk import Action, Tally, bulk
from fairqr.retrieval.elasticsearch_client import Connection, Server
from fairqr.retrieval.elasticsearch_layout import (
    Meta,
    alias_of,
    read_document,
    stored_document,
)
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.index import IndexInfo, Progress
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.schema import Schema

__all__ = [
    "Connection",
    "ElasticsearchIndex",
    "build_elasticsearch",
    "delete_elasticsearch",
    "list_elasticsearch",
]

T = TypeVar("T")

WINDOW = 10_000
"""The most hits that one search of Elasticsearch returns, unless it is told otherwise."""

SOURCES_AT_ONCE = 500
WORDS_AT_ONCE = 500
KEEP_PAGES = "2m"
WHOLE: dict[str, Any] = {"allow_partial_search_results": False}
"""A shard that does not answer is an error, not a shorter ranking."""


class ElasticsearchIndex:
    """An index on a server; see :class:`fairqr.retrieval.index.Index` for what its methods promise.

    It reads the server index that the alias pointed at when it was opened, so that a search and
    what is asked of its results agree; where a new build has replaced that, it goes on with the new
    one.
    Writing is not one transaction: an error midway leaves what was written before it.

    It may be used in several event loops; close it in each.
    """

    def __init__(self, server: Server, index: str, meta: Meta) -> None:
        """Take what :meth:`open` has found."""
        self.server = server
        self._index = index
        self._meta = meta

    @classmethod
    async def open(cls, connection: Connection, name: str) -> ElasticsearchIndex:
        """Open the index of a name.

        Raises:
            InputError: Elasticsearch does not take such a name.
            IndexNotFoundError: There is no index of that name.
            IndexVersionError: This version of fairqr cannot read it.
            IndexUnavailableError: The server cannot be reached, or refuses.
        """
        alias_of(name)
        server = Server(connection)
        try:
            return cls(server, *await live_index(server, name))
        except BaseException:
            await server.close()
            raise

    @property
    def name(self) -> str:
        return self._meta.name

    @property
    def schema(self) -> Schema:
        return self._meta.corpus_schema

    @property
    def retriever(self) -> str:
        return "bm25"

    @property
    def lexical(self) -> ElasticsearchIndex:
        return self

    async def info(self) -> IndexInfo:
        counted = await self.read(lambda client, index: client.count(index=index))
        return IndexInfo(
            name=self.name,
            backend="elasticsearch",
            documents=counted["count"],
            location=f"{self.server.url}/{alias_of(self.name)}",
            source=self._meta.source,
            source_sha256=self._meta.source_sha256,
        )

    async def search(self, query: str, n: int, *, boost: str = "") -> Ranking:
        matching: dict[str, Any] = {"match": {"body": query}}
        if boost:
            matching = {"bool": {"must": matching, "should": {"match": {"body": boost}}}}
        return await self.rank(matching, n)

    async def rescore(self, query: str, ids: Sequence[str]) -> Ranking:
        return await self.rank_ids(
            ids, lambda these: {"bool": {"filter": these, "should": {"match": {"body": query}}}}
        )

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        sources = await self._sources(ids, "source")
        return [read_document(id_, sources[id_]["source"]) for id_ in ids if id_ in sources]

    async def memberships(self, attribute: str, ids: Sequence[str]) -> FloatArray:
        rows = np.zeros((len(ids), len(self.schema.attribute(attribute).universe)))
        sources = await self._sources(ids, f"membership.{attribute}")
        for row, id_ in enumerate(ids):
            shares = sources.get(id_, {}).get("membership", {}).get(attribute, {})
            for position, share in shares.items():
                rows[row, int(position)] = share
        return rows

    async def corpus_shares(self, attribute: str) -> FloatArray:
        positions = [str(n) for n in range(len(self.schema.attribute(attribute).universe))]
        sums = {
            position: {"sum": {"field": f"membership.{attribute}.{position}"}}
            for position in positions
        }
        answer = await self._search(size=0, track_total_hits=True, aggregations=sums)
        documents = answer["hits"]["total"]["value"]
        found = answer["aggregations"]
        shares = np.array([found[position]["value"] for position in positions], dtype=np.float64)
        shares /= max(documents, 1)
        return shares

    async def document_frequencies(self, words: Sequence[str]) -> list[int]:
        frequencies: list[int] = []
        for start in range(0, len(words), WORDS_AT_ONCE):
            filters = [
                {"match": {"body": {"query": word, "operator": "and"}}}
                for word in words[start : start + WORDS_AT_ONCE]
            ]
            answer = await self._search(
                size=0,
                track_total_hits=False,
                aggregations={"words": {"filters": {"filters": filters}}},
            )
            buckets = answer["aggregations"]["words"]["buckets"]
            frequencies += [bucket["doc_count"] for bucket in buckets]
        return frequencies

    async def upsert(self, documents: Iterable[Document], progress: Progress | None = None) -> int:
        await self._follow()
        actions = (
            Action("index", document.id, stored_document(document, self.schema), number)
            for number, document in enumerate(documents, start=1)
        )
        tally = Tally()
        async for outcomes in bulk(self.server, alias_of(self.name), actions, alias=True):
            tally.add(outcomes)
            if progress:
                progress(tally.written)
        await self._show()
        tally.complain()
        return tally.written

    async def delete(self, ids: Sequence[str]) -> int:
        await self._follow()
        actions = (Action("delete", id_, "", number) for number, id_ in enumerate(ids, start=1))
        tally = Tally()
        async for outcomes in bulk(self.server, alias_of(self.name), actions, alias=False):
            tally.add(outcome for outcome in outcomes if outcome.status != 404)
        await self._show()
        tally.complain()
        return tally.written

    async def close(self) -> None:
        await self.server.close()

    # What follows is for those who keep something with the documents, such as vectors.

    @property
    def server_index(self) -> str:
        """The server index that is read; another one after the index was built anew."""
        return self._index

    async def rank(self, query: dict[str, Any], n: int) -> Ranking:
        """Return the best n documents by a query of Elasticsearch's."""
        return await (self._rank(query, n) if n <= WINDOW else self._rank_pages(query, n))

    async def rank_ids(
        self, ids: Sequence[str], query: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Ranking:
        """Rank these documents, by the query that is made of a filter for them."""
        scores: dict[str, float] = {}
        for some in _pieces(ids, WINDOW):
            ranking = await self._rank(query({"ids": {"values": some}}), len(some))
            scores.update(zip(ranking.ids, ranking.scores, strict=True))
        return Ranking.of(scores)

    async def read(self, send: Callable[[AsyncElasticsearch, str], Awaitable[T]]) -> T:
        """Send a request about the server index; once more where a new build has replaced it."""
        try:
            return await self.server.call(lambda client: send(client, self._index))
        except IndexNotFoundError:
            await self._follow()
            return await self.server.call(lambda client: send(client, self._index))

    async def _follow(self) -> None:
        """Go on with the server index that is live now.

        Raises:
            IndexVersionError: Its documents have other attributes or groups.
        """
        index, meta = await live_index(self.server, self.name)
        if meta.corpus_schema != self.schema:
            raise IndexVersionError(
                f"The index '{self.name}' at {self.server.url} was built anew with another "
                "schema; open it again."
            )
        self._index, self._meta = index, meta

    async def _show(self) -> None:
        """Make what was written visible to searches."""
        await self.read(lambda client, index: client.indices.refresh(index=index))

    async def _search(self, **request: Any) -> Any:
        return await self.read(lambda client, index: client.search(index=index, **WHOLE, **request))

    async def _rank(self, query: dict[str, Any], n: int) -> Ranking:
        if n < 1:
            return Ranking([], [])
        return _ranking((await self._search(**_by_score(query), size=n))["hits"]["hits"])

    async def _rank_pages(self, query: dict[str, Any], n: int) -> Ranking:
        """Rank more documents than one search returns, page by page over one state of the index."""

        async def pages(client: AsyncElasticsearch, index: str) -> list[Any]:
            opened = await client.open_point_in_time(index=index, keep_alive=KEEP_PAGES)
            state = {"id": opened["id"], "keep_alive": KEEP_PAGES}
            hits: list[Any] = []
            try:
                while len(hits) < n:
                    size = min(WINDOW, n - len(hits))
                    after = {"search_after": hits[-1]["sort"]} if hits else {}
                    request = {**_by_score(query), **after, **WHOLE, "size": size}
                    page = (await client.search(pit=state, **request))["hits"]["hits"]
                    hits += page
                    if len(page) < size:
                        break
            finally:
                with suppress(ApiError, TransportError):  # the server forgets it by itself
                    await client.close_point_in_time(id=state["id"])
            return hits

        return _ranking(await self.read(pages))

    async def _sources(self, ids: Sequence[str], part: str) -> dict[str, Any]:
        """Return a part of what is stored for documents, by id, of those that are there."""
        found: dict[str, Any] = {}
        for some in _pieces(ids, SOURCES_AT_ONCE):
            answer = await self._search(
                query={"ids": {"values": some}},
                sort="_doc",
                size=len(some),
                source=[part],
                track_total_hits=False,
            )
            found.update((hit["_id"], hit["_source"]) for hit in answer["hits"]["hits"])
        return found


def _pieces(ids: Sequence[str], size: int) -> list[list[str]]:
    """Cut distinct ids into pieces of at most this size."""
    distinct = list(dict.fromkeys(ids))
    return [distinct[start : start + size] for start in range(0, len(distinct), size)]


def _by_score(query: dict[str, Any]) -> dict[str, Any]:
    """Return a search for ids and scores only, best first, ties by id, that reads no document."""
    return {
        "query": query,
        # Statistics of all shards together, so that the number of shards does not change scores.
        "search_type": "dfs_query_then_fetch",
        "sort": [{"_score": "desc"}, {"id": "asc"}],
        "source": False,
        "stored_fields": "_none_",
        "track_total_hits": False,
    }


def _ranking(hits: Sequence[Any]) -> Ranking:
    return Ranking([hit["sort"][1] for hit in hits], [hit["sort"][0] for hit in hits])
