"""Generators: they answer a question from documents, in the order of a ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.models.cache import ReplyCache, kept_in
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.question import OnToken
from fairqr.agents.models.replies import TextReply
from fairqr.base.errors import ModelUnavailableError
from fairqr.base.settings import default_model
from fairqr.prompts.template import PromptTemplate

__all__ = [
    "SEQ2SEQ",
    "GenerationRequest",
    "Generator",
    "OnToken",
    "open_generator",
    "temperature_of",
]

SEQ2SEQ = "seq2seq"
"""The prefix in the names of encoder-decoder models of transformers."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A question, and the documents to answer it from.

    Attributes:
        prompt: A prompt with the placeholders ``question`` and ``documents``, and an ``item``.
        question: The question as the user wrote it.
        sources: The documents in order of rank, each with the fields of the prompt's ``item``. If
            empty, the answer uses no documents.
        temperature: In [0, 2]; defaults to the prompt's own.
        seed: For repeatable sampling, if the model supports it.
    """

    prompt: PromptTemplate
    question: str
    sources: Sequence[Mapping[str, str]]
    temperature: float | None = None
    seed: int | None = None


class Generator(Protocol):
    """Writes answers."""

    @property
    def name(self) -> str:
        """The name for results."""
        ...

    async def start(self) -> None:
        """Prepare for work; raises ModelUnavailableError if something is missing."""
        ...

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        """Answer a question; errors of a model never raise.

        Args:
            request: What to answer.
            deadline: Seconds from now after which to give up.
            on_token: Called with each piece as it comes, or with the whole answer if the model or
                the cache gives it at once.
        """
        ...


def temperature_of(generator: Generator, asked: float | None) -> float | None:
    """Return the temperature of answers if ``asked`` is requested; a generator may have its own."""
    own = getattr(generator, "temperature_of", None)
    return asked if own is None else own(asked)


def open_generator(
    name: str | None = None,
    *,
    cache: bool | ReplyCache = True,
    input_tokens: int | None = None,
    **options: Any,
) -> Generator:
    """Return a generator that answers questions from documents.

    Args:
        name: A chat model as :class:`ChatModel` takes it, such as ``openai:gpt-4o``; or
            ``seq2seq:`` and the hub id or folder of an encoder-decoder model, such as
            ``seq2seq:google/flan-t5-small``. Defaults to the configured model.
        cache: Whether to keep replies on disk so that nothing is asked twice, or the cache to use.
        input_tokens: How many tokens a prompt may have; the default depends on the kind of model.
        options: More for :class:`ChatModel`; encoder-decoder models ignore them.

    Raises:
        ModelUnavailableError: The name is malformed, or its model cannot write texts.
    """
    from fairqr.agents.chat_generator import ChatGenerator

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
            "Relevance feedback cannot write answers; name a language model, such as openai:gpt-4o "
            "or local:smollm2-135m."
        )
    return ChatGenerator(ChatModel(name, cache=kept, **options), **room)
