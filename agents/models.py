"""Opening whatever refines queries, by its name."""

from __future__ import annotations

from typing import Any

from fairqr.agents.cache import ReplyCache, kept_in
from fairqr.agents.chat import ChatModel
from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.refiner import Refiner
from fairqr.base.errors import ModelUnavailableError
from fairqr.base.settings import default_model
from fairqr.retrieval.engines.engine import SearchEngine

__all__ = ["open_model"]


def open_model(
    name: str | None = None,
    *,
    engine: SearchEngine | None = None,
    cache: bool | ReplyCache = True,
    **options: Any,
) -> ChatModel | Refiner:
    """Return what refines queries.

    Args:
        name: As :class:`ChatModel` takes it; ``feedback`` for relevance feedback without a language
            model, which needs the engine; defaults to the configured model.
        engine: For ``feedback``.
        cache: Keep replies on disk, and never ask the same twice; or where to keep them.
        options: More for :class:`ChatModel`.

    Raises:
        ModelUnavailableError: The name is none, or ``feedback`` has no engine.
    """
    name = name or default_model()
    if name == FeedbackRefiner.name:
        if engine is None:
            raise ModelUnavailableError("The refiner 'feedback' needs an engine to learn from.")
        return FeedbackRefiner(engine)
    kept = kept_in(cache)
    return ChatModel(name, cache=kept, **options)
