"""Opening the models that an audit asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairqr.agents.attribution.attributors import open_attributor
from fairqr.agents.attribution.verdicts import Attributor
from fairqr.agents.cache import ReplyFile
from fairqr.agents.chat import ChatModel
from fairqr.agents.chat_generator import ChatGenerator
from fairqr.agents.generators import SEQ2SEQ, Generator, open_generator

__all__ = ["ATTRIBUTOR", "AskedModels", "open_models"]

ATTRIBUTOR = "overlap"
"""What judges by default; it needs no model."""


@dataclass(frozen=True, slots=True)
class AskedModels:
    """What an audit asks beside the engine.

    Attributes:
        generator: Answers questions.
        attributor: Judges what answers used.
        chat: Is probed as a ranker; None if the model is no chat model.
    """

    generator: Generator
    attributor: Attributor
    chat: ChatModel | None


def open_models(
    model: str,
    attributor: str,
    replies: Path,
    *,
    base_url: str | None = None,
    concurrency: int | None = None,
) -> AskedModels:
    """Open a model, and what judges its answers.

    Args:
        model: A chat model, or ``seq2seq:`` and a model.
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
    if model.startswith(f"{SEQ2SEQ}:"):
        generator, chat = open_generator(model, cache=cache), None
    else:
        chat = ChatModel(model, base_url=base_url, cache=cache)
        generator = ChatGenerator(chat)
    judge = open_attributor(attributor, chat=chat, cache=cache, concurrency=concurrency)
    return AskedModels(generator, judge, chat)
