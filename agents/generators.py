"""Opening what answers questions from documents, by its name."""

from __future__ import annotations

from typing import Any

from fairqr.agents.cache import ReplyCache, kept_in
from fairqr.agents.chat import ChatModel
from fairqr.agents.chat_generator import ChatGenerator
from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.generation import Generator
from fairqr.base.errors import ModelUnavailableError
from fairqr.base.settings import default_model

__all__ = ["SEQ2SEQ", "open_generator"]

SEQ2SEQ = "seq2seq"
"""What stands before the colon in the name of an encoder-decoder model of transformers."""


def open_generator(
    name: str | None = None,
    *,
    cache: bool | ReplyCache = True,
    input_tokens: int | None = None,
    **options: Any,
) -> Generator:
    """Return what answers questions from documents.

    Args:
        name: A chat model as :class:`ChatModel` takes it, such as ``openai:gpt-4o``; or
            ``seq2seq:`` and the hub id or the folder of an encoder-decoder model, such as
            ``seq2seq:google/flan-t5-small``; the configured model where None.
        cache: Keep replies on disk, and never ask the same twice; or where to keep them.
        input_tokens: How many tokens a prompt may have; the kind's own default where None.
        options: More for :class:`ChatModel`; an encoder-decoder model, which runs in this process,
            has no use for them.

    Raises:
        ModelUnavailableError: The name is none, or that of what writes no text.
    """
    name = name or default_model()
    kept = kept_in(cache)
    room = {} if input_tokens is None else {"input_tokens": input_tokens}
    kind, _, model = name.partition(":")
    if kind == SEQ2SEQ:
        if not model:
            raise ModelUnavailableError(
                f"The name '{name}' lacks a model; write it like seq2seq:google/flan-t5-small."
            )
        from fairqr.agents.seq2seq import Seq2SeqGenerator

        return Seq2SeqGenerator(model, cache=kept, **room)
    if name == FeedbackRefiner.name:
        raise ModelUnavailableError(
            "Relevance feedback writes no answers; name a language model, such as openai:gpt-4o or "
            "local:smollm2-135m."
        )
    return ChatGenerator(ChatModel(name, cache=kept, **options), **room)
