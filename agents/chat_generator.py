"""Answers questions from documents with a chat model."""

from __future__ import annotations

from fairqr.agents.generators import GenerationRequest, OnToken
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.question import Question
from fairqr.agents.models.replies import TextReply
from fairqr.prompts.budget import (
    NO_DOCUMENTS,
    SAFE_SHARE,
    NoRoomError,
    cut,
    estimated_tokens,
    message_tokens,
    render_documents,
    require_room,
)
from fairqr.prompts.template import PromptTemplate, fence

INPUT_TOKENS = 2048
"""The default room of a prompt; every common chat model has more."""

QUESTION_TOKENS = 256

MAX_QUESTION_CHARACTERS = 100_000


class ChatGenerator:
    """Asks a chat model for an answer.

    What does not fit is cut, by an estimate of the number of tokens. The question is cut to its own
    limit; the documents share the rest fairly. If the documents get too little room, or the prompt
    alone is too long, nothing is asked and the status is ``invalid_request``.

    Args:
        model: The chat model.
        input_tokens: How many tokens a prompt may have. The embedded model never gets more than its
            window has room for besides the answer.
        question_tokens: How many of them are for the question.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        input_tokens: int = INPUT_TOKENS,
        question_tokens: int = QUESTION_TOKENS,
    ) -> None:
        self._model = model
        self._input_tokens = input_tokens
        self._question_tokens = question_tokens

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model.name

    def temperature_of(self, asked: float | None) -> float | None:
        """Return the temperature of answers if ``asked`` is requested; see :class:`ChatModel`."""
        return self._model.temperature_of(asked)

    async def start(self) -> None:
        """Start the model."""
        await self._model.start("text")

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        """Cut what is too long, and ask; see :meth:`Generator.generate`.

        Raises:
            PromptError: The prompt has no item, or a document lacks one of the item's fields.
            ModelUnavailableError: As :meth:`start` raises it.
        """
        try:
            values = self._values(request)
        except NoRoomError as error:
            return TextReply("invalid_request", message=str(error))
        question = Question(
            prompt=request.prompt,
            values=values,
            temperature=request.temperature,
            seed=request.seed,
        )
        return await self._model.write(question, deadline, on_token)

    def _values(self, request: GenerationRequest) -> dict[str, str]:
        fenced = fence(request.question, MAX_QUESTION_CHARACTERS)
        question = cut(fenced, self._question_tokens, estimated_tokens)
        values = {"question": question, "documents": ""}
        prompt, sources = request.prompt, request.sources
        messages = prompt.render(values)
        taken = message_tokens(messages)
        room = self._room(prompt) - taken
        if room < estimated_tokens(NO_DOCUMENTS):
            raise NoRoomError(
                f"The prompt {prompt.id}/{prompt.version} with the question alone has about "
                f"{taken} tokens, but there is only room for {self._room(prompt)}; shorten the "
                "question or the prompt, raise input_tokens, or use a model with a larger window."
            )
        require_room(prompt, sources, estimated_tokens, room)
        documents = render_documents(prompt, sources, estimated_tokens, room)
        return {**values, "documents": documents}

    def _room(self, prompt: PromptTemplate) -> int:
        """Return how many estimated tokens a prompt may have."""
        if (context := self._model.context_tokens) is None:
            return self._input_tokens
        window = int(SAFE_SHARE * (context - prompt.defaults.max_tokens))
        return min(self._input_tokens, window)
