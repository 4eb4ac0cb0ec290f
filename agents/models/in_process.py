"""Models of transformers, which answer on a thread of this process.

Decoder-only models rank like any chat model: this module does the work of a server, with the chat
template, the pass of the model, and the probabilities of the first token. Encoder-decoder models
such as Flan-T5 write texts. By default questions are answered one at a time, since the rounding in
a batch depends on its other questions; on a graphics card, batches are many times as fast.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from pydantic import BaseModel, Field

from fairqr.agents.models.batches import Batches, Prompt, Waiting
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.causal_weights import source_of
from fairqr.agents.models.language_model import Exchange, LanguageModel, TokenRelay
from fairqr.agents.models.replies import Completion, Messages, OnToken, Question, Reply, Usage
from fairqr.base.errors import FairqrError, ModelError, ModelUnavailableError, one_line
from fairqr.base.loops import PerLoop
from fairqr.base.neural import (
    Placement,
    PretrainedModel,
    load_causal,
    load_pretrained,
    state_of,
    stated_limit,
)
from fairqr.prompts.budget import PromptBudget
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.sources.schema import validated

BEAMS = 4
"""As in "Towards Fair RAG" (arXiv 2409.11598): the same ranking always gives the same answer."""

SEQ2SEQ_INPUT_TOKENS = 512
"""How much an encoder-decoder model reads, as in the paper."""

Padding = Literal["left", "right"]
"""The side on which short prompts of a batch are filled up."""

NEW_TOKENS = 128
"""The longest answer of such a model, as in the paper."""


class WeightOptions(BaseModel, frozen=True, extra="forbid"):
    """What may follow a model's name, such as ``?dtype=bfloat16&device_map=auto&batch=16``.

    Attributes:
        dtype: See :class:`fairqr.base.neural.Placement`.
        device_map: See there.
        batch: How many questions that wait are answered at once.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    device_map: str | None = Field(None, min_length=1)
    batch: int = Field(1, ge=1, le=1024)

    @property
    def placement(self) -> Placement:
        """How the weights are kept."""
        return Placement(self.dtype, self.device_map)


def read_options(name: str) -> tuple[str, WeightOptions]:
    """Return the name of weights without its options, and these.

    Raises:
        ModelUnavailableError: An option does not exist, or has no such value.
    """
    weights, mark, text = name.rpartition("?")
    if not mark or Path(name).exists():
        return name, WeightOptions()
    options = dict(parse_qsl(text, keep_blank_values=True)) or {text: ""}
    subject = f"The model '{one_line(name, 100)}'"
    return weights, validated(WeightOptions, options, subject, ModelUnavailableError)


class InProcessModel(LanguageModel):
    """A model that answers questions in turn, and stops when nobody waits any more.

    Cached replies are only used for the same weights: the key has a hash of the state of the files
    when the model was first asked.

    Args:
        kind: What its name begins with.
        name: Which model, and :class:`WeightOptions` if there are any.
        cache: Where to keep replies; optional.

    Raises:
        ModelUnavailableError: An option is wrong.
    """

    kind = "internal"

    def __init__(self, kind: str, name: str, cache: ReplyCache | None) -> None:
        super().__init__(f"{kind}:{name}", cache)
        self._model, self._options = read_options(name)
        self._loaded: PretrainedModel | None = None
        self._batches = Batches(self._options.batch, self._read, self._answer)
        self._turns = PerLoop[asyncio.Semaphore]()

    async def pretrained(self) -> PretrainedModel:
        """Return the model and its tokenizer, loaded on first use.

        Raises:
            ModelUnavailableError: An extra or the weights are missing, or the model does not exist.
        """
        if self._loaded is None:
            self._loaded = await self._load()
        return self._loaded

    @abstractmethod
    async def _load(self) -> PretrainedModel: ...

    def _messages(self, question: Question) -> Messages:
        """Return what the model reads."""
        return question.prompt.render(question.values)

    @abstractmethod
    def _read(self, pretrained: PretrainedModel, waiting: Waiting) -> Prompt:
        """Return a question as the model reads it; ModelError if it cannot be asked this."""

    @abstractmethod
    def _answer(
        self, pretrained: PretrainedModel, prompts: Sequence[Prompt]
    ) -> Sequence[Completion]:
        """Ask the model; what nobody waits for any more ends soon."""

    def _weights(self, state: str) -> dict[str, str]:
        """Return what a reply depends on: the files, and how their numbers are kept."""
        kind, _, _ = self.name.partition(":")
        placed = self._options.placement.options()
        return {"model": f"{kind}:{self._model}", "weights": state, **placed}

    async def start(self, wanted: str = "object") -> None:
        """Load the model; raises as :meth:`pretrained` does."""
        await self.pretrained()

    def _turn(self) -> AbstractAsyncContextManager[Any]:
        if self._options.batch == 1:
            return super()._turn()
        # One batch is under way while the next one gathers.
        return self._turns.setdefault(asyncio.Semaphore(2 * self._options.batch))

    def temperature_of(self, requested: float | None) -> None:
        """Return None, since these models do not sample."""

    def _attributes(self, question: Question, relay: TokenRelay | None) -> dict[str, Any]:
        return {"gen_ai.provider.name": "transformers"}

    async def _converse(
        self, question: Question, relay: TokenRelay | None, exchange: Exchange
    ) -> Mapping[str, Any]:
        exchange.record("input", self._messages(question))
        pretrained = await self.pretrained()
        try:
            answer = await self._batches.ask(pretrained, question)
        except FairqrError:  # the model was not asked
            raise
        except Exception as error:  # out of memory, or weights that do not fit the tokenizer
            exchange.usage = Usage(model_calls=1)
            message = f"The model {self.name} failed ({one_line(error, 200)})."
            raise ModelError("unavailable", message) from None
        exchange.usage = answer.usage
        reply = [{"role": "assistant", "content": answer.text}]
        exchange.record("output", reply, finish_reason="unknown")
        return question.read(answer)


@dataclass(frozen=True)
class _Batch:
    """Prompts side by side, each padded to the longest.

    Attributes:
        tokens: Shape (n, width).
        is_read: 0 where a prompt is padded, else 1, shape (n, width).
    """

    tokens: Any
    is_read: Any

    @classmethod
    def of(
        cls,
        pretrained: PretrainedModel,
        prompts: Sequence[Prompt],
        *,
        padding: Padding,
    ) -> _Batch:
        """Return prompts side by side; texts that go on behind them are padded on the left."""
        import torch

        width = max(len(prompt.tokens) for prompt in prompts)
        tokens = torch.zeros((len(prompts), width), dtype=torch.long)
        is_read = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            start = width - len(prompt.tokens) if padding == "left" else 0
            read = slice(start, start + len(prompt.tokens))
            tokens[row, read] = torch.tensor(prompt.tokens)
            is_read[row, read] = 1
        return cls(tokens.to(pretrained.device), is_read.to(pretrained.device))


def _generate(
    pretrained: PretrainedModel, prompts: Sequence[Prompt], batch: _Batch, **options: Any
) -> Any:
    """Return what transformers generates after prompts."""
    import torch

    def has_ended(rows: Any, scores: Any) -> Any:
        is_stopped = torch.tensor([prompt.waiting.stopped.is_set() for prompt in prompts])
        # Each prompt has as many rows as there are beams.
        return is_stopped.repeat_interleave(len(rows) // len(prompts)).to(rows.device)

    return pretrained.model.generate(
        input_ids=batch.tokens,
        attention_mask=batch.is_read,
        max_new_tokens=prompts[0].new_tokens,
        do_sample=False,
        stopping_criteria=[has_ended],
        return_dict_in_generate=True,
        **options,
    )


class CausalModel(InProcessModel):
    """A decoder-only model that answers questions.

    Texts are greedy, whatever temperature is asked for. A reply is cut at the end of the context.
    The probability of a label is the sum over all tokens that read as the label, also in another
    case or after a space, in the softmax over the whole vocabulary.

    Args:
        name: A hub id, a folder, the folder of a peft adapter, a GGUF file, or the name of embedded
            weights such as ``smollm2-135m``.
        cache: Where to keep replies; optional.
    """

    gives_probabilities = True
    """The probabilities are over the whole vocabulary."""

    def __init__(self, name: str, *, cache: ReplyCache | None = None) -> None:
        super().__init__("causal", name, cache)
        self._source: tuple[str, str, str] | None = None

    @property
    def context_tokens(self) -> int | None:
        """How many tokens it reads and writes together; None before loading, or without a limit."""
        loaded = self._loaded
        return stated_limit(loaded.model.config, loaded.tokenizer) if loaded else None

    async def _load(self) -> PretrainedModel:
        base, adapter, _ = await self._files()
        return await load_causal(base, adapter, self._options.placement)

    async def _files(self) -> tuple[str, str, str]:
        if self._source is None:
            self._source = await asyncio.to_thread(source_of, self._model)
        return self._source

    async def _identity(self) -> Mapping[str, Any]:
        _, _, state = await self._files()
        return self._weights(state)

    def _read(self, pretrained: PretrainedModel, waiting: Waiting) -> Prompt:
        question = waiting.question
        tokens = encode(pretrained.tokenizer, self._messages(question))
        room = stated_limit(pretrained.model.config, pretrained.tokenizer)
        if room is not None and len(tokens) >= room:
            raise ModelError(
                "invalid_request",
                f"The prompt has {len(tokens)} tokens, and the model {self.name} reads and "
                f"writes {room} together; show less of each document, or fewer at once.",
            )
        is_choice = question.wanted == "choice"
        new_tokens = 1 if is_choice else question.reply_tokens
        if room is not None:
            new_tokens = min(new_tokens, room - len(tokens))
        return Prompt(waiting, tokens, new_tokens, is_choice)

    def _answer(
        self, pretrained: PretrainedModel, prompts: Sequence[Prompt]
    ) -> Sequence[Completion]:
        tokenizer = pretrained.tokenizer
        batch = _Batch.of(pretrained, prompts, padding="left")
        ends = _end_tokens(pretrained)
        is_choice = prompts[0].is_choice
        output = _generate(
            pretrained,
            prompts,
            batch,
            # The settings of sampling in the model's own files are ignored.
            repetition_penalty=1.0,
            eos_token_id=sorted(ends) or None,
            pad_token_id=tokenizer.eos_token_id,
            output_logits=is_choice,
        )
        if is_choice:
            probabilities = output.logits[0].double().softmax(-1)
            return [
                _choice(tokenizer, prompt, row)
                for prompt, row in zip(prompts, probabilities, strict=True)
            ]
        replies = output.sequences[:, batch.tokens.shape[1] :].tolist()
        return [
            _text(tokenizer, prompt, _until(ends, tokens))
            for prompt, tokens in zip(prompts, replies, strict=True)
        ]


def _end_tokens(pretrained: PretrainedModel) -> set[int]:
    """Return the tokens that end a text, by the model's settings and by the tokenizer's."""
    of_model = pretrained.model.generation_config.eos_token_id
    tokens = {*of_model} if isinstance(of_model, list) else {of_model}
    tokens.add(pretrained.tokenizer.eos_token_id)
    return tokens - {None}


def _choice(tokenizer: Any, prompt: Prompt, probabilities: Any) -> Completion:
    """Return the probabilities of the labels, given those of all tokens."""
    label_tokens = _tokens_of_labels(tokenizer, prompt.waiting.question.labels)
    first_tokens = [(text, float(probabilities[token])) for token, text in label_tokens.items()]
    return Completion("", Usage(1, prompt_tokens=len(prompt.tokens)), first_tokens=first_tokens)


def _text(tokenizer: Any, prompt: Prompt, tokens: Sequence[int]) -> Completion:
    """Return the text of the tokens that a model wrote."""
    usage = Usage(1, prompt_tokens=len(prompt.tokens), completion_tokens=len(tokens))
    return Completion(tokenizer.decode(tokens, skip_special_tokens=True), usage)


def _until(ends: set[int], tokens: list[int]) -> list[int]:
    """Return the tokens up to the first that ends a text; what follows it is padding."""
    for position, token in enumerate(tokens):
        if token in ends:
            return tokens[: position + 1]
    return tokens


@lru_cache(maxsize=4)
def _tokens_of_labels(tokenizer: Any, labels: tuple[str, ...]) -> dict[int, str]:
    """Return the tokens that read as a label, also after a space or in another case."""
    words = {label.casefold() for label in labels}
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return {token: text for token, text in enumerate(texts) if text.strip().casefold() in words}


class Seq2SeqModel(InProcessModel):
    """Writes texts with an encoder-decoder model.

    The messages of a prompt are joined to one text. The temperature, the seed and the limit of a
    question are for chat models, and ignored. A text is passed on at its end: with several beams,
    no word is certain before.

    Args:
        name: A hub id, such as ``google/flan-t5-small``, or a folder.
        cache: Where to keep replies; optional.
    """

    operation = "text_completion"
    gives_probabilities = False

    def __init__(self, name: str, *, cache: ReplyCache | None = None) -> None:
        super().__init__("seq2seq", name, cache)

    async def _load(self) -> PretrainedModel:
        return await load_pretrained("AutoModelForSeq2SeqLM", self._model, self._options.placement)

    async def budget(self, prompt: PromptTemplate, room: int, question: int) -> PromptBudget:
        """Return the room of a prompt, in tokens of the model's own tokenizer."""
        loaded = await self.pretrained()

        def count(text: str) -> int:
            return len(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])

        def size(messages: Sequence[Mapping[str, str]]) -> int:
            return len(loaded.tokenizer(_joined(messages))["input_ids"])

        # Models with relative positions, such as T5, have no limit of their own.
        limit = getattr(loaded.model.config, "max_position_embeddings", None)
        if isinstance(limit, int):
            room = min(room, limit)
        return PromptBudget(room, question, count, size)

    async def write(
        self, question: Question, deadline: float | None = None, on_token: OnToken | None = None
    ) -> Reply:
        """Ask for a text; see :meth:`LanguageModel.write`."""
        settled = replace(question, temperature=None, seed=None, max_tokens=NEW_TOKENS)
        return await super().write(settled, deadline, on_token)

    async def _identity(self) -> Mapping[str, Any]:
        weights = await asyncio.to_thread(state_of, Path(self._model))
        return self._weights(weights) | {"beams": BEAMS}

    def _messages(self, question: Question) -> Messages:
        return [{"role": "user", "content": _joined(super()._messages(question))}]

    def _read(self, pretrained: PretrainedModel, waiting: Waiting) -> Prompt:
        (message,) = self._messages(waiting.question)
        tokens = pretrained.tokenizer(message["content"])["input_ids"]
        return Prompt(waiting, tokens, waiting.question.reply_tokens, is_choice=False)

    def _answer(
        self, pretrained: PretrainedModel, prompts: Sequence[Prompt]
    ) -> Sequence[Completion]:
        tokenizer = pretrained.tokenizer
        batch = _Batch.of(pretrained, prompts, padding="right")
        output = _generate(pretrained, prompts, batch, num_beams=BEAMS)
        completions = []
        for prompt, row in zip(prompts, output.sequences.tolist(), strict=True):
            # The decoder's start token and padding are not written.
            tokens = [token for token in row[1:] if token != tokenizer.pad_token_id]
            completions.append(_text(tokenizer, prompt, tokens))
        return completions


def _joined(messages: Sequence[Mapping[str, str]]) -> str:
    """Return messages as one text."""
    return "\n".join(message["content"].strip() for message in messages)


def encode(tokenizer: Any, messages: Messages) -> list[int]:
    """Return the tokens that a model continues with its reply, special ones included.

    They follow the tokenizer's chat template; without one, each message is a paragraph that names
    its role. If the template refuses the role ``system``, those messages go to the beginning of the
    first other message.

    Special tokens inside a message are broken up. Otherwise a document could end the message.
    """
    special = [token for token in tokenizer.all_special_tokens if len(token) > 2]
    clean = [{**message, "content": _plain(message["content"], special)} for message in messages]
    try:
        return _templated(tokenizer, clean)
    except Exception:
        instructions = [message["content"] for message in clean if message["role"] == "system"]
        others = [message for message in clean if message["role"] != "system"]
        if not instructions or not others:
            raise
        others[0]["content"] = "\n\n".join([*instructions, others[0]["content"]])
        return _templated(tokenizer, others)


def _templated(tokenizer: Any, messages: Messages) -> list[int]:
    """Return the tokens of messages by the tokenizer's chat template, or as paragraphs."""
    if not tokenizer.chat_template:
        paragraphs = [
            f"{message['role'].capitalize()}: {message['content']}\n\n" for message in messages
        ]
        ids: list[int] = tokenizer(f"{''.join(paragraphs)}Assistant:")["input_ids"]
        return ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids
    tokens: list[int] = tokenizer.apply_chat_template(
        messages,
        add_generation_prompt=True,
        # If a model thought aloud first, we would score its thoughts instead of its reply.
        enable_thinking=False,
        return_dict=False,
    )
    return tokens


def _plain(text: str, special: Sequence[str]) -> str:
    """Return valid Unicode without special tokens."""
    for token in special:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text.encode("utf-8", "replace").decode()


def label_tokens(tokenizer: Any, labels: Sequence[str]) -> list[int]:
    """Return the token of each label at the beginning of a reply.

    After a chat template, a reply begins without a space; after ``Assistant:``, with one.

    Raises:
        ValueError: A label is not a single token, or is the same token as another one.
    """
    prefix = "" if tokenizer.chat_template else "Assistant:"
    prefix_tokens = _tokens_of(tokenizer, prefix)
    tokens = []
    for label in labels:
        *start, token = _tokens_of(tokenizer, f"{prefix} {label}".strip())
        if start == prefix_tokens:
            tokens.append(token)
    distinct = set(tokens) - {tokenizer.unk_token_id}
    if len(distinct) < len(labels):
        raise ValueError(f"the model has no token of its own for each of {' and '.join(labels)}")
    return tokens


def _tokens_of(tokenizer: Any, text: str) -> list[int]:
    tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens
