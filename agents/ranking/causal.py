"""Decoder-only models of transformers in this process: asked to rank like any chat model.

What a server would do is done here: the chat template, the pass of the model, the probabilities of
the first token. Questions are answered one after the other, each by itself: a batch would round
otherwise with other company.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from fairqr.agents.asking import Asking, choice_of, text_of
from fairqr.agents.cache import ReplyCache, cache_key
from fairqr.agents.forms import ChoiceForm, Form, TextForm
from fairqr.agents.question import OnToken, Question, Wanted
from fairqr.agents.ranking.causal_weights import Source, load_source, source_of
from fairqr.agents.ranking.causal_work import Work
from fairqr.agents.ranking.decoding import Readings, label_tokens, render
from fairqr.agents.replies import Choice, Reply, TextReply
from fairqr.agents.spans import input_messages, model_span, outcome, output_messages
from fairqr.agents.streaming import Telling
from fairqr.base.neural import Pretrained, stated_limit

__all__ = ["CausalModel", "label_tokens", "render"]


class CausalModel:
    """A decoder-only model that answers questions, one at a time.

    Equal questions that are asked at the same time are asked once, if there is a cache. Weights are
    those that the files had when the model was first asked; replies of other ones are not taken.

    Args:
        name: A hub id, a folder, the folder of an adapter of peft, a GGUF file, or the name of
            embedded weights such as ``smollm2-135m``.
        cache: Where replies are kept; None asks anew each time.
    """

    gives_probabilities = True
    """Of the whole vocabulary."""

    def __init__(self, name: str, *, cache: ReplyCache | None = None) -> None:
        self.name = f"causal:{name}"
        self._model = name
        self._cache = cache
        self._asking = Asking(self.name, cache)
        self._source: Source | None = None
        self._loaded: Pretrained | None = None
        self._readings: dict[tuple[str, ...], Readings] = {}

    @property
    def context_tokens(self) -> int | None:
        """How many tokens it reads and writes together; None before it is loaded, or no limit."""
        if (loaded := self._loaded) is None:
            return None
        return stated_limit(loaded.model.config, loaded.tokenizer)

    async def start(self, wanted: Wanted = "object") -> None:
        """Load the model.

        Raises:
            ModelUnavailableError: An extra or the weights are missing, or there is no such model.
        """
        await self.pretrained()

    async def pretrained(self) -> Pretrained:
        """Return the model and its tokenizer, loaded on first use; raises as :meth:`start` does."""
        if self._loaded is None:
            source = await asyncio.to_thread(source_of, self._model)
            self._loaded = await load_source(source)
            self._source = source
        return self._loaded

    async def write(
        self,
        question: Question,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        """Ask for a text; see :meth:`fairqr.agents.chat.ChatModel.write`.

        It is greedy where the temperature is 0, else drawn from the whole distribution with the
        question's seed, 0 where it has none. Where the prompt leaves less of the context than the
        reply may have, the reply is cut there.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
        """
        telling = Telling(on_token) if on_token else None
        reply = await self._reply(question, TextForm(), deadline, telling)
        return text_of(reply, self.name, telling)

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Choice:
        """Ask how probable it is that the reply begins with each label.

        A label's probability is the sum over all tokens that read as it, with a space before or in
        another case, in the softmax over the whole vocabulary; the temperature plays no part.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
            ValueError: There are fewer than two labels, or two that are alike but for their case.
        """
        reply = await self._reply(question, ChoiceForm(tuple(labels)), deadline)
        return choice_of(reply)

    async def _reply(
        self,
        question: Question,
        form: TextForm | ChoiceForm,
        deadline: float | None,
        telling: Telling | None = None,
    ) -> Reply:
        if self._cache and self._source is None:
            self._source = await asyncio.to_thread(source_of, self._model)
        return await self._asking.reply(
            lambda: self._key(question, form),
            form,
            lambda left: self._ask(question, form, left, telling),
            deadline,
            telling,
        )

    def _key(self, question: Question, form: Form) -> str:
        return cache_key(
            model=self.name,
            weights=self._source.state if self._source else "",
            prompt=question.prompt.sha256,
            values=dict(question.values),
            temperature=question.temperature,
            seed=question.seed,
            max_tokens=question.reply_tokens,
            **form.key,
        )

    async def _ask(
        self,
        question: Question,
        form: TextForm | ChoiceForm,
        deadline: float | None,
        telling: Telling | None,
    ) -> tuple[Reply, float]:
        """Ask in a traced step; return the reply and the milliseconds of the model."""
        until = None if deadline is None else time.monotonic() + deadline
        prompt = question.prompt
        messages = prompt.render(question.values)
        with model_span("chat", "transformers", self._model, prompt, kind="internal") as step:
            step.content("gen_ai.input.messages", input_messages(messages))
            pretrained = await self.pretrained()
            work = Work(self.name, pretrained, messages, question, telling, self._readings, until)
            reply = await work.reply(form, deadline)
            step.content("gen_ai.output.messages", output_messages(work.text))
            outcome(step, reply.status, reply.usage)
        return reply, work.milliseconds
