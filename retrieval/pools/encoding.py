"""Scoring a pool with a model of transformers: a vector for each text, and dot products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fairqr.errors import ModelUnavailableError
from fairqr.neural import Pretrained, load_pretrained
from fairqr.retrieval.exposure import FloatArray

__all__ = ["Pooling", "dot_products", "load_whole", "token_limit"]

Pooling = Callable[[Any, Any], Any]
"""Makes vectors, shape (b, d), of a model's output and its attention mask, shape (b, t)."""

TEXTS_AT_ONCE = 64
UNLIMITED = 1_000_000
"""A tokenizer without a limit of its own says a number far above this."""


async def load_whole(kind: str, name: str) -> Pretrained:
    """Load a model of which no weight that counts is missing.

    Transformers fills what the files lack with random numbers; a pooler is not used here.

    Args:
        kind: The class of transformers that loads it.
        name: A hub id or a folder.

    Raises:
        ModelUnavailableError: It cannot be loaded, or is a model of another kind.
    """
    pretrained = await load_pretrained(kind, name)
    missing = [weight for weight in pretrained.missing if "pooler" not in weight]
    if missing:
        raise ModelUnavailableError(
            f"The model {name} has no weights '{missing[0]}', which {kind} needs; choose a model "
            "that was trained as this kind of retriever."
        )
    return pretrained


def token_limit(pretrained: Pretrained) -> int:
    """Return how many tokens a text may have, the special ones included: what both parts take."""
    limits = (
        getattr(pretrained.tokenizer, "model_max_length", None),
        getattr(pretrained.model.config, "max_position_embeddings", None),
    )
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < UNLIMITED]
    return min(known, default=512)


def dot_products(
    pretrained: Pretrained, query: str, texts: Sequence[str], pooling: Pooling, tokens: int
) -> FloatArray:
    """Return the dot product of the query's vector with each text's, shape (n,).

    A text's vector does not depend on what is encoded beside it, up to rounding: what pads a
    shorter text is masked. Texts are cut at the model's limit.

    Args:
        pretrained: A model whose output ``pooling`` understands.
        query: Not blank.
        texts: None of them blank.
        pooling: Makes vectors of the output.
        tokens: How many tokens a batch may have, padding included, unless it is one text: what
            bounds memory.
    """
    limit = token_limit(pretrained)

    def vectors(some: Sequence[str]) -> Any:
        inputs = pretrained.tokenizer(
            list(some), padding=True, truncation=True, max_length=limit, return_tensors="pt"
        ).to(pretrained.device)
        return pooling(pretrained.model(**inputs), inputs["attention_mask"]).float()

    wanted = vectors([query])[0]
    encoded = pretrained.tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
    scores = np.zeros(len(texts))
    for places in _batches([len(ids) for ids in encoded], tokens):
        found = vectors([texts[place] for place in places]) @ wanted
        scores[places] = found.cpu().numpy()
    return scores


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield places by length, longest first, so that little is padded."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        longest = lengths[batch[0]] if batch else lengths[place]
        if batch and ((len(batch) + 1) * longest > tokens or len(batch) == TEXTS_AT_ONCE):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
