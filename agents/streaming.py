"""Texts that are told piece by piece while a model writes them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from fairqr.agents.failures import BrokenStreamError
from fairqr.agents.question import Messages, OnToken

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.runnables import RunnableConfig

__all__ = ["UNSTREAMED", "InterruptedStreamError", "Telling", "streamed"]

UNSTREAMED: RunnableConfig = {"tags": ["nostream"]}
"""Keeps LangGraph from showing the pieces of a reply in its stream ``messages``.

Most replies are objects for the program. The answer is shown there by the node that writes it, in
the same way whether it comes from a chat model, from the cache or from another generator.
"""


class InterruptedStreamError(Exception):
    """A stream failed after a piece was told, so that it must not be begun again.

    Args:
        cause: What ended it.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Telling:
    """Passes the pieces of one text on, without white space before the first.

    Args:
        on_token: Who is told.

    Attributes:
        began: When the first piece was told, by :func:`time.perf_counter`.
    """

    def __init__(self, on_token: OnToken) -> None:
        self._on_token: OnToken | None = on_token
        self.began: float | None = None

    @property
    def begun(self) -> bool:
        """Whether a piece was told."""
        return self.began is not None

    def tell(self, piece: str) -> None:
        """Pass a piece on, unless nobody listens any more."""
        if not self.begun:
            piece = piece.lstrip()
        if piece and self._on_token is not None:
            if self.began is None:
                self.began = time.perf_counter()
            self._on_token(piece)

    def stop(self) -> None:
        """Tell nothing more: who asked has left, though others may wait for the same text."""
        self._on_token = None


async def streamed(
    client: BaseChatModel,
    messages: Messages,
    parameters: Mapping[str, Any],
    telling: Telling,
    *,
    must_end: bool,
) -> AIMessage:
    """Ask, tell each piece as it comes, and return the whole message.

    Args:
        client: Which model.
        messages: What to ask.
        parameters: Of the request.
        telling: Told the pieces.
        must_end: Whether the provider says that a text is at its end, so that one that only stops
            was broken off.

    Raises:
        InterruptedStreamError: It failed after a piece was told.
        BrokenStreamError: It broke off before.
    """
    whole: AIMessageChunk | None = None
    streaming = client.astream(messages, UNSTREAMED, **parameters)
    chunks = cast("AsyncGenerator[AIMessageChunk]", streaming)
    async with aclosing(chunks):
        async for chunk in chunks:
            whole = chunk if whole is None else whole + chunk
            if isinstance(chunk.text, str):
                telling.tell(chunk.text)
    if whole is None or (must_end and not whole.response_metadata.get("finish_reason")):
        raise BrokenStreamError("the stream ended early")
    return whole
