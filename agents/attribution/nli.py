"""Attribution by natural language inference: does the document, the premise, entail the answer?

What runs the model is another module's matter; here stand the labels, the windows of a long
document, the batches, and the verdict. The rule is that of "Towards Fair RAG" (2409.11598, eq. 8):
a document counts as used if entailment is the model's top label.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairqr.agents.attribution.base import Pair, Verdict
from fairqr.agents.attribution.labels import entailment_index
from fairqr.agents.attribution.naming import AttributorName
from fairqr.agents.attribution.nothing import without_words
from fairqr.agents.attribution.windows import Window, batches, padded, windows_of
from fairqr.base.errors import ModelUnavailableError, one_line

__all__ = ["FloatArray", "IntArray", "NliAttributor", "NliModel", "Run"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

T = TypeVar("T")

CUT_AT_ONCE = 256
"""How many documents are cut before others may use the tokenizer."""


class Run(Protocol):
    """Does work on a thread of its own, one at a time."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Return what the work returns."""
        ...


@dataclass(frozen=True, slots=True)
class NliModel:
    """A model that is loaded.

    Attributes:
        tokenizer: Of transformers, a fast one.
        labels: The names of the outputs, as the model's configuration has them in ``id2label``.
        longest: How many tokens it takes at once, special ones included.
        logits: Takes padded arrays of shape (batch, tokens) by the names of the tokenizer's
            outputs, and returns the logits, shape (batch, labels).
        run: Where the tokenizer and ``logits`` are called: neither can be shared by threads.
        fingerprint: Tells these weights from others of the same name; empty where unknown.
    """

    tokenizer: Any
    labels: Mapping[int, str]
    longest: int
    logits: Callable[[Mapping[str, IntArray]], FloatArray]
    run: Run
    fingerprint: str


class NliAttributor(ABC):
    """Judges by a classifier of sentence pairs.

    A document that does not fit is read in windows that overlap; the score is the greatest of all
    windows, and the document counts as used if it does by any window. Scores may differ in the
    seventh digit with what else is in the batch.

    Args:
        name: The model and the options: a threshold of the probability of entailment instead of the
            top label, and which output is entailment.
    """

    def __init__(self, name: AttributorName) -> None:
        self._name = name
        self._loaded: tuple[NliModel, int] | None = None

    @property
    def name(self) -> str:
        """The kind, the model, and the options."""
        return str(self._name)

    @property
    def identity(self) -> str:
        """What a verdict depends on, the weights included; known once it is started."""
        if self._loaded is None:
            raise RuntimeError("start() comes first")
        model, entailment = self._loaded
        return f"{self.name} weights={model.fingerprint} output={entailment} at={model.longest}"

    @abstractmethod
    async def load(self, model: str) -> NliModel:
        """Load the model; raises ModelUnavailableError where that cannot be."""

    async def start(self) -> None:
        """Load the model.

        Raises:
            ModelUnavailableError: It cannot be loaded, or does not say which output is entailment.
        """
        if self._loaded is None:
            model = await self.load(self._name.model)
            if not model.tokenizer.is_fast:
                raise ModelUnavailableError(
                    f"The tokenizer of {self.name} exists in slow form only, which cannot cut "
                    "documents into windows; choose a model with a tokenizer.json."
                )
            index = entailment_index(model.labels, str(self._name), self._name.entailment)
            self._loaded = model, index

    async def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Judge all windows of all pairs, those of like length together."""
        await self.start()
        assert self._loaded is not None  # noqa: S101 - for the type checker
        model, entailment = self._loaded
        found = {n: empty for n, pair in enumerate(pairs) if (empty := without_words(pair))}
        windows: list[Window] = []
        asked = [number for number in range(len(pairs)) if number not in found]
        for begin in range(0, len(asked), CUT_AT_ONCE):
            some = asked[begin : begin + CUT_AT_ONCE]
            for number, cut in zip(
                some, await model.run(partial(_cut, model, pairs, some)), strict=True
            ):
                if isinstance(cut, Verdict):
                    found[number] = cut
                else:
                    windows += cut
        outcomes: dict[int, list[FloatArray]] = {}
        for batch in batches(windows, one_by_one=model.tokenizer.pad_token_id is None):
            for window, row in zip(batch, await _logits(model, batch), strict=True):
                if isinstance(row, Exception):
                    message = f"The model of {self.name} failed: {one_line(row, 200)}."
                    found[window.pair] = Verdict("unavailable", message=message)
                else:
                    outcomes.setdefault(window.pair, []).append(row)
        for number, rows_of_pair in outcomes.items():
            if number not in found:
                logits = np.stack(rows_of_pair)
                if logits.shape[1:] != (len(model.labels),):
                    message = f"The model of {self.name} has more outputs than labels, or fewer."
                    found[number] = Verdict("parse_error", message=message)
                else:
                    found[number] = self._verdict(logits, entailment)
        return [found[number] for number in range(len(pairs))]

    def _verdict(self, logits: FloatArray, entailment: int) -> Verdict:
        """Return the verdict on a pair from the logits of its windows, shape (windows, labels)."""
        if not np.isfinite(logits).all():
            message = f"The model of {self.name} gave no finite numbers."
            return Verdict("parse_error", message=message)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        score = float(probabilities[:, entailment].max())
        if self._name.threshold is not None:
            return Verdict("ok", score >= self._name.threshold, score)
        others = np.delete(logits, entailment, axis=1).max(axis=1)
        return Verdict("ok", bool((logits[:, entailment] > others).any()), score)


async def _logits(model: NliModel, batch: Sequence[Window]) -> list[FloatArray | Exception]:
    """Return the logits of each window, or why there are none."""
    inputs = padded(batch, model.tokenizer.pad_token_id or 0)
    try:
        return list(await model.run(partial(model.logits, inputs)))
    except Exception as error:  # out of memory, or a token that the model does not have
        if len(batch) == 1:
            return [error]
    return [row for window in batch for row in await _logits(model, [window])]


def _cut(
    model: NliModel, pairs: Sequence[Pair], numbers: Sequence[int]
) -> list[list[Window] | Verdict]:
    return [windows_of(n, pairs[n], model.tokenizer, model.longest) for n in numbers]
