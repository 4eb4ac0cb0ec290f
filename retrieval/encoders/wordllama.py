"""The embedded encoder: the mean of WordLlama's word vectors, in process, without a network.

The vectors (256 dimensions, 32,000 word pieces) come with the package ``wordllama``, which the
extra ``dense`` installs. A text's vector does not depend on the other texts in a batch.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.retrieval.encoders.encoder import EmbeddedEncoder, Float32Array

__all__ = ["WordllamaEncoder"]

TEXTS_AT_ONCE = 256

_loading = threading.Lock()


class WordllamaEncoder(EmbeddedEncoder):
    """Makes vectors of 256 dimensions, ignoring the order of words.

    The model is loaded once in a process, on first use, in about a third of a second.
    """

    name = "wordllama"

    def _encode(self, texts: Sequence[str]) -> Float32Array:
        tokenizer, weights = _model()
        rows = np.zeros((len(texts), weights.shape[1]), dtype=np.float32)
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = list(texts[start : start + TEXTS_AT_ONCE])
            encoded = tokenizer.encode_batch_fast(some, add_special_tokens=False)
            for row, tokens in enumerate(encoded, start):
                # Count distinct pieces, so no text needs more memory than the weights.
                pieces, counts = np.unique(
                    np.asarray(tokens.ids, dtype=np.int64), return_counts=True
                )
                if len(pieces):
                    rows[row] = (counts / counts.sum()).astype(np.float32) @ weights[pieces]
        return rows


def _model() -> tuple[Any, Float32Array]:
    with _loading:
        return _load()


@functools.cache
def _load() -> tuple[Any, Float32Array]:
    """Return the tokenizer, and the vector of each of its tokens."""
    try:
        with _logging_untouched():
            import wordllama

            model = wordllama.WordLlama.load(
                cache_dir=Path(wordllama.__file__).parent, disable_download=True
            )
    except ImportError:
        raise ModelUnavailableError(
            "The encoder 'wordllama' is not installed; run "
            "pip install 'fairqr[dense]', or choose another retriever."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelUnavailableError(
            f"The encoder 'wordllama' cannot be loaded ({one_line(error)}); run "
            "pip install --force-reinstall 'fairqr[dense]'."
        ) from None
    # It pads every text to the longest in its batch, which only costs memory here.
    model.tokenizer.no_padding()
    return model.tokenizer, model.embedding


@contextmanager
def _logging_untouched() -> Iterator[None]:
    """Undo the package's change to the root logger: importing it configures the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
