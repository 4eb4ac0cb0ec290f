"""Decoder-only models of transformers in this process, which rank like any chat model.

This module does the work of a server: the chat template, the pass of the model, and the
probabilities of the first token. Questions are answered one at a time, since the rounding in a
batch would depend on its other questions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.in_process import GoesOn, InProcessModel
from fairqr.agents.models.question import Answer, ChoiceForm, Form, Messages, OnToken, Question
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.causal_weights import source_of
from fairqr.base.errors import ModelError
from fairqr.base.neural import Pretrained, load_causal, stated_limit

WITHOUT_TEMPLATE = (
    "{{ begin }}{% for message in messages %}{{ message.role | capitalize }}: "
    "{{ message.content }}\n\n{% endfor %}Assistant:"
)
"""The chat template of models that have none: each message is a paragraph that names its role."""

_drawing = threading.Lock()
"""Held while a reply is drawn: torch has one generator, which the seed of a question sets."""


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
        self._source: tuple[str, str, str] | None = None
        self._loaded: Pretrained | None = None
        self._readings: dict[tuple[str, ...], dict[int, str]] = {}

    @property
    def context_tokens(self) -> int | None:
        """How many tokens it reads and writes together; None before loading, or without a limit."""
        if (loaded := self._loaded) is None:
            return None
        return stated_limit(loaded.model.config, loaded.tokenizer)

    async def pretrained(self) -> Pretrained:
        """Return the model and its tokenizer, loaded on first use."""
        if self._loaded is None:
            base, adapter, _ = await self._files()
            self._loaded = await load_causal(base, adapter)
        return self._loaded

    async def _files(self) -> tuple[str, str, str]:
        if self._source is None:
            self._source = await asyncio.to_thread(source_of, self._model)
        return self._source

    async def _identity(self) -> Mapping[str, Any]:
        return {"model": self.name, "weights": (await self._files())[2]}

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
        if room is not None and len(tokens) >= room:
            raise ModelError(
                "invalid_request",
                f"The prompt has {len(tokens)} tokens, and the model {self.name} reads and "
                f"writes {room} together; show less of each document, or fewer at once.",
            )
        limit = 1 if isinstance(form, ChoiceForm) else question.reply_tokens
        limit = limit if room is None else min(limit, room - len(tokens))
        output = _generated(pretrained, tokens, limit, question, goes_on)
        if isinstance(form, ChoiceForm):
            known = self._read_as(pretrained.tokenizer, tuple(form.labels))
            shares = output.logits[0][0].double().softmax(-1)
            first_tokens = [(text, float(shares[token])) for token, text in known.items()]
            return Answer("", False, Usage(1, prompt_tokens=len(tokens)), first_tokens)
        written = output.sequences[0, len(tokens) :]
        text = pretrained.tokenizer.decode(written, skip_special_tokens=True)
        usage = Usage(1, prompt_tokens=len(tokens), completion_tokens=len(written))
        return Answer(text, False, usage)

    def _read_as(self, tokenizer: Any, labels: tuple[str, ...]) -> dict[int, str]:
        """Return the tokens that read as a label, also after a space or in another case."""
        if labels not in self._readings:
            words = {label.strip().casefold() for label in labels}
            texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
            known = {at: text for at, text in enumerate(texts) if text.strip().casefold() in words}
            self._readings[labels] = known
        return self._readings[labels]


def _generated(
    pretrained: Pretrained, tokens: list[int], limit: int, question: Question, goes_on: GoesOn
) -> Any:
    """Return what transformers generates after some tokens: ``sequences``, and ``logits`` by step.

    The sampling settings in the model's own files are ignored.
    """
    import torch

    def ended(rows: Any, scores: Any) -> Any:
        return torch.full((len(rows),), not goes_on(), device=rows.device)

    model, tokenizer = pretrained.model, pretrained.tokenizer
    own = model.generation_config.eos_token_id
    ends = {*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id} - {None}
    given = torch.tensor([tokens], device=pretrained.device)
    temperature = question.used_temperature
    drawn = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    with _drawing, torch.random.fork_rng():
        torch.manual_seed(question.seed or 0)
        return model.generate(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=limit,
            do_sample=temperature > 0,
            **drawn,
            repetition_penalty=1.0,
            eos_token_id=sorted(ends) or None,
            pad_token_id=tokenizer.eos_token_id,
            stopping_criteria=[ended],
            output_logits=limit == 1,
            return_dict_in_generate=True,
        )


def encode(tokenizer: Any, messages: Messages) -> list[int]:
    """Return the tokens that a model continues with its reply, special ones included.

    They follow the tokenizer's chat template, or :data:`WITHOUT_TEMPLATE`. If the template refuses
    the role ``system``, those messages go to the beginning of the first other message.

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
    # Only what the tokenizer itself puts before a text stands there without a template.
    before = tokenizer("")["input_ids"][:1]
    tokens: list[int] = tokenizer.apply_chat_template(
        messages,
        chat_template=tokenizer.chat_template or WITHOUT_TEMPLATE,
        begin=tokenizer.bos_token if before == [tokenizer.bos_token_id] else "",
        add_generation_prompt=True,
        # If a model thought aloud first, we would weigh its thoughts instead of its reply.
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
