"""Models of transformers, which answer on a thread of this process.

Decoder-only models rank like any chat model: this module does the work of a server, with the chat
template, the pass of the model, and the probabilities of the first token. Encoder-decoder models
such as Flan-T5 write texts. Questions are answered one at a time, since the rounding in a batch
would depend on its other questions.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.causal_weights import source_of
from fairqr.agents.models.language_model import Exchange, LanguageModel, TokenRelay
from fairqr.agents.models.replies import Completion, Messages, OnToken, Question, Reply, Usage
from fairqr.base.errors import FairqrError, ModelError, one_line
from fairqr.base.neural import PretrainedModel, load_causal, load_pretrained, state_of, stated_limit
from fairqr.prompts.budget import PromptBudget
from fairqr.prompts.template import PromptTemplate

BEAMS = 4
"""As in "Towards Fair RAG" (arXiv 2409.11598): the same ranking always gives the same answer."""

SEQ2SEQ_INPUT_TOKENS = 512
"""How much an encoder-decoder model reads, as in the paper."""

NEW_TOKENS = 128
"""The longest answer of such a model, as in the paper."""


class InProcessModel(LanguageModel):
    """A model that answers one question at a time, and stops when nobody waits any more.

    Cached replies are only used for the same weights: the key has a hash of the state of the files
    when the model was first asked.

    Args:
        kind: What its name begins with.
        name: Which model.
        cache: Where to keep replies; optional.
    """

    kind = "internal"

    def __init__(self, kind: str, name: str, cache: ReplyCache | None) -> None:
        super().__init__(f"{kind}:{name}", cache)
        self._model = name
        self._loaded: PretrainedModel | None = None

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
    def _answer(
        self, pretrained: PretrainedModel, question: Question, stopped: threading.Event
    ) -> Completion:
        """Ask the model; runs on its thread, and raises ModelError if it cannot be asked this.

        It ends soon after ``stopped`` is set, since nobody waits then.
        """

    async def start(self, wanted: str = "object") -> None:
        """Load the model; raises as :meth:`pretrained` does."""
        await self.pretrained()

    def temperature_of(self, asked: float | None) -> None:
        """Return None, since these models do not sample."""

    def _attributes(self, question: Question, relay: TokenRelay | None) -> dict[str, Any]:
        return {"gen_ai.provider.name": "transformers"}

    async def _converse(
        self, question: Question, relay: TokenRelay | None, exchange: Exchange
    ) -> Mapping[str, Any]:
        stopped = threading.Event()
        exchange.record("input", self._messages(question))
        pretrained = await self.pretrained()
        try:
            answer = await pretrained.run(lambda: self._answer(pretrained, question, stopped))
        except FairqrError:  # the model was not asked
            raise
        except Exception as error:  # out of memory, or weights that do not fit the tokenizer
            exchange.usage = Usage(model_calls=1)
            message = f"The model {self.name} failed ({one_line(error, 200)})."
            raise ModelError("unavailable", message) from None
        finally:
            stopped.set()
        exchange.usage = answer.usage
        said = [{"role": "assistant", "content": answer.text}]
        exchange.record("output", said, finish_reason="unknown")
        return question.read(answer)


def _generate(
    pretrained: PretrainedModel, tokens: Sequence[int], stopped: threading.Event, **options: Any
) -> Any:
    """Return what transformers generates after some tokens."""
    import torch

    def ended(rows: Any, scores: Any) -> Any:
        return torch.full((len(rows),), stopped.is_set(), device=rows.device)

    given = torch.tensor([tokens], device=pretrained.device)
    return pretrained.model.generate(
        input_ids=given,
        attention_mask=torch.ones_like(given),
        stopping_criteria=[ended],
        return_dict_in_generate=True,
        **options,
    )


class CausalModel(InProcessModel):
    """A decoder-only model that answers questions, one at a time.

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
        return await load_causal(base, adapter)

    async def _files(self) -> tuple[str, str, str]:
        if self._source is None:
            self._source = await asyncio.to_thread(source_of, self._model)
        return self._source

    async def _identity(self) -> Mapping[str, Any]:
        return {"model": self.name, "weights": (await self._files())[2]}

    def _answer(
        self, pretrained: PretrainedModel, question: Question, stopped: threading.Event
    ) -> Completion:
        model, tokenizer = pretrained.model, pretrained.tokenizer
        tokens = encode(tokenizer, self._messages(question))
        room = stated_limit(model.config, tokenizer)
        if room is not None and len(tokens) >= room:
            raise ModelError(
                "invalid_request",
                f"The prompt has {len(tokens)} tokens, and the model {self.name} reads and "
                f"writes {room} together; show less of each document, or fewer at once.",
            )
        is_choice = question.wanted == "choice"
        limit = 1 if is_choice else question.reply_tokens
        own = model.generation_config.eos_token_id
        ends = {*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id} - {None}
        output = _generate(
            pretrained,
            tokens,
            stopped,
            max_new_tokens=limit if room is None else min(limit, room - len(tokens)),
            # The settings of sampling in the model's own files are ignored.
            do_sample=False,
            repetition_penalty=1.0,
            eos_token_id=sorted(ends) or None,
            pad_token_id=tokenizer.eos_token_id,
            output_logits=is_choice,
        )
        if is_choice:
            known = _read_as(tokenizer, question.labels)
            shares = output.logits[0][0].double().softmax(-1)
            first_tokens = [(text, float(shares[token])) for token, text in known.items()]
            return Completion("", Usage(1, prompt_tokens=len(tokens)), first_tokens=first_tokens)
        written = output.sequences[0, len(tokens) :]
        usage = Usage(1, prompt_tokens=len(tokens), completion_tokens=len(written))
        return Completion(tokenizer.decode(written, skip_special_tokens=True), usage)


@lru_cache(maxsize=4)
def _read_as(tokenizer: Any, labels: tuple[str, ...]) -> dict[int, str]:
    """Return the tokens that read as a label, also after a space or in another case."""
    words = {label.casefold() for label in labels}
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return {at: text for at, text in enumerate(texts) if text.strip().casefold() in words}


class Seq2SeqModel(InProcessModel):
    """Writes texts with an encoder-decoder model, one at a time.

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
        return await load_pretrained("AutoModelForSeq2SeqLM", self._model)

    async def budget(self, prompt: PromptTemplate, room: int, question: int) -> PromptBudget:
        """Return the room of a prompt, in tokens of the model's own tokenizer."""
        loaded = await self.pretrained()

        def count(text: str) -> int:
            return len(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])

        def size(messages: Sequence[Mapping[str, str]]) -> int:
            return len(loaded.tokenizer(_joined(messages))["input_ids"])

        # Models with relative positions, such as T5, have no limit of their own.
        own = getattr(loaded.model.config, "max_position_embeddings", None)
        return PromptBudget(min(room, own) if isinstance(own, int) else room, question, count, size)

    async def write(
        self, question: Question, deadline: float | None = None, on_token: OnToken | None = None
    ) -> Reply:
        """Ask for a text; see :meth:`LanguageModel.write`."""
        settled = replace(question, temperature=None, seed=None, max_tokens=NEW_TOKENS)
        return await super().write(settled, deadline, on_token)

    async def _identity(self) -> Mapping[str, Any]:
        weights = await asyncio.to_thread(state_of, Path(self._model))
        return {"model": self.name, "weights": weights, "beams": BEAMS}

    def _messages(self, question: Question) -> Messages:
        return [{"role": "user", "content": _joined(super()._messages(question))}]

    def _answer(
        self, pretrained: PretrainedModel, question: Question, stopped: threading.Event
    ) -> Completion:
        tokenizer = pretrained.tokenizer
        tokens = tokenizer(self._messages(question)[0]["content"])["input_ids"]
        limit = question.reply_tokens
        output = _generate(
            pretrained, tokens, stopped, num_beams=BEAMS, do_sample=False, max_new_tokens=limit
        ).sequences[0]
        # The decoder's start token and padding are not written.
        written = int((output[1:] != tokenizer.pad_token_id).sum())
        usage = Usage(1, 0, len(tokens), written)
        return Completion(tokenizer.decode(output, skip_special_tokens=True), usage)


def _joined(messages: Sequence[Mapping[str, str]]) -> str:
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
        said = [message["content"] for message in clean if message["role"] == "system"]
        others = [message for message in clean if message["role"] != "system"]
        if not (said and others):
            raise
        others[0]["content"] = "\n\n".join([*said, others[0]["content"]])
        return _templated(tokenizer, others)


def _templated(tokenizer: Any, messages: Messages) -> list[int]:
    if not tokenizer.chat_template:
        said = "".join(f"{it['role'].capitalize()}: {it['content']}\n\n" for it in messages)
        ids: list[int] = tokenizer(f"{said}Assistant:")["input_ids"]
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
    before = "" if tokenizer.chat_template else "Assistant:"
    texts = [before, *(f"{before} {label}".strip() for label in labels)]
    start, *replies = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    tokens = [reply[-1] for reply in replies if reply[:-1] == start]
    if len({*tokens, tokenizer.unk_token_id} - {tokenizer.unk_token_id}) < len(labels):
        raise ValueError(f"the model has no token of its own for each of {' and '.join(labels)}")
    return tokens
