"""The parameters of a retriever, which follow its name: ``hybrid:feedback=20,weight=0.7``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BaseModel, Field, ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.retrieval.fairness.ranking import RRF_K

Count = Annotated[int, Field(ge=1, le=10_000)]


class Hybrid(BaseModel, frozen=True, extra="forbid"):
    """The parameters of hybrid retrieval; the calibration was fitted with the defaults."""

    # The number of documents and the weight that RM3 has in Anserini (Yang et al. 2018).
    feedback: int = Field(10, ge=1, le=100, description="How many documents move the query.")
    weight: float = Field(0.5, gt=0, le=1, description="How much of its own vector a query keeps.")
    # Cormack et al. (2009).
    k: int = Field(RRF_K, ge=0, le=10_000, description="The constant k of the rank fusion.")
    # The number that the calibration was fitted on for each topic (docs/explanation/relevance.md).
    depth: Count = Field(200, description="How many documents of each ranking are fused.")
    # The number that a TREC run has for each topic.
    candidates: Count = Field(1000, description="How many to find by words, if all have vectors.")
    # The number that is fused: only a search by words could find the others.
    pool: Count = Field(200, description="How many of those to encode, if none has a vector.")

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Read parameters such as ``documents=20``.

        Raises:
            InputError: A parameter does not exist, or a value is out of range.
        """
        given = [text.partition("=") for text in texts if text.strip()]
        try:
            return cls.model_validate({name.strip(): value for name, _, value in given})
        except ValidationError as error:
            where, reason = first_problem(error)
            raise InputError(
                f"The parameter '{one_line(where)}' of hybrid is wrong: {one_line(reason)}; it has "
                f"{', '.join(cls.model_fields)}, as in hybrid:minilm,feedback=20,weight=0.7."
            ) from None

    def named(self, kind: str, *encoder: str) -> str:
        """Return a retriever's full name: kind, encoder, and parameters that are not defaults."""
        changed = self.model_dump(exclude_defaults=True)
        detail = ",".join([*encoder, *(f"{name}={value}" for name, value in changed.items())])
        return f"{kind}:{detail}" if detail else kind
