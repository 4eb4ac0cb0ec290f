"""Encoder-decoder models of transformers, such as Flan-T5 and Flan-UL2.

As in "Towards Fair RAG" (arXiv 2409.11598), we use beam search with four beams and no sampling, so
the same ranking always gives the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.in_process import GoesOn, InProcessModel
from fairqr.agents.models.question import Answer, Form, Messages, OnToken, Question
from fairqr.agents.models.replies import TextReply, Usage
from fairqr.base.neural import Pretrained, load_pretrained, state_of
from fairqr.prompts.budget import Budget
from fairqr.prompts.template import PromptTemplate

BEAMS = 4

INPUT_TOKENS = 512
"""How much such a model reads, as in the paper."""


class Seq2SeqModel(InProcessModel):
    """Writes texts with an encoder-decoder model, one at a time.

    The messages of a prompt are joined to one text. The temperature and the seed of a question are
    ignored. A text is passed on at its end: with several beams, no word is certain before.

    Args:
        name: A hub id, such as ``google/flan-t5-small``, or a folder.
        cache: Where to keep replies; optional.
        new_tokens: The longest answer in tokens, 128 as in the paper. The prompt's own limit is for
            chat models.
    """

    operation = "text_completion"
    gives_probabilities = False

    def __init__(
        self, name: str, *, cache: ReplyCache | None = None, new_tokens: int = 128
    ) -> None:
        super().__init__(f"seq2seq:{name}", cache)
        self._model = name
        self._new_tokens = new_tokens
        self._loaded: Pretrained | None = None

    async def pretrained(self) -> Pretrained:
        """Return the model and its tokenizer, loaded on first use."""
        if self._loaded is None:
            self._loaded = await load_pretrained("AutoModelForSeq2SeqLM", self._model)
        return self._loaded

    def temperature_of(self, asked: float | None) -> None:
        """Return None, since this model does not sample."""

    async def budget(self, prompt: PromptTemplate, room: int, question: int) -> Budget:
        """Return the room of a prompt, in tokens of the model's own tokenizer."""
        loaded = await self.pretrained()

        def count(text: str) -> int:
            return len(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])

        def size(messages: Sequence[Mapping[str, str]]) -> int:
            return len(loaded.tokenizer(_joined(messages))["input_ids"])

        # Models with relative positions, such as T5, have no limit of their own.
        own = getattr(loaded.model.config, "max_position_embeddings", None)
        return Budget(min(room, own) if isinstance(own, int) else room, question, count, size)

    async def write(
        self, question: Question, deadline: float | None = None, on_token: OnToken | None = None
    ) -> TextReply:
        """Ask for a text; see :meth:`LanguageModel.write`."""
        settled = replace(question, temperature=None, seed=None, max_tokens=self._new_tokens)
        return await super().write(settled, deadline, on_token)

    async def _identity(self) -> Mapping[str, Any]:
        weights = await asyncio.to_thread(state_of, Path(self._model))
        return {"model": self.name, "weights": weights, "beams": BEAMS}

    def _messages(self, question: Question) -> Messages:
        return [{"role": "user", "content": _joined(question.prompt.render(question.values))}]

    def _answer(
        self,
        pretrained: Pretrained,
        messages: Messages,
        question: Question,
        form: Form,
        tell: OnToken,
        goes_on: GoesOn,
    ) -> Answer:
        import torch

        def ended(rows: Any, scores: Any) -> Any:
            return torch.full((len(rows),), not goes_on(), device=rows.device)

        tokenizer = pretrained.tokenizer
        inputs = tokenizer(messages[0]["content"], return_tensors="pt").to(pretrained.device)
        output = pretrained.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            num_beams=BEAMS,
            do_sample=False,
            max_new_tokens=question.reply_tokens,
            stopping_criteria=[ended],
        )[0]
        # The decoder's start token and padding are not written.
        written = int((output[1:] != tokenizer.pad_token_id).sum())
        usage = Usage(1, 0, int(inputs["input_ids"].shape[1]), written)
        return Answer(tokenizer.decode(output, skip_special_tokens=True), False, usage)


def _joined(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(message["content"].strip() for message in messages)
