"""Giving the documents on an Elasticsearch server their vectors.

A document that is written anew loses its vectors, so they never belong to another text. Those who
open the retriever next encode what has none. Several may do so at once: whoever comes second finds
the document changed, and leaves it.

Giving a document its vector writes it anew, as every update does. Until the server has merged the
old versions away they count in the frequencies of words, so the scores of BM25 may move a little.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from elasticsearch import AsyncElasticsearch

from fairqr.errors import FairqrError, IndexUnavailableError, InputError
from fairqr.retrieval.elasticsearch_bulk import Action, Tally, bulk
from fairqr.retrieval.elasticsearch_index import WHOLE, ElasticsearchIndex
from fairqr.retrieval.elasticsearch_layout import (
    raw_meta,
    read_document,
    vector_mapping,
    with_vector,
)
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    encode_documents,
    key_of,
    text_of,
)
from fairqr.retrieval.index import Progress

__all__ = ["Filling", "field_of"]

MOST_DIMENSIONS = 4096
DOCUMENTS_AT_ONCE = 200
PASSES = 5
KEEP_PAGES = "10m"
"""How long the server keeps a list of documents while one page of them is encoded."""

Hit = dict[str, Any]


def field_of(name: str) -> str:
    """Return the field that has the vectors of an encoder of this name."""
    return f"vectors.{key_of(name)}"


class Filling:
    """Fills the field of an encoder."""

    def __init__(self, index: ElasticsearchIndex, encoder: Encoder, mark: EncoderMark) -> None:
        self._index = index
        self._encoder = encoder
        self._mark = mark
        self._key = key_of(mark.name)
        self._field = field_of(mark.name)

    async def run(self, progress: Progress | None = None) -> str:
        """Encode the documents that the encoder has not seen yet.

        Returns:
            The server index whose documents are encoded now.

        Raises:
            InputError: The vectors are those of another model, or have more dimensions than
                Elasticsearch takes.
            IndexUnavailableError: The server cannot be reached, or refuses.
        """
        await self._make_field()
        done, encoded = 0, self._index.server_index
        # Another pass is for documents that were written during the one before.
        for _ in range(PASSES):
            seen = 0
            async for encoded, hits in self._unseen():
                seen += len(hits)
                done += await self._encode(encoded, hits)
                if progress:
                    progress(done)
            if not seen:
                break
            await self._index.read(lambda client, index: client.indices.refresh(index=index))
        return encoded

    async def _make_field(self) -> None:
        """Add the field to the mapping where it is not there."""
        answer = await self._index.read(
            lambda client, index: client.indices.get_mapping(index=index)
        )
        (state,) = answer.body.values()
        vectors = state["mappings"].get("properties", {}).get("vectors", {})
        if field := vectors.get("properties", {}).get(self._key):
            probe = [float(value) for value in field.get("meta", {}).get("probe", "").split()]
            self._mark.check(
                field["dims"], probe, f"of the index '{self._index.name}'", "create the index anew"
            )
            return
        if self._mark.dimensions > MOST_DIMENSIONS:
            raise InputError(
                f"Elasticsearch takes vectors of up to {MOST_DIMENSIONS} dimensions, and those of "
                f"'{self._mark.name}' have {self._mark.dimensions}; choose another encoder, or an "
                "embedded index."
            )
        note = {"probe": " ".join(f"{value:.4f}" for value in self._mark.probe)}
        added = vector_mapping(self._key, self._mark.dimensions, note)
        await self._index.read(
            lambda client, index: client.indices.put_mapping(index=index, properties=added)
        )

    async def _unseen(self) -> AsyncIterator[tuple[str, list[Hit]]]:
        """Yield the documents that the encoder has not seen, page by page, and where they are."""
        seen = [{"exists": {"field": self._field}}, {"term": {"wordless": self._key}}]
        unseen = {"bool": {"must_not": seen}}

        async def opened(client: AsyncElasticsearch, index: str) -> tuple[str, str]:
            state = await client.open_point_in_time(index=index, keep_alive=KEEP_PAGES)
            return index, state["id"]

        index, state = await self._index.read(opened)

        async def page(after: dict[str, Any], client: AsyncElasticsearch) -> list[Hit]:
            answer = await client.search(
                pit={"id": state, "keep_alive": KEEP_PAGES},
                query=unseen,
                sort="_shard_doc",
                size=DOCUMENTS_AT_ONCE,
                seq_no_primary_term=True,
                track_total_hits=False,
                **after,
                **WHOLE,
            )
            hits: list[Hit] = answer["hits"]["hits"]
            return hits

        after: dict[str, Any] = {}
        try:
            while hits := await self._index.server.call(partial(page, after)):
                yield index, hits
                after = {"search_after": hits[-1]["sort"]}
        finally:
            with suppress(FairqrError):  # the server forgets it by itself
                await self._index.server.call(lambda client: client.close_point_in_time(id=state))

    async def _encode(self, index: str, hits: Sequence[Hit]) -> int:
        """Give documents their vectors, and return how many were written."""
        documents = [read_document(hit["_id"], hit["_source"]["source"]) for hit in hits]
        vectors = await encode_documents(
            self._encoder, [text_of(document) for document in documents], self._mark.dimensions
        )
        actions = [
            Action(
                "index",
                hit["_id"],
                with_vector(hit["_id"], hit["_source"], self._key, _written(vector)),
                number,
                version=(hit["_seq_no"], hit["_primary_term"]),
            )
            for number, (hit, vector) in enumerate(zip(hits, vectors, strict=True), start=1)
        ]
        tally, conflicts = Tally(), 0
        async for outcomes in bulk(self._index.server, index, actions, alias=False):
            mine = [outcome for outcome in outcomes if outcome.status != 409]
            conflicts += len(outcomes) - len(mine)
            if mine:
                tally.add(mine)
        if conflicts:
            await self._refuse_accident(index)
        tally.complain()
        return tally.written

    async def _refuse_accident(self, index: str) -> None:
        """Remove the server index if it is one that the writing itself has made.

        That happens where the index was deleted meanwhile; then all documents are in conflict.

        Raises:
            IndexUnavailableError: It was.
        """
        answer = await self._index.server.call(
            lambda client: client.indices.get(index=index, ignore_unavailable=True)
        )
        state = answer.body.get(index)
        if state and raw_meta(state):
            return
        if state:
            await self._index.server.call(
                lambda client: client.indices.delete(index=index, ignore_unavailable=True)
            )
        raise IndexUnavailableError(
            f"The index '{self._index.name}' at {self._index.server.url} was built anew or deleted "
            "while its documents were encoded; open it again."
        )


def _written(vector: Float32Array) -> list[float] | None:
    """Return the values as they are sent; None for zeros, which Elasticsearch refuses.

    What is cut off is less than single precision loses, and half of the text.
    """
    return [round(value, 8) for value in vector.tolist()] if vector.any() else None
