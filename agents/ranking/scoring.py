"""Ranking by a score of each document, which does not know of the others.

Neither their order nor their number plays a part in a score. What gives it is another module's
matter; here stand the batches, the deadline, and what is made of failures.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

from fairqr.agents.failures import no_answer_within
from fairqr.agents.ranking.item_ranker import Cost, ItemRanking, RankItem, Shown
from fairqr.base.errors import InputError, one_line
from fairqr.base.neural import Pretrained, load_pretrained, to_float32

__all__ = ["BATCH", "PointwiseRanker"]

BATCH = 16
"""Documents that are read at once."""


class PointwiseRanker(ABC):
    """Orders items by the score of each; equal ones stay as they were.

    The query is read up to half of what the model takes, the document up to the rest. All scores
    come from one model, a batch at a time; a score does not depend on its batch, up to rounding.

    Args:
        weights: A hub id or a folder; the kind's own where None.
        shown: What is read of an item.
        length: At most so many characters of an item are read.

    Raises:
        InputError: The length is below 1.

    Attributes:
        kind: Its name, without the model.
        loader: The class of transformers that loads it.
        default: The hub id that is taken where none is given.
    """

    kind: ClassVar[str]
    loader: ClassVar[str]
    default: ClassVar[str]

    def __init__(
        self, weights: str | None = None, *, shown: Shown = "title_text", length: int = 2000
    ) -> None:
        if length < 1:
            raise InputError(f"At least 1 character of an item has to be shown, not {length}.")
        self._weights = weights or self.default
        self._shown: Shown = shown
        self._length = length
        self._loaded: Pretrained | None = None

    @property
    def name(self) -> str:
        """The kind and the model, e.g. ``monot5(castorini/monot5-base-msmarco)``."""
        return f"{self.kind}({self._weights})"

    @abstractmethod
    def check(self, pretrained: Pretrained) -> None:
        """Raise ModelUnavailableError where the model cannot score."""

    @abstractmethod
    def scores(self, pretrained: Pretrained, query: str, documents: Sequence[str]) -> list[float]:
        """Return the logarithm of the probability that each document is relevant.

        Called without gradients on the model's thread.

        Args:
            pretrained: Checked.
            query: Of valid Unicode, as the documents are; may be empty, as they may.
            documents: At least one, and as many as are read at once.
        """

    async def start(self) -> None:
        """Load the model.

        Raises:
            ModelUnavailableError: The extra ``neural`` is missing, there is no such model, or it is
                one of another kind.
        """
        await self._pretrained()

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        """Return nothing: no language model is asked."""
        return Cost()

    async def rank(
        self,
        query: str,
        items: Sequence[RankItem],
        *,
        group: str = "",
        deadline: float | None = None,
    ) -> ItemRanking:
        """Rank the items; see :meth:`fairqr.agents.ranking.item_ranker.ItemRanker.rank`.

        Where not all could be scored, the order is the one that was given, and the ranking counts
        as one question that failed, with its status.
        """
        until = None if deadline is None else time.monotonic() + deadline
        pretrained = await self._pretrained()
        asked = _clean(f"{group} {query}" if group else query)
        texts = [_clean(item.shown(self._shown)[: self._length]) for item in items]
        scores: dict[str, float] = {}
        for documents in _batches(texts):
            if until is not None and time.monotonic() >= until:
                late = no_answer_within(self.name, deadline or 0).rstrip(".")
                scored = sum(text in scores for text in texts)
                return _failed(texts, "timeout", f"{late}: it had scored {scored} of {len(texts)}.")
            try:
                found = await pretrained.run(partial(self.scores, pretrained, asked, documents))
            except Exception as error:  # memory that runs out, weights that do not fit
                message = f"The model {self.name} failed ({one_line(error, 200)})."
                return _failed(texts, "unavailable", message)
            if not all(map(math.isfinite, found)):
                message = f"The model {self.name} gave a score that is no number."
                return _failed(texts, "unavailable", message)
            scores.update(zip(documents, found, strict=True))
        order = sorted(range(len(texts)), key=lambda place: (-scores[texts[place]], place))
        return ItemRanking(tuple(order), scores=tuple(scores[text] for text in texts))

    async def _pretrained(self) -> Pretrained:
        if self._loaded is None:
            loaded = await load_pretrained(self.loader, self._weights)
            self.check(loaded)
            # Half precision, as some models are stored, would move scores that are close.
            to_float32(loaded.model)
            self._loaded = loaded
        return self._loaded


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield each text once, longest first, so that little is padded.

    Batches follow from the texts and not from their order, by which scores could else be rounded.
    """
    ordered = sorted(set(texts), key=lambda text: (-len(text), text))
    for begin in range(0, len(ordered), BATCH):
        yield ordered[begin : begin + BATCH]


def _clean(text: str) -> str:
    """Return a text on one line, without the halves of surrogate pairs that tokenizers refuse."""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def _failed(texts: Sequence[str], status: str, message: str) -> ItemRanking:
    return ItemRanking(
        tuple(range(len(texts))),
        asked=1,
        failures={status: 1},
        warnings=(message,),
        message=message,
    )
