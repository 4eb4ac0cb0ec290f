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
        attributes = ("model", "model_name", "model_id", "deployment")
        stated = [getattr(embeddings, attribute, None) for attribute in attributes]
        model = next((f":{it}" for it in stated if it and isinstance(it, str)), "")
        self.name = name or f"{type(embeddings).__name__}{model}"

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
            what = type(error).__name__ + (f", status {status}" if status else "")
            raise ModelError(
                _status_name(error, status),
                f"The encoder '{self.name}' failed ({what}); check its name, key and address, or "
                "choose another retriever.",
            ) from None


def _status_name(error: Exception, status: int | None) -> str:
    """Return the failure as a :data:`fairqr.agents.models.replies.Status`."""
    if is_used_up(error) or status in (401, 403):
        return "refused"
    if status and 400 <= status < 500:
        return "rate_limited" if status == 429 else "invalid_request"
    return "timeout" if isinstance(error, TimeoutError) else "unavailable"
