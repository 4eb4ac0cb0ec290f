"""Opening retrievers and encoders by name."""

from __future__ import annotations

from fairqr.errors import InputError, ModelUnavailableError, one_line
from fairqr.retrieval.index import Index, Progress
from fairqr.retrieval.vectors.encoder import Encoder
from fairqr.retrieval.vectors.langchain_encoder import LangChainEncoder
from fairqr.retrieval.vectors.vector_index import VectorIndex
from fairqr.retrieval.vectors.wordllama_encoder import WordllamaEncoder

__all__ = ["DEFAULT_ENCODER", "open_encoder", "open_retriever"]

DEFAULT_ENCODER = "wordllama"


def open_encoder(name: str = DEFAULT_ENCODER) -> Encoder:
    """Return the encoder of a name.

    Args:
        name: ``wordllama``, the embedded one; or an embedding model as LangChain's
            ``init_embeddings`` names it, such as ``openai:text-embedding-3-small``.

    Raises:
        ModelUnavailableError: The name is none, or what the model needs is missing.
    """
    if name == WordllamaEncoder.name:
        return WordllamaEncoder()
    if ":" not in name:
        raise ModelUnavailableError(
            f"There is no encoder '{one_line(name)}'; choose {DEFAULT_ENCODER}, or a model of "
            "LangChain such as openai:text-embedding-3-small."
        )
    from langchain.embeddings import init_embeddings

    try:
        return LangChainEncoder(init_embeddings(name), name)
    except Exception as error:  # whatever the provider's class raises, a missing key included
        raise ModelUnavailableError(
            f"The encoder '{one_line(name)}' cannot be started ({one_line(error, 150)}); install "
            f"its package and set its key, or choose {DEFAULT_ENCODER}."
        ) from None


async def open_retriever(
    index: Index, retriever: str | Encoder, progress: Progress | None = None
) -> Index:
    """Return an index that retrieves in the way that is asked for.

    Args:
        index: Of the corpus, however it retrieves itself.
        retriever: ``bm25``; ``dense`` for vector search with the embedded encoder;
            ``dense:<encoder>`` with another, see :func:`open_encoder`; or an encoder.
        progress: Told how many documents have been encoded, where any have to be.

    Raises:
        InputError: There is no such retriever, or vectors of another model go by its name.
        ModelUnavailableError: There is no such encoder, or it cannot be started.
        ModelError: The encoder fails.
        IndexUnavailableError: The vectors cannot be written.
    """
    if not isinstance(retriever, str):
        return await VectorIndex.open(index, retriever, progress)
    kind, _, encoder = retriever.strip().partition(":")
    if kind == "bm25" and not encoder:
        return index.lexical
    if kind != "dense":
        raise InputError(
            f"There is no retriever '{one_line(retriever)}'; choose bm25, dense or "
            "dense:<encoder>, such as dense:openai:text-embedding-3-small."
        )
    return await VectorIndex.open(index, open_encoder(encoder or DEFAULT_ENCODER), progress)
