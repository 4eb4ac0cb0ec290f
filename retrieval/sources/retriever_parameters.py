"""The parameters of a retriever, which follow its name: ``hybrid:feedback=20,weight=0.7``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.retrieval.fairness.rerank import RRF_K


class Hybrid(BaseModel):
    """The parameters of hybrid retrieval; the calibration was fitted with the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The number of documents and the weight that RM3 has in Anserini (Yang et al. 2018).
    feedback: int = Field(
        10, ge=1, le=100, description="How many documents move the vector of the query."
    )
    weight: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The weight of the query's own vector; the mean of those documents has the "
        "rest.",
    )
    # Cormack et al. (2009).
    k: int = Field(
        RRF_K,
        ge=0,
        le=10_000,
        description="The constant k of the rank fusion that chooses them: the sum of "
        "1 / (k + rank) over the rankings by words and by vectors.",
    )
    # The number that the calibration was fitted on for each topic (docs/explanation/relevance.md).
    depth: int = Field(
        200, ge=1, le=10_000, description="How many documents of each ranking are fused."
    )
    # The number that a TREC run has for each topic.
    candidates: int = Field(
        1000,
        ge=1,
        le=10_000,
        description="How many documents to find by words, if all vectors are stored.",
    )
    # The number that is fused: only a search by words could find the others.
    pool: int = Field(
        200,
        ge=1,
        le=10_000,
        description="How many of the documents found by words to encode, if no vectors are stored.",
    )

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Read parameters such as ``documents=20``.

        Raises:
            InputError: A parameter does not exist, or a value is out of range.
        """
        given = [text.partition("=") for text in texts if text.strip()]
        values = {name.strip(): value for name, _, value in given}
        known = (
            f"its parameters are {', '.join(cls.model_fields)}, as in "
            "hybrid:minilm,feedback=20,weight=0.7."
        )
        for name in values:
            if name not in cls.model_fields:
                raise InputError(
                    f"The retriever hybrid has no parameter '{one_line(name)}'; {known}"
                )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            where, reason = first_problem(error)
            raise InputError(
                f"The parameter '{where}' of the retriever hybrid is wrong: "
                f"{one_line(reason)}; {known}"
            ) from None

    def named(self, kind: str, *encoder: str) -> str:
        """Return a retriever's full name: kind, encoder, and parameters that are not defaults."""
        changed = self.model_dump(exclude_defaults=True)
        detail = ",".join([*encoder, *(f"{name}={value}" for name, value in changed.items())])
        return f"{kind}:{detail}" if detail else kind
