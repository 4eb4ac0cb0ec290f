"""How a model re-ranks: the part of the context that a ranker reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairqr.agents.ranking.base import Shown
from fairqr.agents.ranking.open import RankerName, RankerOptions

__all__ = ["READS", "RankingSettings", "half", "require_step"]

READS: Mapping[RankerName, int] = {"listwise": 100, "pairwise": 20, "monot5": 100, "monobert": 100}
"""How many documents each ranker reads where nothing is said: comparisons cost most."""


def half(window: int) -> int:
    """Return the usual step of a window."""
    return max(1, window // 2)


def require_step(window: int, step: int | None) -> None:
    """Check that windows overlap, so that the best documents can rise from one to the next.

    Raises:
        ValueError: They do not.
    """
    if step is not None and step >= window:
        raise ValueError(
            f"step is {step}, but window is {window}; make it less, so that windows overlap"
        )


class RankingSettings(BaseModel):
    """How a ranker works; each kind heeds what concerns it.

    Attributes:
        depth: How many of the best documents it reads; the others keep their places below. That of
            the context where None, and else the kind's own (:data:`READS`).
        shown: What it reads of a document; the kind's own where None.
        length: At most so many characters of a document are shown.
        window, step: Of the listwise ranker, in documents; the step is half of the window where
            None.
        context: Tokens that the model reads and writes at once, where that is known.
        strategy: Of the pairwise ranker: ``all`` pairs, a ``sorting``, or ``sliding`` passes.
        passes: Of the sliding strategy.
        by: How the pairwise ranker asks: it weighs the ``probabilities`` of the two labels, or
            reads a ``reply``.
        weights: The hub id or the folder of monoT5 or monoBERT.
        concurrency: Comparisons at a time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    depth: int | None = Field(None, ge=1, le=10_000)
    shown: Shown | None = None
    length: int = Field(2000, ge=1, le=100_000)
    window: int = Field(20, ge=2, le=1000)
    step: int | None = Field(None, ge=1, le=1000)
    context: int | None = Field(None, ge=1)
    strategy: Literal["all", "sorting", "sliding"] = "sorting"
    passes: int = Field(10, ge=1, le=1000)
    by: Literal["probabilities", "reply"] = "probabilities"
    weights: str | None = Field(None, min_length=1)
    concurrency: int = Field(8, ge=1, le=256)

    @model_validator(mode="after")
    def _step_is_within_the_window(self) -> RankingSettings:
        require_step(self.window, self.step)
        return self

    def options(self, versions: Mapping[str, str]) -> RankerOptions:
        """Return what :func:`fairqr.agents.ranking.open.open_ranker` takes.

        Args:
            versions: Of prompts, by id.
        """
        return RankerOptions(
            shown=self.shown,
            length=self.length,
            window=self.window,
            step=self.step or half(self.window),
            context=self.context,
            strategy=self.strategy,
            passes=self.passes,
            by=self.by,
            concurrency=self.concurrency,
            weights=self.weights,
            versions=versions,
        )
