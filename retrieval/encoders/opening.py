"""Opens encoders by name, and wraps embedding models of LangChain as encoders."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from fairqr.base.errors import InputError, ModelError, ModelUnavailableError, one_line
from fairqr.base.retries import is_used_up, status_of, with_retries
from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.encoders.minilm import MiniLmEncoder

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

T = TypeVar("T")
RetrieverName = Literal["auto", "bm25", "dense", "hybrid"]

RETRIEVERS: dict[RetrieverName, str] = {
    "auto": "hybrid if MiniLM is pulled, else bm25",
    "bm25": "matches the words of the query; an attached engine ranks in its own way",
    "dense": "compares the vectors of the query and of the documents",
    "hybrid": "estimates how likely each document is relevant, by words and vectors; an attached "
    "engine keeps its ranking",
}
"""The retrievers, with a line about each for users."""

AUTO = "auto"
"""The retriever that searches by words and vectors if that costs little."""


class LangChainEncoder:
    """Encodes with a LangChain ``Embeddings`` object.

    Example::

        LangChainEncoder(OpenAIEmbeddings(model="text-embedding-3-small"))

    It calls the asynchronous methods; if there are none, LangChain runs the others in threads.
    Failed calls are retried (:mod:`fairqr.base.retries`), so switch off the model's own retries.

    Args:
        embeddings: The model.
        name: The name of its vectors; by default made from the class and the model. Two models must
            not have the same name.
    """

    def __init__(self, embeddings: Embeddings, name: str | None = None) -> None:
        self._embeddings = embeddings
        self.name = name or _name_of(embeddings)

    async def encode_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of texts, shape (len(texts), d).

        Raises:
            ModelError: The model failed.
        """
        return await self._call(partial(self._embeddings.aembed_documents, [*texts]))

    async def encode_query(self, text: str) -> list[float]:
        """Return the vector of a query, shape (d,).

        Raises:
            ModelError: The model failed.
        """
        return await self._call(partial(self._embeddings.aembed_query, text))

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await with_retries(call)
        except Exception as error:
            # Leave out the message, which may contain a key or a text.
            status = status_of(error)
            failure = type(error).__name__
            if status:
                failure += f", status {status}"
            raise ModelError(
                _status_name(error, status),
                f"The encoder '{self.name}' failed ({failure}); check its name, key and address, "
                "or choose another retriever.",
            ) from None


def _name_of(embeddings: Embeddings) -> str:
    """Return a name made from the class of an embedding model, and the model it states."""
    for attribute in ("model", "model_name", "model_id", "deployment"):
        model = getattr(embeddings, attribute, None)
        if model and isinstance(model, str):
            return f"{type(embeddings).__name__}:{model}"
    return type(embeddings).__name__


def _status_name(error: Exception, status: int | None) -> str:
    """Return the failure as a :data:`fairqr.agents.models.replies.Status`."""
    if is_used_up(error) or status in (401, 403):
        return "denied"
    if status == 429:
        return "rate_limited"
    if status and 400 <= status < 500:
        return "invalid_request"
    if isinstance(error, TimeoutError):
        return "timeout"
    return "unavailable"


def automatic(source_encoder: str | None = None) -> str:
    """Return the retriever that ``auto`` means for an index.

    Args:
        source_encoder: The encoder that made the vectors of the source, if it has any.
    """
    if source_encoder:
        with contextlib.suppress(ModelUnavailableError):
            return f"hybrid:{open_encoder(source_encoder).name}"
    if is_pulled(MiniLmEncoder.name):
        return f"hybrid:{MiniLmEncoder.name}"
    return "bm25"


def open_encoder(name: str = MiniLmEncoder.name) -> Encoder:
    """Return the encoder with a name; it is loaded when first used.

    Args:
        name: ``minilm``, which is embedded; or an embedding model as named for LangChain's
            ``init_embeddings``, such as ``openai:text-embedding-3-small``.

    Raises:
        ModelUnavailableError: The encoder does not exist, or something it needs is missing.
    """
    if name == MiniLmEncoder.name:
        return MiniLmEncoder()
    if ":" not in name:
        raise ModelUnavailableError(
            f"There is no encoder '{one_line(name)}'; choose minilm, or a LangChain model such as "
            "openai:text-embedding-3-small."
        )
    from langchain.embeddings import init_embeddings

    try:
        return LangChainEncoder(init_embeddings(name), name)
    except Exception as error:  # The provider's class may raise anything, e.g. for a missing key.
        raise ModelUnavailableError(
            f"The encoder '{one_line(name)}' cannot be started ({one_line(error, 150)}); install "
            "its package and set its key, or choose minilm."
        ) from None


def as_encoder(encoder: Encoder | Embeddings) -> Encoder:
    """Return an encoder as it is, and wrap a LangChain ``Embeddings`` object as one."""
    from langchain_core.embeddings import Embeddings

    if isinstance(encoder, Embeddings):
        return LangChainEncoder(encoder)
    return encoder


class Retriever(NamedTuple):
    """How documents are found.

    Attributes:
        kind: By words (``bm25``), by vectors (``dense``), or by both (``hybrid``).
        encoder: Makes the vectors, for ``dense`` and ``hybrid``.
        stores_vectors: Whether ``hybrid`` encodes all documents of an embedded index first. By
            default it encodes the texts that words find, until somebody stores vectors.
    """

    kind: str
    encoder: Encoder | None = None
    stores_vectors: bool = False

    @classmethod
    def of(cls, retriever: str | Encoder | Retriever, encoder: str | None = None) -> Retriever:
        """Parse how to find documents.

        Args:
            retriever: ``auto``, which is ``hybrid`` once MiniLM is pulled, and ``bm25`` before;
                ``bm25``; ``dense`` or ``hybrid``, with MiniLM;
                ``dense:ENCODER`` or ``hybrid:ENCODER`` with another, see :func:`open_encoder`; or
                an encoder, which means ``hybrid`` with it.
            encoder: The encoder if ``retriever`` does not name it; MiniLM by default.

        Raises:
            InputError: There is no such retriever.
            ModelUnavailableError: The encoder does not exist, or something it needs is missing.
        """
        if isinstance(retriever, Retriever):
            return retriever
        if not isinstance(retriever, str):
            return cls("hybrid", retriever)

        name = retriever.strip()
        if name == AUTO:
            name = automatic()
        kind, _, encoder_name = name.partition(":")
        if name == "bm25":
            return cls("bm25")
        if kind in ("dense", "hybrid"):
            encoder_name = encoder_name.strip() or encoder or MiniLmEncoder.name
            return cls(kind, open_encoder(encoder_name))
        raise InputError(
            f"There is no retriever '{one_line(retriever)}'; choose {', '.join(RETRIEVERS)}, or "
            "one of the last two with an encoder, such as hybrid:openai:text-embedding-3-small."
        )
