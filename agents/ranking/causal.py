"""Decoder-only models of transformers in this process: asked to rank like any chat model.

What a server would do is done here: the chat template, the pass of the model, the probabilities of
the first token. Questions are answered one after the other, each by itself: a batch would round
otherwise with other company.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from fairqr.agents.asking import LanguageModel
from fairqr.agents.cache import ReplyCache
from fairqr.agents.forms import Form
from fairqr.agents.question import Question, Wanted
from fairqr.agents.ranking.causal_weights import Source, load_source, source_of
from fairqr.agents.ranking.causal_work import Work
from fairqr.agents.ranking.decoding import Readings, label_tokens, render
from fairqr.agents.replies import Reply
from fairqr.agents.spans import input_messages, model_span, outcome, output_messages
from fairqr.agents.streaming import Telling
from fairqr.base.neural import Pretrained, stated_limit

__all__ = ["CausalModel", "label_tokens", "render"]


class CausalModel(LanguageModel):
    """A decoder-only model that answers questions, one at a time.

    Texts are greedy at temperature 0, else drawn from the whole distribution with the question's
    seed, which defaults to 0. Where the prompt leaves less of the context than the reply may have,
    the reply is cut there. A label's probability is the sum over all tokens that read as it, with a
    space before or in another case, in the softmax over the whole vocabulary; the temperature plays
    no part.

    Replies are kept with a hash of the weights that the files had when the model was first asked;
    those of other weights are not used.

    Args:
        name: A hub id, a folder, the folder of an adapter of peft, a GGUF file, or the name of
            embedded weights such as ``smollm2-135m``.
        cache: Where replies are kept, if anywhere.
    """

    gives_probabilities = True
    """Of the whole vocabulary."""

    def __init__(self, name: str, *, cache: ReplyCache | None = None) -> None:
        super().__init__(f"causal:{name}", cache)
        self._model = name
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

    async def _identity(self) -> Mapping[str, Any]:
        if self._source is None:
            self._source = await asyncio.to_thread(source_of, self._model)
        return {"model": self.name, "weights": self._source.state}

    async def _ask(
        self,
        question: Question,
        form: Form,
        deadline: float | None,
        telling: Telling | None,
    ) -> tuple[Reply, float]:
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
