"""Vector search by vectors that fairqr has made."""

from fairqr.retrieval.vectors.open import open_retriever
from fairqr.retrieval.vectors.vector_index import VectorIndex

__all__ = ["VectorIndex", "open_retriever"]
