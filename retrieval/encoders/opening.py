"""Opening encoders by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairqr.base.errors import InputError, ModelUnavailableError, one_line
from fairqr.base.weights.cache import is_pulled
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.encoders.langchain import LangChainEncoder
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.wordllama import WordllamaEncoder

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

__all__ = ["as_encoder", "default_encoder", "encoder_of", "open_encoder"]

EMBEDDED = {encoder.name: encoder for encoder in (MiniLmEncoder, WordllamaEncoder)}


def default_encoder() -> str:
    """Return the encoder that ``dense`` stands for: ``minilm`` if pulled, else ``wordllama``."""
    return MiniLmEncoder.name if is_pulled(MiniLmEncoder.name) else WordllamaEncoder.name


def open_encoder(name: str | None = None) -> Encoder:
    """Return the encoder of a name; it is loaded when it is first used.

    Args:
        name: ``minilm`` or ``wordllama``, which are embedded; or an embedding model as LangChain's
            ``init_embeddings`` names it, such as ``openai:text-embedding-3-small``. By default
            :func:`default_encoder`.

    Raises:
        ModelUnavailableError: There is no such encoder, or what it needs is missing.
    """
    if name is None:
        name = default_encoder()
    if name in EMBEDDED:
        return EMBEDDED[name]()
    if ":" not in name:
        raise ModelUnavailableError(
            f"There is no encoder '{one_line(name)}'; choose {' or '.join(EMBEDDED)}, or a model "
            "of LangChain such as openai:text-embedding-3-small."
        )
    from langchain.embeddings import init_embeddings

    try:
        return LangChainEncoder(init_embeddings(name), name)
    except Exception as error:  # whatever the provider's class raises, a missing key included
        raise ModelUnavailableError(
            f"The encoder '{one_line(name)}' cannot be started ({one_line(error, 150)}); install "
            f"its package and set its key, or choose {' or '.join(EMBEDDED)}."
        ) from None


def as_encoder(given: Encoder | Embeddings) -> Encoder:
    """Return an encoder as it is, and an ``Embeddings`` object of LangChain as an encoder."""
    from langchain_core.embeddings import Embeddings

    return LangChainEncoder(given) if isinstance(given, Embeddings) else given


def encoder_of(retriever: str | Encoder) -> Encoder | None:
    """Return the encoder that a retriever searches with, or None for ``bm25``.

    Args:
        retriever: ``bm25``; ``dense`` for :func:`default_encoder`; ``dense:<encoder>`` for
            another, see :func:`open_encoder`; or an encoder.

    Raises:
        InputError: There is no such retriever.
        ModelUnavailableError: There is no such encoder, or what it needs is missing.
    """
    if not isinstance(retriever, str):
        return retriever
    kind, _, encoder = retriever.strip().partition(":")
    if kind == "bm25" and not encoder:
        return None
    if kind != "dense":
        raise InputError(
            f"There is no retriever '{one_line(retriever)}'; choose bm25, dense or "
            "dense:<encoder>, such as dense:openai:text-embedding-3-small."
        )
    return open_encoder(encoder or None)
