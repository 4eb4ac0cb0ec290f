"""Opening whatever refines queries, by its name."""

from __future__ import annotations

from typing import Any

from fairqr.agents.cache import ReplyCache, kept_in
from fairqr.agents.chat import ChatModel
from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.refiner import Refiner
from fairqr.errors import ModelUnavailableError
from fairqr.retrieval.index import Index
from fairqr.settings import default_model

__all__ = ["open_model"]


def open_model(
    name: str | None = None,
    *,
    index: Index | None = None,
    cache: bool | ReplyCache = True,
    **options: Any,
) -> ChatModel | Refiner:
    """Return what refines queries.

    Args:
        name: As :class:`ChatModel` takes it; ``feedback`` for relevance feedback without a language
            model, which needs the index; the configured model where None.
        index: For ``feedback``.
        cache: Keep replies on disk, and never ask the same twice; or where to keep them.
        options: More for :class:`ChatModel`.

    Raises:
        ModelUnavailableError: The name is none, or ``feedback`` has no index.
    """
    name = name or default_model()
    if name == FeedbackRefiner.name:
        if index is None:
            raise ModelUnavailableError("The refiner 'feedback' needs an index to learn from.")
        return FeedbackRefiner(index)
    kept = kept_in(cache)
    return ChatModel(name, cache=kept, **options)
