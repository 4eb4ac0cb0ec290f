"""An encoder that wraps any LangChain embedding model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fairqr.base.errors import ModelError
from fairqr.base.retries import is_used_up, status_of, with_retries

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

T = TypeVar("T")

TEXTS_AT_ONCE = 128


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
        batch_size: How many documents to send at once.
    """

    def __init__(
        self, embeddings: Embeddings, name: str | None = None, *, batch_size: int = TEXTS_AT_ONCE
    ) -> None:
        self._embeddings = embeddings
        self.name = name or _name_of(embeddings)
        self._batch_size = max(1, batch_size)

    async def encode_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of texts, shape (len(texts), d).

        Raises:
            ModelError: The model failed.
        """
        vectors: list[list[float]] = []
        for start in range(0, len(texts), self._batch_size):
            batch = list(texts[start : start + self._batch_size])
            vectors += await self._call(partial(self._embeddings.aembed_documents, batch))
        return vectors

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
            what = type(error).__name__ + (f", status {status}" if status else "")
            raise ModelError(
                _status_name(error, status),
                f"The encoder '{self.name}' failed ({what}); check its name, key and address, or "
                "choose another retriever.",
            ) from None


def _status_name(error: Exception, status: int | None) -> str:
    """Return the failure as a :data:`fairqr.agents.models.replies.Status`."""
    if status == 429:
        return "refused" if is_used_up(error) else "rate_limited"
    if status in (401, 403):
        return "refused"
    if status is not None and 400 <= status < 500:
        return "invalid_request"
    return "timeout" if isinstance(error, TimeoutError) else "unavailable"


def _name_of(embeddings: Embeddings) -> str:
    for attribute in ("model", "model_name", "model_id", "deployment"):
        model = getattr(embeddings, attribute, None)
        if isinstance(model, str) and model:
            return f"{type(embeddings).__name__}:{model}"
    return type(embeddings).__name__
