"""Opening the models that an audit asks for answers."""

from __future__ import annotations

from pathlib import Path

from fairqr.agents.attribution.attributors import open_attributor
from fairqr.agents.attribution.verdicts import Attributor
from fairqr.agents.cache import ReplyFile
from fairqr.agents.chat import ChatModel
from fairqr.agents.chat_generator import ChatGenerator
from fairqr.agents.generators import SEQ2SEQ, Generator, open_generator

__all__ = ["ATTRIBUTOR", "open_answering"]

ATTRIBUTOR = "overlap"
"""What judges by default; it needs no model."""


def open_answering(
    model: str,
    attributor: str,
    replies: Path,
    *,
    base_url: str | None = None,
    concurrency: int | None = None,
) -> tuple[Generator, Attributor]:
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
    return generator, open_attributor(attributor, chat=chat, cache=cache, concurrency=concurrency)
