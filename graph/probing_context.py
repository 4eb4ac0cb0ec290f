"""How a model is probed: the part of the context that asks whether it leans to a group."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fairqr.agents.ranking.askers import Asker
from fairqr.agents.ranking.base import Shown
from fairqr.graph.ranking_context import require_step

__all__ = ["ProbeKind", "ProbeSettings"]

ProbeKind = Literal["pairwise", "listwise"]


class ProbeSettings(BaseModel):
    """Whether the model that is asked to rank leans to one side, on the documents of a result.

    All of these documents count as alike relevant: nobody has judged them for this query.

    Attributes:
        attribute: Of the corpus.
        protected: Which of its groups count as protected, as
            :func:`fairqr.retrieval.sides.parse_sides` takes it: ``female``, ``not Europe``.
        words: What the protected side and the other are called in prompts; their groups where None.
        kinds: What is asked: which of two documents comes first, in both orders (``pairwise``), and
            how it orders them all (``listwise``).
        depth: How many of the best documents of the result take part; all of them where None.
        pairs: At most so many; each document is in one pair.
        asker: Who the pairwise question is asked for; ``neutral`` for nobody in particular.
        askers: Who lists are ordered for.
        by: How pairs are asked: by the ``probabilities`` of the two labels where the model tells
            them, or by its ``reply``.
        shown: What the model reads of a document.
        length: At most so many characters of a document are shown.
        window, step: Of lists, in documents; the step is half of the window where None.
        context: Tokens that the model reads and writes at once, where that is known.
        seed: Of the pairs, of the order in which lists are given, and of the figures' intervals.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attribute: str
    protected: str
    words: tuple[str, str] | None = None
    kinds: tuple[ProbeKind, ...] = ("pairwise", "listwise")
    depth: int | None = Field(None, ge=2, le=1000)
    pairs: int = Field(50, ge=1, le=1000)
    asker: Asker = "neutral"
    askers: tuple[Asker, ...] = ("neutral", "unprotected", "protected")
    by: Literal["probabilities", "reply"] = "probabilities"
    shown: Shown = "title"
    length: int = Field(2000, ge=1, le=100_000)
    window: int = Field(20, ge=2, le=1000)
    step: int | None = Field(None, ge=1, le=1000)
    context: int | None = Field(None, ge=1)
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @field_validator("kinds", "askers")
    @classmethod
    def _are_some_once(cls, listed: tuple[str, ...]) -> tuple[str, ...]:
        if not listed or len(set(listed)) < len(listed):
            raise ValueError("name at least one, and each once")
        return listed

    @model_validator(mode="after")
    def _step_is_within_the_window(self) -> ProbeSettings:
        require_step(self.window, self.step)
        return self
