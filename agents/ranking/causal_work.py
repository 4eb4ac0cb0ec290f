"""One question to a causal model: done on the model's thread, and given up from outside."""

from __future__ import annotations

import asyncio
import threading
import time

from fairqr.agents.answer import Answer
from fairqr.agents.failures import no_answer_within
from fairqr.agents.forms import ChoiceForm, Form
from fairqr.agents.question import Messages, Question
from fairqr.agents.ranking.decoding import (
    Readings,
    encode,
    first_probabilities,
    readings,
    written,
)
from fairqr.agents.replies import Reply, Usage
from fairqr.agents.streaming import Telling
from fairqr.base.errors import ModelError, one_line
from fairqr.base.neural import Pretrained, stated_limit

__all__ = ["Work"]


class Work:
    """One question; :meth:`reply` is called once.

    Args:
        name: Of the model, for messages.
        pretrained: The model.
        messages: What to ask, rendered.
        question: Says how long the reply may be, and how it is drawn.
        telling: Told each piece of a text, in the event loop.
        known: By labels, the tokens that read as them; filled here.
        until: The monotonic time at which to give up; None for never.

    Attributes:
        text: What was written.
        milliseconds: How long the model took.
    """

    def __init__(
        self,
        name: str,
        pretrained: Pretrained,
        messages: Messages,
        question: Question,
        telling: Telling | None,
        known: dict[tuple[str, ...], Readings],
        until: float | None,
    ) -> None:
        self.text = ""
        self.milliseconds = 0.0
        self._name = name
        self._pretrained = pretrained
        self._messages = messages
        self._question = question
        self._telling = telling
        self._known = known
        self._until = until
        self._stopped = threading.Event()
        self._loop = asyncio.get_running_loop()

    async def reply(self, form: Form, deadline: float | None) -> Reply:
        """Wait for the model; what goes wrong in it is a status.

        Args:
            form: What is wanted back.
            deadline: As it was given, for the message.
        """
        asked = Usage(model_calls=1)
        left = None if self._until is None else self._until - time.monotonic()
        try:
            async with asyncio.timeout(left):
                answer = await self._pretrained.run(lambda: self._answer(form))
        except ModelError as error:
            return Reply(error.status, message=str(error))  # type: ignore[arg-type]
        except TimeoutError:
            message = no_answer_within(self._name, deadline or 0)
            return Reply("timeout", message=message, usage=asked)
        except Exception as error:  # memory that runs out, a template that refuses the messages
            message = f"The model {self._name} failed ({one_line(error, 200)})."
            return Reply("unavailable", message=message, usage=asked)
        finally:
            # The thread looks at it between two tokens, and so does not go on for nobody.
            self._stopped.set()
        self.text = answer.text
        try:
            return Reply("ok", form.read(answer), usage=answer.usage)
        except ValueError as error:
            message = f"The model {self._name} gave no usable reply: {error}."
            return Reply("parse_error", message=message, usage=answer.usage)

    def _answer(self, form: Form) -> Answer:
        """Ask the model; raises ModelError, or TimeoutError where nobody waits any more."""
        began = time.monotonic()
        try:
            if not self._goes_on():
                raise TimeoutError
            model, tokenizer = self._pretrained.model, self._pretrained.tokenizer
            tokens = encode(tokenizer, self._messages)
            room = stated_limit(model.config, tokenizer)
            if not tokens or (room is not None and len(tokens) >= room):
                raise ModelError(
                    "invalid_request",
                    f"The prompt has {len(tokens)} tokens, and the model {self._name} reads and "
                    f"writes {room} together; show less of each document, or fewer at once.",
                )
            if isinstance(form, ChoiceForm):
                return self._weighed(tokens, tuple(form.labels))
            return self._written(tokens, room)
        finally:
            self.milliseconds = (time.monotonic() - began) * 1000

    def _weighed(self, tokens: list[int], labels: tuple[str, ...]) -> Answer:
        if labels not in self._known:
            self._known[labels] = readings(self._pretrained.tokenizer, labels)
        known = self._known[labels]
        read = {text.strip().casefold() for _, text in known}
        if lacking := [label for label in labels if label.strip().casefold() not in read]:
            raise ModelError(
                "unsupported",
                f"The model {self._name} has no token that reads '{lacking[0]}'; ask for a text.",
            )
        shares = first_probabilities(self._pretrained.model, tokens, [token for token, _ in known])
        usage = Usage(model_calls=1, prompt_tokens=len(tokens))
        texts = [text for _, text in known]
        return Answer("", False, usage, list(zip(texts, shares, strict=True)))

    def _written(self, tokens: list[int], room: int | None) -> Answer:
        question, defaults = self._question, self._question.prompt.defaults
        temperature = question.temperature
        limit = question.reply_tokens
        text, count = written(
            self._pretrained.model,
            self._pretrained.tokenizer,
            tokens,
            limit=limit if room is None else min(limit, room - len(tokens)),
            temperature=defaults.temperature if temperature is None else temperature,
            presence_penalty=defaults.presence_penalty or 0.0,
            seed=question.seed or 0,
            tell=self._tell,
            go_on=self._goes_on,
        )
        if not self._goes_on():
            raise TimeoutError  # what stands there is half a reply
        usage = Usage(model_calls=1, prompt_tokens=len(tokens), completion_tokens=count)
        return Answer(text, False, usage)

    def _goes_on(self) -> bool:
        late = self._until is not None and time.monotonic() >= self._until
        return not late and not self._stopped.is_set()

    def _tell(self, piece: str) -> None:
        if self._telling is not None:
            self._loop.call_soon_threadsafe(self._telling.tell, piece)
