"""Opens a retriever over pools by name."""

from __future__ import annotations

from fairqr.base.errors import InputError, one_line
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.pools.base import PoolRetriever
from fairqr.retrieval.pools.bm25 import Bm25PoolRetriever
from fairqr.retrieval.pools.contriever import DEFAULT_CONTRIEVER, ContrieverPoolRetriever
from fairqr.retrieval.pools.dense import DensePoolRetriever
from fairqr.retrieval.pools.splade import DEFAULT_SPLADE, SpladePoolRetriever

POOL_RETRIEVERS = {
    "bm25": "BM25 with the statistics of the pool",
    "splade[:MODEL]": f"sparse term weights of a masked language model; {DEFAULT_SPLADE}",
    "contriever[:MODEL]": f"mean token vectors, dot product; {DEFAULT_CONTRIEVER}",
    "dense[:ENCODER]": "cosine of an encoder's vectors; minilm by default",
}
"""The available retrievers, with a line about each for users."""


def open_pool_retriever(name: str) -> PoolRetriever:
    """Return the retriever with a name; nothing is loaded before it is started or used.

    Args:
        name: ``bm25``; ``splade`` or ``contriever``, optionally with a hub id or a folder after a
            colon; ``dense``, optionally with an encoder after a colon.

    Raises:
        InputError: There is no such retriever.
        ModelUnavailableError: The encoder does not exist, or cannot be started.
    """
    kind, colon, model = name.strip().partition(":")
    if bool(colon) == bool(model):
        if kind == "bm25" and not model:
            return Bm25PoolRetriever()
        if kind == "splade":
            return SpladePoolRetriever(model or DEFAULT_SPLADE)
        if kind == "contriever":
            return ContrieverPoolRetriever(model or DEFAULT_CONTRIEVER)
        if kind == "dense":
            return DensePoolRetriever(open_encoder(model or MiniLmEncoder.name))
    raise InputError(
        f"There is no retriever '{one_line(name)}' over pools; choose {', '.join(POOL_RETRIEVERS)}."
    )
