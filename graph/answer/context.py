"""What a run that answers is asked to do."""

from __future__ import annotations

from pydantic import Field, field_validator

from fairqr.agents.attribution.attributor import RAW
from fairqr.graph.search.context import Context, Frozen, Method, Pool
from fairqr.retrieval.sampling.plackett_luce import LARGEST_ALPHA, Form


class AnswerSettings(Frozen):
    """How rankings are sampled, and how answers are written and judged.

    Rankings are drawn by Plackett–Luce from the final ranking, which has `k` documents. The
    document at rank i gets the i-th greatest score of the ranking, so that the order of a fair
    re-ranking counts, and a baseline ranking keeps its own scores.
    """

    alpha: float = Field(
        2.0,
        ge=0,
        le=LARGEST_ALPHA,
        allow_inf_nan=False,
        description=(
            "How closely sampled rankings follow the scores: at 0, all orders are equally likely; "
            "the larger the value, the more samples equal the final ranking."
        ),
    )
    form: Form = Field(
        "logits",
        description=(
            "Whether the Plackett-Luce model, which samples, reads scores as logits or as worths."
        ),
    )
    samples: int = Field(
        1,
        ge=1,
        le=10_000,
        description="How many rankings to sample; equal ones are answered only once.",
    )
    documents: int = Field(
        5, ge=1, le=1_000, description="How many documents of a ranking the model reads."
    )
    temperature: float | None = Field(
        None, ge=0, le=2, description="The temperature of answers; by default the prompt's."
    )
    hypothesis: str = Field(
        RAW,
        description=(
            "A sentence with {answer} in it once. Documents are checked against this sentence "
            "instead of the bare answer."
        ),
    )
    stream: bool = Field(
        False,
        description=(
            "Ask the model to stream its answer, and give each piece to LangGraph's stream "
            "`messages`; only if there is one ranking to answer from."
        ),
    )

    @field_validator("hypothesis")
    @classmethod
    def _has_the_answer_once(cls, value: str) -> str:
        if value.count(RAW) != 1:
            raise ValueError("write {answer} in it once, for the answer")
        return value


class AnswerContext(Context):
    """What a run that answers is asked to do: the search, and how to answer from its ranking.

    The method is `baseline` by default. The budget limits the time of answering and judging, but
    not the number of their calls, which follows from the number of distinct rankings.
    """

    kind = "answer"

    k: int = Field(
        20,
        ge=1,
        le=10_000,
        description="How many of the best documents to sample rankings from.",
    )
    pool: Pool | None = Field(
        None,
        description=(
            "Which documents the search re-ranks: those of the last round, or the union of all "
            "rounds. The default depends on the method. The option --pool is not this, but k."
        ),
    )
    method: Method = Field("baseline", description="How to rank, as in a search.")
    answer: AnswerSettings = Field(
        AnswerSettings(), description="How to sample rankings, answer from them and judge answers."
    )
