"""Answers with encoder-decoder models of transformers, such as Flan-T5 and Flan-UL2.

As in "Towards Fair RAG" (arXiv 2409.11598), we use beam search with four beams and no sampling, so
the same ranking always gives the same answer. Temperature and seed of a request are ignored.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from fairqr.agents.generators import GenerationRequest, OnToken
from fairqr.agents.models.cache import ReplyCache, cache_key
from fairqr.agents.models.forms import TextForm
from fairqr.agents.models.in_process import GoesOn, failure_in_process, run_in_process
from fairqr.agents.models.language_model import ask_once, text_of
from fairqr.agents.models.replies import Reply, TextReply, Usage
from fairqr.agents.models.spans import input_messages, model_span, outcome, output_messages
from fairqr.agents.models.streaming import TokenRelay
from fairqr.base.errors import InputError, ModelError
from fairqr.base.neural import Pretrained, load_pretrained, state_of
from fairqr.prompts.budget import (
    MAX_FIELD_CHARACTERS,
    NO_DOCUMENTS,
    NoRoomError,
    cut,
    render_documents,
    require_room,
)
from fairqr.prompts.template import PromptTemplate, fence

BEAMS = 4
LEAST_TOKENS = 64


class Seq2SeqGenerator:
    """Writes answers with an encoder-decoder model, one at a time.

    The messages of a prompt are joined to one text. The model's own tokenizer counts tokens. The
    documents share fairly what the question leaves of ``input_tokens``.

    Args:
        name: A hub id, such as ``google/flan-t5-small``, or a folder.
        cache: Where to keep answers; optional.
        input_tokens: The longest input in tokens, unless the model's own limit is lower.
        question_tokens: The longest question in tokens.
        new_tokens: The longest answer in tokens, 128 as in the paper. The prompt's own limit is for
            chat models.

    Raises:
        InputError: A number is too small.
    """

    def __init__(
        self,
        name: str,
        *,
        cache: ReplyCache | None = None,
        input_tokens: int = 512,
        question_tokens: int = 256,
        new_tokens: int = 128,
    ) -> None:
        if input_tokens < LEAST_TOKENS or question_tokens < 1 or new_tokens < 1:
            raise InputError(
                f"The input needs at least {LEAST_TOKENS} tokens, the question and the answer at "
                f"least 1, not {input_tokens}, {question_tokens} and {new_tokens}."
            )
        self._model = name
        self._cache = cache
        self._input_tokens = input_tokens
        self._question_tokens = question_tokens
        self._new_tokens = new_tokens
        self._loaded: Pretrained | None = None

    @property
    def name(self) -> str:
        """``seq2seq:`` and the model."""
        return f"seq2seq:{self._model}"

    def temperature_of(self, asked: float | None) -> None:
        """Return None, since this generator does not sample."""

    async def start(self) -> None:
        """Load the model.

        Raises:
            ModelUnavailableError: The extra ``neural`` is missing, or there is no such model.
        """
        await self._pretrained()

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        """Answer; see :meth:`fairqr.agents.generators.Generator.generate`.

        ``on_token`` gets the whole answer: with several beams, no word is certain before the end.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
            PromptError: A source lacks a field of the prompt's item.
            InputError: The prompt's own words leave no room for the question.
        """
        relay = TokenRelay(on_token) if on_token else None
        reply = await ask_once(
            self.name,
            self._cache,
            lambda: asyncio.to_thread(self._key, request),
            TextForm(),
            lambda left: self._ask(request, left),
            deadline,
        )
        return text_of(reply, self.name, relay)

    async def _pretrained(self) -> Pretrained:
        if self._loaded is None:
            self._loaded = await load_pretrained("AutoModelForSeq2SeqLM", self._model)
        return self._loaded

    def _key(self, request: GenerationRequest) -> str:
        return cache_key(
            model=self.name,
            weights=state_of(Path(self._model)),
            prompt=request.prompt.sha256,
            question=request.question,
            sources=[dict(source) for source in request.sources],
            limits=[self._input_tokens, self._question_tokens, self._new_tokens, BEAMS],
        )

    async def _ask(self, request: GenerationRequest, deadline: float | None) -> tuple[Reply, float]:
        began, milliseconds = time.monotonic(), 0.0
        with model_span(
            "text_completion", "transformers", self._model, request.prompt, kind="internal"
        ) as step:
            pretrained = await self._pretrained()
            left = None if deadline is None else deadline - (time.monotonic() - began)
            try:
                (text, reply), milliseconds = await run_in_process(
                    self.name,
                    pretrained,
                    lambda goes_on: self._write(pretrained, request, goes_on),
                    left,
                )
                asked = input_messages([{"role": "user", "content": text}])
                step.content("gen_ai.input.messages", asked)
                step.content("gen_ai.output.messages", output_messages(reply.value["text"]))
            except ModelError as error:
                reply = failure_in_process(error)
            outcome(step, reply.status, reply.usage)
        return reply, milliseconds

    def _write(
        self, pretrained: Pretrained, request: GenerationRequest, goes_on: GoesOn
    ) -> tuple[str, Reply]:
        """Return the input and the answer; runs on the model's thread."""
        import torch

        def ended(rows: Any, scores: Any) -> Any:
            return torch.full((len(rows),), not goes_on(), device=rows.device)

        limit = self._limit(pretrained)
        try:
            text = self._text(pretrained, request, limit)
        except NoRoomError as error:
            raise ModelError("invalid_request", str(error)) from None
        inputs = pretrained.tokenizer(
            text, truncation=True, max_length=limit, return_tensors="pt"
        ).to(pretrained.device)
        output = pretrained.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            num_beams=BEAMS,
            do_sample=False,
            max_new_tokens=self._new_tokens,
            stopping_criteria=[ended],
        )[0]
        answer = pretrained.tokenizer.decode(output, skip_special_tokens=True).strip()
        usage = Usage(
            model_calls=1,
            prompt_tokens=int(inputs["input_ids"].shape[1]),
            completion_tokens=_written(output, pretrained.tokenizer.pad_token_id),
        )
        return text, Reply("ok", {"text": answer}, usage=usage)

    def _limit(self, pretrained: Pretrained) -> int:
        # Models with relative positions, such as T5, have no limit of their own.
        own = getattr(pretrained.model.config, "max_position_embeddings", None)
        return min(self._input_tokens, own) if isinstance(own, int) else self._input_tokens

    def _text(self, pretrained: Pretrained, request: GenerationRequest, limit: int) -> str:
        """Return the prompt's messages as one text of at most ``limit`` tokens."""

        def count(text: str) -> int:
            return len(pretrained.tokenizer(text, add_special_tokens=False)["input_ids"])

        prompt = request.prompt
        room = limit - len(pretrained.tokenizer("")["input_ids"])
        left = room - count(_joined(prompt, "", NO_DOCUMENTS))
        if left < 1:
            raise InputError(
                f"The prompt {prompt.id}/{prompt.version} alone fills the {limit} tokens that "
                f"{self.name} reads; raise the number of input tokens."
            )
        question = fence(request.question, MAX_FIELD_CHARACTERS)
        question = cut(question, min(self._question_tokens, left), count)
        budget = room - count(_joined(prompt, question, ""))
        require_room(prompt, request.sources, count, budget)
        while True:
            documents = render_documents(prompt, request.sources, count, budget)
            text = _joined(prompt, question, documents)
            # Joined texts may have a few more tokens than the sum of the parts.
            over = count(text) - room
            if over <= 0 or budget <= 0:
                return text
            budget -= over


def _joined(prompt: PromptTemplate, question: str, documents: str) -> str:
    messages = prompt.render({"question": question, "documents": documents})
    return "\n".join(message["content"].strip() for message in messages)


def _written(output: Any, padding: int | None) -> int:
    """Return how many tokens were written, without the decoder's start token and padding."""
    return int((output[1:] != padding).sum()) if padding is not None else len(output) - 1
