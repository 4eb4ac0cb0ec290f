"""Questions that wait for a model of this process, which answers several of them at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from fairqr.agents.models.replies import Completion, Question
from fairqr.base.errors import FairqrError
from fairqr.base.neural import PretrainedModel


@dataclass(frozen=True, eq=False)
class Waiting:
    """A question and its answer to come.

    Attributes:
        question: What is asked.
        answer: The reply, or why there is none.
        stopped: Set when nobody waits for the answer any more.
    """

    question: Question
    answer: Future[Completion] = field(default_factory=Future)
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Prompt:
    """A question as a model reads it.

    Attributes:
        waiting: Whose question it is.
        tokens: What the model reads.
        new_tokens: How many tokens the reply may have.
        is_choice: Whether only the probabilities of the first token are wanted.
    """

    waiting: Waiting
    tokens: Sequence[int]
    new_tokens: int
    is_choice: bool

    def goes_with(self, other: Prompt) -> bool:
        """Return whether both can be generated in one batch."""
        return (self.new_tokens, self.is_choice) == (other.new_tokens, other.is_choice)


ReadPrompt = Callable[[PretrainedModel, Waiting], Prompt]
"""Makes a prompt of a question; raises a FairqrError if the model cannot be asked this."""

AnswerPrompts = Callable[[PretrainedModel, Sequence[Prompt]], Sequence[Completion]]
"""Asks the model; the answers are in the order of the prompts."""


class Batches:
    """The questions to one model, first come, first served.

    Args:
        size: How many are answered at once, at most.
        read: See :data:`ReadPrompt`.
        answer: See :data:`AnswerPrompts`. Both run on the model's thread.
    """

    def __init__(self, size: int, read: ReadPrompt, answer: AnswerPrompts) -> None:
        self._size = size
        self._read = read
        self._answer = answer
        self._queue: deque[Waiting] = deque()

    async def ask(self, pretrained: PretrainedModel, question: Question) -> Completion:
        """Return the answer to a question.

        Raises:
            FairqrError: The model cannot be asked this.
            Exception: Whatever the model raises.
        """
        waiting = Waiting(question)
        self._queue.append(waiting)
        try:
            await pretrained.run(lambda: self._answer_until(pretrained, waiting))
        finally:
            waiting.stopped.set()
        return waiting.answer.result()

    def _answer_until(self, pretrained: PretrainedModel, last: Waiting) -> None:
        """Answer what waits until one question is answered, or nobody waits for it."""
        while not (last.answer.done() or last.stopped.is_set()):
            self._answer_next(pretrained)

    def _answer_next(self, pretrained: PretrainedModel) -> None:
        """Answer the first questions that wait, as many as fit into one batch."""
        prompts = self._next_prompts(pretrained)
        if not prompts:
            return
        try:
            answers = self._answer(pretrained, prompts)
        except Exception as error:
            for prompt in prompts:
                prompt.waiting.answer.set_exception(error)
            return
        for prompt, answer in zip(prompts, answers, strict=True):
            prompt.waiting.answer.set_result(answer)

    def _next_prompts(self, pretrained: PretrainedModel) -> list[Prompt]:
        prompts: list[Prompt] = []
        while self._queue and len(prompts) < self._size:
            waiting = self._queue.popleft()
            if waiting.stopped.is_set():
                continue
            try:
                prompt = self._read(pretrained, waiting)
            except FairqrError as error:
                waiting.answer.set_exception(error)
                continue
            if prompts and not prompt.goes_with(prompts[0]):
                self._queue.appendleft(waiting)
                break
            prompts.append(prompt)
        return prompts
