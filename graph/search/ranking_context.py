"""How a model re-ranks: the part of the context that a ranker reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairqr.agents.ranking.rankers import RankerName, RankerOptions, Shown

READS: Mapping[RankerName, int] = {"listwise": 100, "pairwise": 20, "monot5": 100, "monobert": 100}
"""How many documents each ranker reads by default; pairwise comparisons cost most."""


class WindowSettings(BaseModel):
    """What a model reads at once, where it orders documents in windows or compares them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: int = Field(
        2000, ge=1, le=100_000, description="The most characters of a document that are shown."
    )
    window: int = Field(
        20, ge=2, le=1000, description="How many documents the model orders at once."
    )
    step: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="How many documents the window moves by; half of the window by default.",
    )
    context: int | None = Field(
        None,
        ge=1,
        description="How many tokens the model can read and write at once; only needed if the "
        "model does not state it.",
    )

    @model_validator(mode="after")
    def _step_is_within_the_window(self) -> Self:
        """Windows must overlap, so that the best documents can rise from one to the next."""
        if self.step is not None and self.step >= self.window:
            raise ValueError(
                f"step is {self.step}, but window is {self.window}; make step smaller, so that "
                "windows overlap"
            )
        return self

    def options(self, versions: Mapping[str, str]) -> RankerOptions:
        """Return the options for :func:`fairqr.agents.ranking.rankers.open_ranker`.

        Args:
            versions: The versions of prompts, by id.
        """
        names = {field.name for field in dataclasses.fields(RankerOptions)}
        own = self.model_dump(include=names, exclude_none=True)
        step = self.step or max(1, self.window // 2)
        return RankerOptions(**own | {"step": step, "versions": versions})


class RankingSettings(WindowSettings):
    """How a model re-ranks; each ranker uses the options that it needs."""

    depth: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="How many of the best documents the model reads; the others keep their places "
        f"below. By default the depth of the search if it is set, or else {READS['pairwise']} for "
        f"pairwise and {READS['listwise']} for the others.",
    )
    shown: Shown | None = Field(
        None,
        description="What the model reads of a document: title, text or title_text; by default "
        "title_text.",
    )
    strategy: Literal["all", "sorting", "sliding"] = Field(
        "sorting",
        description="Which pairs a pairwise ranker compares: all, those that sorting needs, or "
        "neighbours in sliding passes.",
    )
    passes: int = Field(
        10, ge=1, le=1000, description="How many passes the sliding strategy makes."
    )
    by: Literal["probabilities", "reply"] = Field(
        "probabilities",
        description="How a pairwise ranker decides: by the probabilities of the two labels, if the "
        "model gives them, or by the reply it writes.",
    )
    weights: str | None = Field(
        None, min_length=1, description="The hub id or folder of monoT5 or monoBERT weights."
    )
    concurrency: int = Field(
        8, ge=1, le=256, description="How many comparisons run at the same time."
    )
