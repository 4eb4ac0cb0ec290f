"""Opening retrievers over an index."""

from __future__ import annotations

from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.encoders.opening import encoder_of
from fairqr.retrieval.index import Index, Progress
from fairqr.retrieval.vectors.vector_index import VectorIndex

__all__ = ["open_retriever"]


async def open_retriever(
    index: Index, retriever: str | Encoder, progress: Progress | None = None
) -> Index:
    """Return an index that retrieves in the way that is asked for; see :func:`encoder_of`."""
    encoder = encoder_of(retriever)
    return index.lexical if encoder is None else await VectorIndex.open(index, encoder, progress)
