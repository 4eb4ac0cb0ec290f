"""The base of models of transformers, which answer on a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from fairqr.agents.models import spans
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.language_model import LanguageModel, TokenRelay
from fairqr.agents.models.question import Answer, Form, Messages, OnToken, Question, Wanted
from fairqr.agents.models.replies import Reply, Usage
from fairqr.base.errors import FairqrError, ModelError, one_line
from fairqr.base.loops import PerLoop
from fairqr.base.neural import Pretrained

GoesOn = Callable[[], bool]
"""Returns whether anybody still waits; the work checks it between two tokens."""


class InProcessModel(LanguageModel):
    """A model that answers one question at a time, and stops when nobody waits any more."""

    operation: spans.Operation = "chat"

    def __init__(self, name: str, cache: ReplyCache | None) -> None:
        super().__init__(name, cache)
        self._turn: PerLoop[asyncio.Lock] = PerLoop()

    @abstractmethod
    async def pretrained(self) -> Pretrained:
        """Return the model and its tokenizer, loaded on first use.

        Raises:
            ModelUnavailableError: An extra or the weights are missing, or the model does not exist.
        """

    def _messages(self, question: Question) -> Messages:
        """Return what the model reads."""
        return question.prompt.render(question.values)

    @abstractmethod
    def _answer(
        self,
        pretrained: Pretrained,
        messages: Messages,
        question: Question,
        form: Form,
        tell: OnToken,
        goes_on: GoesOn,
    ) -> Answer:
        """Ask the model; runs on its thread, and raises ModelError if it cannot be asked this."""

    async def start(self, wanted: Wanted = "object") -> None:
        """Load the model; raises as :meth:`pretrained` does."""
        await self.pretrained()

    async def _ask(
        self, question: Question, form: Form, relay: TokenRelay | None
    ) -> tuple[Reply, float]:
        loop, stopped = asyncio.get_running_loop(), threading.Event()
        messages = self._messages(question)

        def tell(piece: str) -> None:
            if relay is not None:
                loop.call_soon_threadsafe(relay.send, piece)

        async def converse(exchange: spans.Exchange) -> Mapping[str, Any]:
            exchange.step.content("gen_ai.input.messages", spans.input_messages(messages))
            pretrained = await self.pretrained()
            given = (pretrained, messages, question, form, tell, lambda: not stopped.is_set())
            try:
                answer = await pretrained.run(lambda: self._answer(*given))
            except FairqrError:  # the model was not asked
                raise
            except Exception as error:  # out of memory, or weights that do not fit the tokenizer
                exchange.usage = Usage(model_calls=1)
                message = f"The model {self.name} failed ({one_line(error, 200)})."
                raise ModelError("unavailable", message) from None
            finally:
                stopped.set()
            exchange.usage = answer.usage
            exchange.step.content("gen_ai.output.messages", spans.output_messages(answer.text))
            return form.read(answer)

        async with self._turn.setdefault(asyncio.Lock()):
            return await spans.recorded(
                self.name, spans.IN_PROCESS, self.operation, question.prompt, converse
            )
