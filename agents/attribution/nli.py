"""Attribution by natural language inference: does the document (the premise) entail the answer?

The rule comes from "Towards Fair RAG" (2409.11598, eq. 8): a document counts as used if entailment
is the model's top label.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.agents.attribution.attributor import AttributorName, CachedAttributor, Entailment, Pair
from fairqr.agents.models.cache import ReplyCache
from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.neural import PretrainedModel, load_pretrained, state_of, token_limit
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import chunks

DEFAULT_NLI_MODEL = "FacebookAI/roberta-large-mnli"
"""The model of the paper."""

OVERLAP = 128
"""How many tokens neighbouring windows share, so that each sentence is whole in some window; at
most half of a window."""

LEAST_ROOM = 16
"""How many tokens of a longer document must fit beside the answer."""

BATCH = 16
"""How many windows are in a batch."""

_ENTAILMENT = frozenset({"entailment", "entailed", "entails", "entail"})

Window = dict[str, list[int]]
"""A part of a document together with the whole answer: token numbers by the names of the
tokenizer's outputs, special tokens included."""


def is_installed() -> bool:
    """Return whether the paper's model can judge here without a download."""
    if any(find_spec(module) is None for module in ("torch", "transformers")):
        return False
    hub = importlib.import_module("huggingface_hub")
    return isinstance(hub.try_to_load_from_cache(DEFAULT_NLI_MODEL, "config.json"), str)


class TransformersAttributor(CachedAttributor):
    """Judges with any model that transformers loads as a sequence classifier, in float32.

    A long document is read in overlapping windows. Its score is the greatest of all windows, and it
    counts as used if any window does. Scores may differ in the seventh digit with the other windows
    of a batch.

    Args:
        name: The model, a folder or a hub id, by default the paper's; and a threshold for
            the probability of entailment instead of the top label.
    """

    def __init__(self, name: AttributorName, cache: ReplyCache | None = None) -> None:
        self._parts = name.model_copy(update={"model": name.model or DEFAULT_NLI_MODEL})
        super().__init__(self._parts, cache)
        self._entailment = 0
        self._longest = 0
        self._loaded: PretrainedModel

    async def start(self) -> None:
        """Load the model.

        Raises:
            ModelUnavailableError: It cannot be loaded, or does not say which output is entailment.
        """
        if self.identity:
            return
        loaded = self._loaded = await load_pretrained(
            "AutoModelForSequenceClassification", self._parts.model
        )
        if not loaded.tokenizer.is_fast:
            raise ModelUnavailableError(f"The model of {self.name} has no tokenizer.json.")
        config = loaded.model.config
        self._entailment = entailment_index(config.id2label, self.name)
        self._longest = token_limit(config, loaded.tokenizer)
        weights = state_of(Path(self._parts.model)) or getattr(config, "_commit_hash", None) or ""
        use = f"output={self._entailment} at={self._longest}"
        self.identity = f"{self.name} weights={weights} {use}"

    async def judge_new(self, pairs: Sequence[Pair]) -> list[Entailment]:
        """Judge all windows of all pairs; windows of similar length share a batch."""
        loaded = self._loaded
        failures: dict[int, Entailment] = {}
        windows: list[tuple[int, Window]] = []
        for number, pair in enumerate(pairs):
            parts = await loaded.run(partial(windows_of, pair, loaded.tokenizer, self._longest))
            if isinstance(parts, Entailment):
                failures[number] = parts
            else:
                windows += [(number, window) for window in parts]
        windows.sort(key=lambda numbered: len(numbered[1]["input_ids"]))

        # Without a padding token, a model cannot tell padding from text.
        size = 1 if loaded.tokenizer.pad_token_id is None else BATCH
        rows: dict[int, list[FloatArray]] = {}
        for batch in chunks(windows, size):
            outcomes = await _logits(loaded, [window for _, window in batch])
            for (number, _), outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    message = f"The model of {self.name} failed: {one_line(outcome, 200)}."
                    failures[number] = Entailment("unavailable", message=message)
                else:
                    rows.setdefault(number, []).append(outcome)

        verdicts = []
        for number in range(len(pairs)):
            failure = failures.get(number)
            verdicts.append(failure or self._verdict(np.stack(rows[number])))
        return verdicts

    def _verdict(self, logits: FloatArray) -> Entailment:
        """Return the verdict on a pair from the logits of its windows, shape (windows, labels)."""
        if not np.isfinite(logits).all():
            message = f"The model of {self.name} gave numbers that are not finite."
            return Entailment("parse_error", message=message)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = odds / odds.sum(axis=1, keepdims=True)
        score = float(probabilities[:, self._entailment].max())
        if self._parts.threshold is not None:
            return Entailment("ok", score >= self._parts.threshold, score)
        highest_other = np.delete(logits, self._entailment, axis=1).max(axis=1)
        is_top_label = logits[:, self._entailment] > highest_other
        return Entailment("ok", bool(is_top_label.any()), score)


async def _logits(loaded: PretrainedModel, batch: Sequence[Window]) -> list[FloatArray | Exception]:
    """Return the logits of each window, or the error that prevented them."""
    try:
        return list(await loaded.run(partial(_forward, loaded, batch)))
    except Exception as error:  # out of memory, or a token that the model does not know
        if len(batch) == 1:
            return [error]
    # One after the other, so that only those fail that are to blame.
    rows = []
    for window in batch:
        rows += await _logits(loaded, [window])
    return rows


def _forward(loaded: PretrainedModel, batch: Sequence[Window]) -> FloatArray:
    inputs = {name: [window[name] for window in batch] for name in batch[0]}
    padded = loaded.tokenizer.pad(
        inputs, padding=len(batch) > 1, padding_side="right", return_tensors="pt", verbose=False
    )
    # Some models are stored in half precision, which would change close verdicts.
    logits = loaded.model.float()(**padded.to(loaded.device)).logits
    return np.asarray(logits.cpu().numpy(), dtype=np.float64)


def windows_of(pair: Pair, tokenizer: Any, longest: int) -> list[Window] | Entailment:
    """Return the windows of a pair: one if the document fits, or else several that overlap.

    Args:
        pair: The document and the answer.
        tokenizer: A fast tokenizer of transformers.
        longest: How many tokens the model accepts.

    Returns:
        The windows, or a verdict where the answer leaves too little room for the document.
    """
    answer_tokens = _count_tokens(tokenizer, pair.hypothesis)
    document_tokens = _count_tokens(tokenizer, pair.premise)
    room = longest - answer_tokens - tokenizer.num_special_tokens_to_add(pair=True)
    if room < min(document_tokens, LEAST_ROOM):
        message = (
            f"The answer has {answer_tokens} tokens, but the model only accepts {longest} in all."
        )
        return Entailment("answer_too_long", message=message)
    windows = tokenizer(
        pair.premise,
        pair.hypothesis,
        truncation="only_first",
        max_length=longest,
        stride=min(OVERLAP, room // 2),
        return_overflowing_tokens=True,
        verbose=False,
    )
    names = [name for name in windows if name in tokenizer.model_input_names]
    columns = [windows[name] for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _count_tokens(tokenizer: Any, text: str) -> int:
    """Return the number of a text's tokens, without special ones."""
    encoding = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)
    return len(encoding["input_ids"])


def entailment_index(labels: Mapping[int, str], name: str) -> int:
    """Return the index of entailment.

    Models differ in the order of their outputs, so only the names in the model's configuration
    count. In any letter case, exactly one must be ``entailment``, ``entailed``, ``entails`` or
    ``entail``.

    Args:
        labels: The configuration's ``id2label``.
        name: The attributor's name, for the message.

    Raises:
        ModelUnavailableError: The labels do not say it, or the model has only one output.
    """
    matches = []
    for index, label in labels.items():
        word = re.sub(r"[\W_]", "", label.lower())
        if word in _ENTAILMENT:
            matches.append(index)
    if len(labels) < 2 or len(matches) != 1:
        names = ", ".join(f"{index}={labels[index]}" for index in sorted(labels)[:8]) or "none"
        raise ModelUnavailableError(
            f"The model of {name} does not say which output of several is entailment; name it in "
            f"'id2label' of a copy's config.json. Its labels are {names}."
        )
    return matches[0]
