"""Attribution by natural language inference: does the document (the premise) entail the answer?

The rule comes from "Towards Fair RAG" (2409.11598, eq. 8): a document counts as used if entailment
is the model's top label.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairqr.agents.attribution.naming import AttributorName
from fairqr.agents.attribution.verdicts import Pair, Verdict, without_words
from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.files import sha256_of
from fairqr.base.neural import Pretrained, load_pretrained, token_limit

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

DEFAULT_NLI_MODEL = "FacebookAI/roberta-large-mnli"
"""The model of the paper."""

CUT_AT_ONCE = 256
"""How many documents are cut at once before other calls may use the tokenizer."""

OVERLAP = 128
"""How many tokens neighbouring windows share, so that each sentence is whole in some window; at
most half of a window."""

LEAST_ROOM = 16
"""How many tokens of a longer document must fit beside the answer."""

BATCH = 16
"""How many windows are in a batch."""

_ENTAILMENT = frozenset({"entailment", "entailed", "entails", "entail"})
_PARTS = (".safetensors", ".bin", ".json", ".txt", ".model")


@dataclass(frozen=True, slots=True)
class NliModel:
    """A loaded model.

    Attributes:
        loaded: The model, and its fast tokenizer.
        longest: How many tokens the model accepts, special tokens included.
        entailment: The index of its output for entailment.
        fingerprint: Distinguishes these weights from others of the same name; empty if unknown.
    """

    loaded: Pretrained
    longest: int
    entailment: int
    fingerprint: str


class TransformersAttributor:
    """Judges with any model that transformers loads as a sequence classifier, in float32.

    A long document is read in overlapping windows. Its score is the greatest of all windows, and it
    counts as used if any window does. Scores may differ in the seventh digit with the other windows
    of a batch.

    Args:
        name: The model, a folder or a hub id, by default the paper's; and its options: a threshold
            for the probability of entailment instead of the top label, and the number of the output
            for entailment.
    """

    def __init__(self, name: AttributorName) -> None:
        model = name.model or DEFAULT_NLI_MODEL
        self._name = AttributorName("transformers", model, name.threshold, name.entailment)
        self._model: NliModel | None = None

    @property
    def name(self) -> str:
        """The kind, the model, and the options."""
        return str(self._name)

    @property
    def identity(self) -> str:
        """Everything that a verdict depends on, the weights included; only known after start."""
        model = self._model
        if model is None:
            raise RuntimeError("Call start() first.")
        return (
            f"{self.name} weights={model.fingerprint} output={model.entailment} at={model.longest}"
        )

    async def start(self) -> None:
        """Load the model.

        Raises:
            ModelUnavailableError: It cannot be loaded, or does not say which output is entailment.
        """
        if self._model is not None:
            return
        loaded = await load_pretrained("AutoModelForSequenceClassification", self._name.model)
        if not loaded.tokenizer.is_fast:
            raise ModelUnavailableError(
                f"The model of {self.name} only has a slow tokenizer, which cannot cut "
                "documents into windows; choose a model with a tokenizer.json."
            )
        config, folder = loaded.model.config, Path(self._name.model)
        entailment = entailment_index(config.id2label, str(self._name), self._name.entailment)
        if await asyncio.to_thread(folder.is_dir):
            fingerprint = await asyncio.to_thread(fingerprint_of, folder)
        else:
            fingerprint = getattr(config, "_commit_hash", None) or ""
        longest = token_limit(config, loaded.tokenizer)
        self._model = NliModel(loaded, longest, entailment, fingerprint)

    async def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Judge all windows of all pairs; windows of similar length share a batch."""
        await self.start()
        model = self._model
        assert model is not None  # noqa: S101 - for the type checker
        loaded = model.loaded
        found = {n: empty for n, pair in enumerate(pairs) if (empty := without_words(pair))}
        windows: list[Window] = []
        asked = [number for number in range(len(pairs)) if number not in found]
        for begin in range(0, len(asked), CUT_AT_ONCE):
            some = asked[begin : begin + CUT_AT_ONCE]
            for number, cut in zip(
                some, await loaded.run(partial(_cut, model, pairs, some)), strict=True
            ):
                if isinstance(cut, Verdict):
                    found[number] = cut
                else:
                    windows += cut
        outcomes: dict[int, list[FloatArray]] = {}
        for batch in batches(windows, one_by_one=loaded.tokenizer.pad_token_id is None):
            for window, row in zip(batch, await _logits(loaded, batch), strict=True):
                if isinstance(row, Exception):
                    message = f"The model of {self.name} failed: {one_line(row, 200)}."
                    found[window.pair] = Verdict("unavailable", message=message)
                else:
                    outcomes.setdefault(window.pair, []).append(row)
        for number, rows_of_pair in outcomes.items():
            if number not in found:
                logits = np.stack(rows_of_pair)
                if logits.shape[1:] != (len(loaded.model.config.id2label),):
                    message = f"The model of {self.name} has more or fewer outputs than labels."
                    found[number] = Verdict("parse_error", message=message)
                else:
                    found[number] = self._verdict(logits, model.entailment)
        return [found[number] for number in range(len(pairs))]

    def _verdict(self, logits: FloatArray, entailment: int) -> Verdict:
        """Return the verdict on a pair from the logits of its windows, shape (windows, labels)."""
        if not np.isfinite(logits).all():
            message = f"The model of {self.name} gave numbers that are not finite."
            return Verdict("parse_error", message=message)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        score = float(probabilities[:, entailment].max())
        if self._name.threshold is not None:
            return Verdict("ok", score >= self._name.threshold, score)
        others = np.delete(logits, entailment, axis=1).max(axis=1)
        return Verdict("ok", bool((logits[:, entailment] > others).any()), score)


async def _logits(loaded: Pretrained, batch: Sequence[Window]) -> list[FloatArray | Exception]:
    """Return the logits of each window, or the error that prevented them."""
    inputs = padded(batch, loaded.tokenizer.pad_token_id or 0)
    try:
        return list(await loaded.run(partial(_forward, loaded, inputs)))
    except Exception as error:  # out of memory, or a token that the model does not know
        if len(batch) == 1:
            return [error]
    return [row for window in batch for row in await _logits(loaded, [window])]


def _forward(loaded: Pretrained, inputs: Mapping[str, IntArray]) -> FloatArray:
    import torch

    # Some models are stored in half precision, which would change close verdicts.
    model = loaded.model.float()
    tensors = {name: torch.from_numpy(array).to(loaded.device) for name, array in inputs.items()}
    return np.asarray(model(**tensors).logits.cpu().numpy(), dtype=np.float64)


def _cut(
    model: NliModel, pairs: Sequence[Pair], numbers: Sequence[int]
) -> list[list[Window] | Verdict]:
    return [windows_of(n, pairs[n], model.loaded.tokenizer, model.longest) for n in numbers]


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a document together with the whole answer, as tokens.

    Attributes:
        pair: The number of the pair that it belongs to.
        inputs: The numbers by the names of the tokenizer's outputs, special tokens included.
    """

    pair: int
    inputs: Mapping[str, Sequence[int]]

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])


def windows_of(number: int, pair: Pair, tokenizer: Any, longest: int) -> list[Window] | Verdict:
    """Return the windows of a pair: one if the document fits, or else several that overlap.

    Args:
        number: The number of the pair.
        pair: A pair in which both texts have words.
        tokenizer: A fast tokenizer of transformers.
        longest: How many tokens the model accepts.

    Returns:
        The windows, or the verdict ``answer_too_long`` if the answer leaves too little room for the
        document.
    """
    plain = {"add_special_tokens": False, "truncation": False, "verbose": False}
    answer = len(tokenizer(pair.hypothesis, **plain)["input_ids"])
    document = len(tokenizer(pair.premise, **plain)["input_ids"])
    room = longest - answer - tokenizer.num_special_tokens_to_add(pair=True)
    if room < min(document, LEAST_ROOM):
        return Verdict(
            "answer_too_long",
            message=f"The answer has {answer} tokens, but the model only accepts {longest} in all.",
        )
    cut = tokenizer(
        pair.premise,
        pair.hypothesis,
        truncation="only_first",
        max_length=longest,
        stride=min(OVERLAP, room // 2),
        return_overflowing_tokens=True,
        verbose=False,
    )
    names = [name for name in cut if name in tokenizer.model_input_names]
    return [
        Window(number, {name: cut[name][place] for name in names})
        for place in range(len(cut["input_ids"]))
    ]


def batches(windows: Sequence[Window], *, one_by_one: bool = False) -> Iterator[Sequence[Window]]:
    """Yield all windows in batches of similar length, so that there is little padding.

    Args:
        windows: The windows of many pairs.
        one_by_one: One window per batch, for models that cannot distinguish padding from text.
    """
    ordered = sorted(windows, key=len)
    size = 1 if one_by_one else BATCH
    for begin in range(0, len(ordered), size):
        yield ordered[begin : begin + size]


def padded(batch: Sequence[Window], pad: int) -> dict[str, IntArray]:
    """Return the inputs as arrays of shape (batch, tokens), padded on the right.

    Args:
        batch: At least one window.
        pad: The number of the padding token; the other inputs are padded with 0.
    """
    width = max(map(len, batch))
    arrays: dict[str, IntArray] = {}
    for name in batch[0].inputs:
        array = np.full((len(batch), width), pad if name == "input_ids" else 0, dtype=np.int64)
        for row, window in zip(array, batch, strict=True):
            row[: len(window)] = window.inputs[name]
        arrays[name] = array
    if "attention_mask" not in arrays:
        lengths = np.asarray([len(window) for window in batch])
        arrays["attention_mask"] = (np.arange(width) < lengths[:, None]).astype(np.int64)
    return arrays


def entailment_index(labels: Mapping[int, str], name: str, chosen: int | None = None) -> int:
    """Return the index of entailment.

    Models differ in the order of their outputs, so only the names in the model's configuration
    count. In any letter case, exactly one must be ``entailment``, ``entailed``, ``entails`` or
    ``entail``.

    Args:
        labels: The configuration's ``id2label``.
        name: The attributor's name, for the message.
        chosen: The index that the user states; optional.

    Raises:
        ModelUnavailableError: The labels do not say it, the model does not have the chosen output,
            or it has only one output.
    """
    shown = ", ".join(f"{index}={labels[index]}" for index in sorted(labels)[:8]) or "none"
    if len(labels) < 2:
        raise ModelUnavailableError(
            f"The model of {name} is not a classifier of entailment: its labels are {shown}; "
            "choose one with at least two."
        )
    if chosen is not None:
        if chosen not in labels:
            raise ModelUnavailableError(
                f"The model of {name} has no output {chosen}; its labels are {shown}."
            )
        return chosen
    found = [i for i, label in labels.items() if re.sub(r"[\W_]", "", label.lower()) in _ENTAILMENT]
    if len(found) != 1:
        raise ModelUnavailableError(
            f"The model of {name} does not say which output is entailment: its labels are {shown}; "
            f"state it, as in '{name.partition('?')[0]}?entailment=2'."
        )
    return found[0]


def fingerprint_of(folder: Path) -> str:
    """Return a hash of the names and contents of a model's files, with weights and tokenizer."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _PARTS and path.is_file())
    listed = "".join(f"{path.name} {sha256_of(path)}\n" for path in files)
    return hashlib.sha256(listed.encode()).hexdigest()
