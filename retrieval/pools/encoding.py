"""Scoring a pool with a transformers model: a vector for each text, and dot products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from fairqr.base.neural import Pretrained, load_pretrained, token_limit
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.pools.base import scores_of_spoken

TEXTS_AT_ONCE = 64


class NeuralPoolRetriever(ABC):
    """The dot product of a model's vectors of query and text.

    Args:
        model: A hub id or a folder. We read a text only up to the model's limit, 512 tokens for the
            defaults.

    Attributes:
        kind: The retriever's name, without its model.
        loader: The transformers class that loads the model.
        tokens_at_once: The most tokens in a batch of several texts, including padding; bounds
            memory.
    """

    kind: ClassVar[str]
    loader: ClassVar[str]
    tokens_at_once: ClassVar[int]

    def __init__(self, model: str) -> None:
        self._model = model
        self._loaded: Pretrained | None = None

    @staticmethod
    @abstractmethod
    def vectors(output: Any, mask: Any) -> Any:
        """Make vectors, shape (b, d), from a model's output and attention mask, shape (b, t)."""

    @property
    def name(self) -> str:
        """The kind and the model, such as ``splade:naver/splade_v2_max``."""
        return f"{self.kind}:{self._model}"

    async def start(self) -> None:
        """Load the model.

        Raises:
            ModelUnavailableError: The extra ``neural`` is missing, or the model does not exist or
                is of another kind.
        """
        await self._pretrained()

    async def scores(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the scores, shape (n,); see :class:`fairqr.retrieval.pools.base.PoolRetriever`."""
        return await scores_of_spoken(query, texts, self._score)

    async def _pretrained(self) -> Pretrained:
        if self._loaded is None:
            self._loaded = await load_pretrained(self.loader, self._model)
        return self._loaded

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        pretrained = await self._pretrained()
        return await pretrained.run(lambda: self._dot_products(pretrained, query, texts))

    def _dot_products(self, pretrained: Pretrained, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the dot products of the query's vector with the texts'; none of them is blank.

        A text's vector does not depend on the rest of its batch, up to rounding: the padding of
        shorter texts is masked.
        """
        limit = token_limit(pretrained.model.config, pretrained.tokenizer)

        def encoded(some: Sequence[str]) -> Any:
            inputs = pretrained.tokenizer(
                list(some), padding=True, truncation=True, max_length=limit, return_tensors="pt"
            ).to(pretrained.device)
            return self.vectors(pretrained.model(**inputs), inputs["attention_mask"]).float()

        wanted = encoded([query])[0]
        tokens = pretrained.tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
        scores = np.zeros(len(texts))
        for places in _batches([len(ids) for ids in tokens], self.tokens_at_once):
            found = encoded([texts[place] for place in places]) @ wanted
            scores[places] = found.cpu().numpy()
        return scores


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield batches of positions, longest text first, so that padding is small."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        longest = lengths[batch[0]] if batch else lengths[place]
        if batch and ((len(batch) + 1) * longest > tokens or len(batch) == TEXTS_AT_ONCE):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
