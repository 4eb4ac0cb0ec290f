"""Generators: they answer a question from documents, in the order of a ranking."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.replies import OnToken, Question, Reply
from fairqr.prompts.budget import NoRoomError
from fairqr.prompts.template import PromptTemplate

INPUT_TOKENS = 2048
"""The default room of a prompt; every common chat model has more."""


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

    async def start(self) -> None:
        """Prepare for work; raises ModelUnavailableError if something is missing."""

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> Reply:
        """Answer a question; errors of a model never raise.

        Args:
            request: What to answer.
            deadline: Seconds from now after which to give up.
            on_token: Called with each piece as it comes, or with the whole answer if the model or
                the cache gives it at once.
        """


def temperature_of(generator: Generator, requested: float | None) -> float | None:
    """Return the temperature of answers if one is requested; its model may have its own."""
    model = getattr(generator, "model", None)
    if isinstance(model, LanguageModel):
        return model.temperature_of(requested)
    return requested


class ModelGenerator:
    """Answers with a language model.

    What does not fit is cut, by the model's own count of tokens or an estimate. The question is cut
    to its own limit; the documents share the rest fairly. If the documents get too little room, or
    the prompt alone is too long, nothing is asked and the status is ``invalid_request``.

    Args:
        model: The language model.
        input_tokens: How many tokens a prompt may have, unless the model has room for fewer.
        question_tokens: How many of them are for the question.
    """

    def __init__(
        self, model: LanguageModel, *, input_tokens: int = INPUT_TOKENS, question_tokens: int = 256
    ) -> None:
        self.name = model.name
        self.model = model
        self._room = (input_tokens, question_tokens)

    async def start(self) -> None:
        """Start the model; raises ModelUnavailableError if something is missing."""
        await self.model.start("text")

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> Reply:
        """Cut what is too long, and ask; see :meth:`Generator.generate`.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
        """
        prompt = request.prompt if request.sources else request.prompt.alone
        budget = await self.model.budget(prompt, *self._room)
        try:
            values = await asyncio.to_thread(budget.fill, prompt, request.question, request.sources)
        except NoRoomError as error:
            return Reply("invalid_request", message=str(error))
        question = Question(prompt, values, temperature=request.temperature, seed=request.seed)
        return await self.model.write(question, deadline, on_token)
