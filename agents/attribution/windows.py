"""Cutting long documents into windows that a model can read, and making batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairqr.agents.attribution.base import Pair, Verdict

__all__ = ["LEAST_ROOM", "OVERLAP", "Window", "batches", "padded", "windows_of"]

OVERLAP = 128
"""How many tokens of a document neighbouring windows share, so that no sentence is only seen cut;
at most half of a window."""

LEAST_ROOM = 16
"""How many tokens of a longer document must fit beside the answer."""

BATCH = 16
"""How many windows are read at once."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a document together with the whole answer, as tokens.

    Attributes:
        pair: The number of the pair that it belongs to.
        inputs: By the name of each of the tokenizer's outputs the numbers, special tokens included.
    """

    pair: int
    inputs: Mapping[str, Sequence[int]]

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])


def windows_of(number: int, pair: Pair, tokenizer: Any, longest: int) -> list[Window] | Verdict:
    """Return the windows of a pair: one where the document fits, else several that overlap.

    Args:
        number: Of the pair.
        pair: Both with words.
        tokenizer: A fast one of transformers.
        longest: How many tokens the model takes.

    Returns:
        ``answer_too_long`` where the answer leaves too little room for the document.
    """
    plain = {"add_special_tokens": False, "truncation": False, "verbose": False}
    answer = len(tokenizer(pair.hypothesis, **plain)["input_ids"])
    document = len(tokenizer(pair.premise, **plain)["input_ids"])
    room = longest - answer - tokenizer.num_special_tokens_to_add(pair=True)
    if room < min(document, LEAST_ROOM):
        return Verdict(
            "answer_too_long",
            message=f"The answer has {answer} tokens, and the model takes {longest} in all.",
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
    """Yield all windows in batches of like length, so that little is padded.

    Args:
        windows: Of many pairs.
        one_by_one: For models that cannot tell padding from text.
    """
    ordered = sorted(windows, key=len)
    size = 1 if one_by_one else BATCH
    for begin in range(0, len(ordered), size):
        yield ordered[begin : begin + size]


def padded(batch: Sequence[Window], pad: int) -> dict[str, NDArray[np.int64]]:
    """Return the inputs as arrays of shape (batch, tokens), filled up on the right.

    Args:
        batch: At least one window.
        pad: The number of the padding token; all else is filled with 0.
    """
    width = max(map(len, batch))
    arrays: dict[str, NDArray[np.int64]] = {}
    for name in batch[0].inputs:
        array = np.full((len(batch), width), pad if name == "input_ids" else 0, dtype=np.int64)
        for row, window in zip(array, batch, strict=True):
            row[: len(window)] = window.inputs[name]
        arrays[name] = array
    if "attention_mask" not in arrays:
        lengths = np.asarray([len(window) for window in batch])
        arrays["attention_mask"] = (np.arange(width) < lengths[:, None]).astype(np.int64)
    return arrays
