"""Searching by vectors on an Elasticsearch server, where they are a field of the documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fairqr.errors import IndexUnavailableError
from fairqr.retrieval.elasticsearch_index import WHOLE, WINDOW, ElasticsearchIndex
from fairqr.retrieval.encoders.encoder import Encoder, EncoderMark, Float32Array
from fairqr.retrieval.index import Progress
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.vectors.elasticsearch_filling import Filling, field_of

__all__ = ["ElasticsearchVectors"]

CANDIDATES = 1000


class ElasticsearchVectors:
    """Vectors on a server; see :class:`fairqr.retrieval.vectors.vector_index.Vectors`.

    Call :meth:`update` before anything else. A search is the server's approximate kNN over at least
    1,000 candidates; of more than 10,000 results it is exact.
    """

    def __init__(self, index: ElasticsearchIndex, encoder: Encoder, mark: EncoderMark) -> None:
        self._index = index
        self._filling = Filling(index, encoder, mark)
        self._field = field_of(mark.name)
        # The server index whose documents have been encoded.
        self._encoded = ""

    async def search(self, query: Float32Array, n: int) -> Ranking:
        """Return the n documents most like the query."""
        if n > WINDOW:
            having = {"exists": {"field": self._field}}
            return await self._following(lambda: self._index.rank(self._scored(having, query), n))
        knn = {
            "field": self._field,
            "query_vector": query.tolist(),
            "k": n,
            "num_candidates": min(WINDOW, max(CANDIDATES, 2 * n)),
        }
        return await self._following(lambda: self._knn(knn))

    async def rescore(self, query: Float32Array, ids: Sequence[str]) -> Ranking:
        """Rank just these documents."""
        return await self._following(
            lambda: self._index.rank_ids(ids, lambda these: self._scored(these, query))
        )

    async def lowest(self, ids: Sequence[str]) -> Ranking:
        """Give each of these documents score 0."""
        return await self._index.rank_ids(ids, lambda these: {"bool": {"filter": these}})

    async def update(self, progress: Progress | None = None) -> None:
        """Encode the documents that the encoder has not seen yet.

        Raises:
            InputError: The vectors are those of another model, or have more dimensions than
                Elasticsearch takes.
            IndexUnavailableError: The server cannot be reached, or refuses.
        """
        self._encoded = await self._filling.run(progress)

    async def _following(self, rank: Callable[[], Awaitable[Ranking]]) -> Ranking:
        """Rank; where the index was built anew meanwhile, encode its documents and rank again."""
        try:
            ranking = await rank()
        except IndexUnavailableError:
            # A new index does not know the field yet.
            if self._index.server_index == self._encoded:
                raise
        else:
            if self._index.server_index == self._encoded:
                return ranking
        await self.update()
        return await rank()

    async def _knn(self, knn: dict[str, Any]) -> Ranking:
        answer = await self._index.read(
            lambda client, index: client.search(
                index=index,
                knn=knn,
                size=knn["k"],
                sort=[{"_score": "desc"}, {"id": "asc"}],
                source=False,
                stored_fields="_none_",
                track_total_hits=False,
                **WHOLE,
            )
        )
        hits = answer["hits"]["hits"]
        return Ranking([hit["sort"][1] for hit in hits], [hit["sort"][0] for hit in hits])

    def _scored(self, documents: dict[str, Any], query: Float32Array) -> dict[str, Any]:
        """Return the query for these documents, with exact scores."""
        script = (
            f"doc['{self._field}'].size() == 0 ? 0 : "
            f"Math.max(0, (1 + cosineSimilarity(params.query, '{self._field}')) / 2)"
        )
        return {
            "script_score": {
                "query": {"bool": {"filter": documents}},
                "script": {"source": script, "params": {"query": query.tolist()}},
            }
        }
