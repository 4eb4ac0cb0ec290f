"""Generators: what answers a question from documents, in the order of a ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairqr.agents.cache import ReplyCache, kept_in
from fairqr.agents.chat import ChatModel
from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.question import OnToken
from fairqr.agents.replies import TextReply
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
"""What stands before the colon in the name of an encoder-decoder model of transformers."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to answer, and from what.

    Attributes:
        prompt: Any with the placeholders ``question`` and ``documents``, and an ``item``.
        question: As the user wrote it.
        sources: The documents in order of rank, each as the fields that the prompt's ``item`` has
            placeholders for; none asks for an answer without any document.
        temperature: In [0, 2]; the prompt's own where None.
        seed: For repeatable sampling, where the model supports it.
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
        """What answered, as it stands in results."""
        ...

    async def start(self) -> None:
        """Make ready; raises ModelUnavailableError where something is missing."""
        ...

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        """Answer; never raises for what a model does wrong.

        Args:
            request: What to answer.
            deadline: Seconds from now after which to give up.
            on_token: Told each piece as it comes; the whole answer at once where the model, or the
                cache, gives it at once.
        """
        ...


def temperature_of(generator: Generator, asked: float | None) -> float | None:
    """Return the temperature of answers if one is asked for: the same, or the generator's own."""
    own = getattr(generator, "temperature_of", None)
    return asked if own is None else own(asked)


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
            "Relevance feedback writes no answers; name a language model, such as openai:gpt-4o or "
            "local:smollm2-135m."
        )
    return ChatGenerator(ChatModel(name, cache=kept, **options), **room)
