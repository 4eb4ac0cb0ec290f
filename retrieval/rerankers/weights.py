"""Files of trained weights: small JSON files, checked when read."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError, model_validator

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.base.files import write_beside
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.listwise import Scaling


class LinearModel(BaseModel):
    """A linear function of standardised features.

    Attributes:
        features: The name of each column.
        means, scales: The standardisation of each column.
        weights: The weight of each column.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: tuple[str, ...]
    means: tuple[FiniteFloat, ...]
    scales: tuple[FiniteFloat, ...]
    weights: tuple[FiniteFloat, ...]

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        columns = len(self.features)
        if not len(self.means) == len(self.scales) == len(self.weights) == columns:
            raise ValueError("the columns of the weights do not fit each other")
        if not all(scale > 0 for scale in self.scales):
            raise ValueError("a scale is not above 0")
        return self

    @classmethod
    def of(cls, names: tuple[str, ...], scaling: Scaling, weights: FloatArray) -> LinearModel:
        """Convert what was learned into plain numbers."""
        return cls(
            features=names,
            means=tuple(scaling.means.tolist()),
            scales=tuple(scaling.scales.tolist()),
            weights=tuple(weights.tolist()),
        )

    def scores(self, features: FloatArray) -> FloatArray:
        """Return the score of each document, shape (n,), from its features, shape (n, F)."""
        standardised = (features - np.array(self.means)) / np.array(self.scales)
        return np.asarray(standardised @ np.array(self.weights))


Model = TypeVar("Model", bound="TrainedModel")


class TrainedModel(BaseModel):
    """Base of all files of weights.

    Attributes:
        format: The version of the file format.
        trained_on: The SHA-256 of the examples.
        topics: The number of examples.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]

    format: Literal[1] = 1
    trained_on: str
    topics: int

    def save(self, path: Path) -> None:
        """Write the model as JSON, whole or not at all."""
        write_beside(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls: type[Model], path: Path) -> Model:
        """Read a model.

        Raises:
            InputError: The file cannot be read, or does not contain weights of this kind.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise InputError(
                f"The weights {path} cannot be read: {error.strerror or error}."
            ) from None
        except ValidationError as error:
            where, reason = first_problem(error)
            raise InputError(
                f"{path} does not contain weights of {cls.kind} (wrong at {where or 'the file'}: "
                f"{one_line(reason, 120)}); write them with 'fairqr train {cls.kind}'."
            ) from None


def group_positions(
    kind: str, candidates: Candidates, dimension: str, groups: tuple[str, ...]
) -> tuple[int, list[int]]:
    """Return the positions of a trained dimension and its groups among the candidates'.

    Raises:
        InputError: The dimension or a group is not measured here.
    """
    if dimension not in candidates.dimensions:
        raise InputError(
            f"These weights of {kind} were trained for the attribute '{dimension}', but this "
            f"search measures {', '.join(candidates.dimensions)}; use weights trained for that."
        )
    position = list(candidates.dimensions).index(dimension)
    known = list(candidates.groups[position])
    if missing := [group for group in groups if group not in known]:
        raise InputError(
            f"These weights of {kind} were trained for the group '{missing[0]}', which "
            f"'{dimension}' does not have here; train on this corpus, with 'fairqr train {kind}'."
        )
    return position, [known.index(group) for group in groups]
