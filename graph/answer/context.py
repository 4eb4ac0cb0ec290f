"""What a run that answers is asked to do."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fairqr.agents.attribution.base import RAW
from fairqr.graph.search.context import Context, Method, checked_context
from fairqr.retrieval.sampling.plackett_luce import LARGEST_ALPHA, Form

__all__ = ["AnswerContext", "AnswerSettings", "answer_context"]


class AnswerSettings(BaseModel):
    """How rankings are sampled, and how answers are written and judged.

    Rankings are drawn by Plackett–Luce from the final ranking, whose length is ``k`` of the
    context. Its document at rank i is worth the i-th greatest of the scores in it, so that a fair
    re-ranking counts, and a plain retrieval keeps its own scores.

    Attributes:
        alpha: How sharply sampling follows the scores, from 0 to 1000. With 0 all orders are
            equally likely; the greater it is, the more samples are the final ranking itself.
        form: ``logits`` or ``worths``; see :mod:`fairqr.retrieval.sampling.plackett_luce`.
        samples: How many rankings are drawn. Equal ones are answered once.
        documents: How many documents of each the generator reads.
        temperature: Of the generator, in [0, 2]; the prompt's own where None. The seed is for
            sampling rankings, and for the generator too where its temperature is above 0.
        hypothesis: What makes an answer into a sentence that a document can entail; has
            ``{answer}`` once.
        stream: Tell each piece of the answer while it is written, to whoever reads the graph's
            stream ``custom``. That is done where there is one ranking to answer from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float = Field(2.0, ge=0, le=LARGEST_ALPHA, allow_inf_nan=False)
    form: Form = "logits"
    samples: int = Field(1, ge=1, le=10_000)
    documents: int = Field(5, ge=1, le=1_000)
    temperature: float | None = Field(None, ge=0, le=2)
    hypothesis: str = RAW
    stream: bool = False

    @field_validator("hypothesis")
    @classmethod
    def _has_the_answer_once(cls, value: str) -> str:
        if value.count(RAW) != 1:
            raise ValueError("write {answer} in it once, for the answer")
        return value


class AnswerContext(Context):
    """What a run that answers is asked to do: the search, and how its ranking is answered from.

    The method is ``plain`` where nothing else is said. The budget bounds the time of answering and
    judging, but not their calls: these are as many as there are distinct rankings.

    Attributes:
        answer: How rankings are drawn, and how answers are written and judged.
    """

    method: Method = "plain"
    answer: AnswerSettings = AnswerSettings()


def answer_context(**values: object) -> AnswerContext:
    """Return the context of a run that answers, from values that are given one by one.

    Args:
        values: Those of :class:`AnswerSettings` and of :class:`AnswerContext`. ``temperature`` is
            that of the answer.

    Raises:
        InputError: One is wrong; the message names it and what is allowed.
    """
    search = {name: value for name, value in values.items() if name not in _SETTINGS}
    given = {name: values[name] for name in _SETTINGS if values.get(name) is not None}
    return checked_context(AnswerContext, {**search, "answer": given or None})


_SETTINGS = tuple(AnswerSettings.model_fields)
