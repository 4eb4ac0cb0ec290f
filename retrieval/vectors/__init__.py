"""Vector search: encoders of text, and retrieval by the similarity of vectors, on both backends."""

from fairqr.retrieval.vectors.encoder import Encoder
from fairqr.retrieval.vectors.langchain_encoder import LangChainEncoder
from fairqr.retrieval.vectors.open import open_encoder, open_retriever
from fairqr.retrieval.vectors.vector_index import VectorIndex

__all__ = ["Encoder", "LangChainEncoder", "VectorIndex", "open_encoder", "open_retriever"]
