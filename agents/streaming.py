"""Texts that are passed on piece by piece while a model writes them."""

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

__all__ = ["UNSTREAMED", "InterruptedStreamError", "TokenRelay", "streamed"]

UNSTREAMED: RunnableConfig = {"tags": ["nostream"]}
"""Keeps LangGraph from showing the pieces of a reply in its stream ``messages``.

Most replies are objects for the program. The answer is shown there by the node that writes it, in
the same way whether it comes from a chat model, from the cache or from another generator.
"""


class InterruptedStreamError(Exception):
    """A stream failed after its first piece was passed on, so it must not start again.

    Args:
        cause: What ended it.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class TokenRelay:
    """Passes the pieces of one text on, without white space before the first.

    Args:
        on_token: Called with each piece.

    Attributes:
        began_at: When the first piece was passed on, by :func:`time.perf_counter`.
    """

    def __init__(self, on_token: OnToken) -> None:
        self._on_token: OnToken | None = on_token
        self.began_at: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a piece was passed on."""
        return self.began_at is not None

    def send(self, piece: str) -> None:
        """Pass a piece on, unless the relay was stopped."""
        if not self.has_begun:
            piece = piece.lstrip()
        if piece and self._on_token is not None:
            if self.began_at is None:
                self.began_at = time.perf_counter()
            self._on_token(piece)

    def stop(self) -> None:
        """Pass nothing more on: the caller has left, though others may wait for the same text."""
        self._on_token = None


async def streamed(
    client: BaseChatModel,
    messages: Messages,
    parameters: Mapping[str, Any],
    relay: TokenRelay,
    *,
    must_end: bool,
) -> AIMessage:
    """Ask, pass each piece on as it comes, and return the whole message.

    Args:
        client: Which model.
        messages: What to ask.
        parameters: Of the request.
        relay: Gets the pieces.
        must_end: Whether the provider says that a text is at its end, so that one that only stops
            was broken off.

    Raises:
        InterruptedStreamError: It failed after a piece was passed on.
        BrokenStreamError: It broke off before.
    """
    whole: AIMessageChunk | None = None
    streaming = client.astream(messages, UNSTREAMED, **parameters)
    chunks = cast("AsyncGenerator[AIMessageChunk]", streaming)
    async with aclosing(chunks):
        async for chunk in chunks:
            whole = chunk if whole is None else whole + chunk
            if isinstance(chunk.text, str):
                relay.send(chunk.text)
    if whole is None or (must_end and not whole.response_metadata.get("finish_reason")):
        raise BrokenStreamError("the stream ended early")
    return whole
