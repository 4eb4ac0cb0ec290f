"""Passes a text on piece by piece while a model writes it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from fairqr.agents.models.question import Messages, OnToken

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.runnables import RunnableConfig

UNSTREAMED: RunnableConfig = {"tags": ["nostream"]}
"""Keeps LangGraph from showing the pieces of a reply in its stream ``messages``.

Most replies are objects for the program. An answer is shown there by its own node, in the same way
for a chat model, the cache and other generators.
"""


class BrokenStreamError(ConnectionError):
    """The stream ended before the model said that it had finished."""


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

    def send(self, piece: str) -> None:
        """Pass a piece on, unless the relay was stopped."""
        if self.began_at is None:
            piece = piece.lstrip()
        if piece and self._on_token is not None:
            self.began_at = self.began_at or time.perf_counter()
            self._on_token(piece)

    def stop(self) -> None:
        """Stop passing pieces on: the caller has left, but others may wait for the same text."""
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
        client: The chat model.
        messages: What to ask.
        parameters: The parameters of the request.
        relay: Gets the pieces.
        must_end: Whether the provider marks the end of a text. If so, a text without the mark is
            incomplete.

    Raises:
        BrokenStreamError: The stream ended early.
    """
    whole: AIMessageChunk | None = None
    chunks = client.astream(messages, UNSTREAMED, **parameters)
    async with aclosing(cast("AsyncGenerator[AIMessageChunk]", chunks)) as pieces:
        async for chunk in pieces:
            whole = chunk if whole is None else whole + chunk
            if isinstance(chunk.text, str):
                relay.send(chunk.text)
    if whole is None or (must_end and not whole.response_metadata.get("finish_reason")):
        raise BrokenStreamError("the stream ended early")
    return whole
