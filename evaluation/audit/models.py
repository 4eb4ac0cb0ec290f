"""Opening the models that an audit asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairqr.agents.attribution.attributors import open_attributor
from fairqr.agents.attribution.verdicts import Attributor
from fairqr.agents.cache import ReplyFile
from fairqr.agents.chat import ChatModel
from fairqr.agents.chat_generator import ChatGenerator
from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.generators import SEQ2SEQ, Generator, open_generator

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

__all__ = ["ATTRIBUTOR", "AskedModels", "open_models"]

ATTRIBUTOR = "overlap"
"""What judges by default; it needs no model."""


@dataclass(frozen=True, slots=True)
class AskedModels:
    """What an audit asks beside the engine.

    Attributes:
        name: The name of the model.
        generator: Answers questions; None if the model writes none.
        attributor: Judges what answers used.
        chat: Is probed as a ranker and compares pairs; None if the model is no chat model.
        refiner: Refines queries, the chat model or the name of one that needs the engine; None if
            the model refines none.
    """

    name: str
    generator: Generator | None
    attributor: Attributor
    chat: ChatModel | None
    refiner: ChatModel | str | None


def open_models(
    model: str | BaseChatModel,
    attributor: str,
    replies: Path,
    *,
    base_url: str | None = None,
    concurrency: int | None = None,
) -> AskedModels:
    """Open a model, and what judges its answers.

    Args:
        model: A chat model or its name; ``seq2seq:`` and a model, which only answers; or
            ``feedback``, which only refines queries.
        attributor: As :func:`fairqr.agents.attribution.attributors.open_attributor` takes it;
            ``llm`` alone is the chat model itself.
        replies: The file that keeps all replies.
        base_url: Of a server of chat models.
        concurrency: How many questions of an ``llm`` are under way at once.

    Raises:
        InputError: There is no such attributor.
        ModelUnavailableError: The name of the model is malformed.
    """
    cache = ReplyFile(replies)
    chat: ChatModel | None = None
    generator: Generator | None = None
    if not isinstance(model, str):
        chat = ChatModel.of(model)
    elif model.startswith(f"{SEQ2SEQ}:"):
        generator = open_generator(model, cache=cache)
    elif model != FeedbackRefiner.name:
        chat = ChatModel(model, base_url=base_url, cache=cache)
    judge = open_attributor(attributor, chat=chat, cache=cache, concurrency=concurrency)
    return AskedModels(
        name=chat.name if chat else str(model),
        generator=ChatGenerator(chat) if chat else generator,
        attributor=judge,
        chat=chat,
        refiner=FeedbackRefiner.name if model == FeedbackRefiner.name else chat,
    )
