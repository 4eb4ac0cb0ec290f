"""Decoder-only models of transformers in this process, which rank like any chat model.

This module does the work of a server: the chat template, the pass of the model, and the
probabilities of the first token. Questions are answered one at a time, since the rounding in a
batch would depend on its other questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.in_process import GoesOn, InProcessModel
from fairqr.agents.models.question import Answer, ChoiceForm, Form, Messages, OnToken, Question
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.causal_weights import Source, load_source, source_of
from fairqr.agents.ranking.decoding import (
    Readings,
    encode,
    first_probabilities,
    readings,
    written,
)
from fairqr.base.errors import ModelError
from fairqr.base.neural import Pretrained, stated_limit


class CausalModel(InProcessModel):
    """A decoder-only model that answers questions, one at a time.

    At temperature 0, texts are greedy. Otherwise they are drawn from the whole distribution with
    the question's seed, which defaults to 0. A reply is cut at the end of the context. The
    probability of a label is the sum over all tokens that read as the label, also in another case
    or after a space, in the softmax over the whole vocabulary. It ignores the temperature.

    Cached replies are only used for the same weights: the key has a hash of the state of the files
    when the model was first asked.

    Args:
        name: A hub id, a folder, the folder of a peft adapter, a GGUF file, or the name of embedded
            weights such as ``smollm2-135m``.
        cache: Where to keep replies; optional.
    """

    gives_probabilities = True
    """The probabilities are over the whole vocabulary."""

    def __init__(self, name: str, *, cache: ReplyCache | None = None) -> None:
        super().__init__(f"causal:{name}", cache)
        self._model = name
        self._source: Source | None = None
        self._loaded: Pretrained | None = None
        self._readings: dict[tuple[str, ...], Readings] = {}

    @property
    def context_tokens(self) -> int | None:
        """How many tokens it reads and writes together; None before loading, or without a limit."""
        if (loaded := self._loaded) is None:
            return None
        return stated_limit(loaded.model.config, loaded.tokenizer)

    async def pretrained(self) -> Pretrained:
        """Return the model and its tokenizer, loaded on first use."""
        if self._loaded is None:
            source = await asyncio.to_thread(source_of, self._model)
            self._loaded = await load_source(source)
            self._source = source
        return self._loaded

    async def _identity(self) -> Mapping[str, Any]:
        if self._source is None:
            self._source = await asyncio.to_thread(source_of, self._model)
        return {"model": self.name, "weights": self._source.state}

    def _answer(
        self,
        pretrained: Pretrained,
        messages: Messages,
        question: Question,
        form: Form,
        tell: OnToken,
        goes_on: GoesOn,
    ) -> Answer:
        tokens = encode(pretrained.tokenizer, messages)
        room = stated_limit(pretrained.model.config, pretrained.tokenizer)
        if not tokens or (room is not None and len(tokens) >= room):
            raise ModelError(
                "invalid_request",
                f"The prompt has {len(tokens)} tokens, and the model {self.name} reads and "
                f"writes {room} together; show less of each document, or fewer at once.",
            )
        if isinstance(form, ChoiceForm):
            return self._weighed(pretrained, tokens, tuple(form.labels))
        defaults, temperature = question.prompt.defaults, question.temperature
        limit = question.reply_tokens
        text, count = written(
            pretrained.model,
            pretrained.tokenizer,
            tokens,
            limit=limit if room is None else min(limit, room - len(tokens)),
            temperature=defaults.temperature if temperature is None else temperature,
            presence_penalty=defaults.presence_penalty or 0.0,
            seed=question.seed or 0,
            tell=tell,
            go_on=goes_on,
        )
        usage = Usage(model_calls=1, prompt_tokens=len(tokens), completion_tokens=count)
        return Answer(text, False, usage)

    def _weighed(
        self, pretrained: Pretrained, tokens: list[int], labels: tuple[str, ...]
    ) -> Answer:
        if labels not in self._readings:
            self._readings[labels] = readings(pretrained.tokenizer, labels)
        known = self._readings[labels]
        read = {text.strip().casefold() for _, text in known}
        if lacking := [label for label in labels if label.strip().casefold() not in read]:
            raise ModelError(
                "unsupported",
                f"The model {self.name} has no token that reads '{lacking[0]}'; ask for a text.",
            )
        shares = first_probabilities(pretrained.model, tokens, [token for token, _ in known])
        usage = Usage(model_calls=1, prompt_tokens=len(tokens))
        texts = [text for _, text in known]
        return Answer("", False, usage, list(zip(texts, shares, strict=True)))
