"""The base of models of transformers, which answer on a thread of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.question import Answer, Form, Messages, OnToken, Question, Wanted
from fairqr.agents.models.replies import Reply, Usage, failed
from fairqr.agents.models.spans import input_messages, model_span, outcome, output_messages
from fairqr.agents.models.streaming import TokenRelay
from fairqr.base.errors import FairqrError, ModelError, one_line
from fairqr.base.neural import Pretrained

GoesOn = Callable[[], bool]
"""Returns whether anybody still waits; the work checks it between two tokens."""


class InProcessModel(LanguageModel):
    """A model that answers one question at a time, and stops when nobody waits any more."""

    operation: Literal["chat", "text_completion"] = "chat"

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
        self, question: Question, form: Form, deadline: float | None, relay: TokenRelay | None
    ) -> tuple[Reply, float]:
        loop, stopped = asyncio.get_running_loop(), threading.Event()
        messages, milliseconds = self._messages(question), 0.0

        def tell(piece: str) -> None:
            if relay is not None:
                loop.call_soon_threadsafe(relay.send, piece)

        def timed() -> tuple[Answer, float]:
            began = time.monotonic()
            given = (pretrained, messages, question, form, tell)
            answer = self._answer(*given, lambda: not stopped.is_set())
            return answer, (time.monotonic() - began) * 1000

        model = self.name.partition(":")[2]
        with model_span(
            self.operation, "transformers", model, question.prompt, kind="internal"
        ) as step:
            step.content("gen_ai.input.messages", input_messages(messages))
            pretrained = await self.pretrained()
            usage = Usage(model_calls=1)
            try:
                answer, milliseconds = await pretrained.run(timed)
                usage = answer.usage
                step.content("gen_ai.output.messages", output_messages(answer.text))
                reply = Reply("ok", form.read(answer), usage=usage)
            except ModelError as error:  # the model was not asked
                reply = failed(error, Usage())
            except FairqrError:
                raise
            except ValueError as error:
                message = f"The model {self.name} gave no usable reply: {error}."
                reply = Reply("parse_error", message=message, usage=usage)
            except Exception as error:  # out of memory, or weights that do not fit the tokenizer
                message = f"The model {self.name} failed ({one_line(error, 200)})."
                reply = Reply("unavailable", message=message, usage=usage)
            finally:
                stopped.set()
            outcome(step, reply.status, reply.usage)
        return reply, milliseconds
