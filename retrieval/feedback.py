"""Pseudo-relevance feedback: which words the best documents of a query have in common.

The documents that a search puts first are taken as relevant. The *relevance model* of Lavrenko and
Croft (2001) gives each word the mean of its shares of these documents, weighted by how well each
document answers the query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.retrieval.engines.engine import Query, SearchEngine

__all__ = ["Rm3", "document_frequencies", "most_weighted", "relevance_model", "shares_of"]


class Rm3(BaseModel):
    """The parameters of RM3; the defaults are those of Anserini (Yang et al. 2018)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    documents: int = Field(
        10, ge=1, le=100, description="How many of the first documents to learn from."
    )
    terms: int = Field(10, ge=1, le=100, description="How many words to add.")
    weight: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The weight of the query's own words; the added words have the rest.",
    )

    @classmethod
    def of(cls, text: str) -> Rm3:
        """Read parameters such as ``documents=20,weight=0.7``.

        Raises:
            InputError: There is no such parameter, or a value is out of its range.
        """
        given = [part.partition("=") for part in text.split(",") if part.strip()]
        try:
            return cls.model_validate({name.strip(): value for name, _, value in given})
        except ValidationError as error:
            where, reason = first_problem(error)
            raise InputError(
                f"The retriever rm3 cannot take '{one_line(where)}': {one_line(reason)}; its "
                f"parameters are {', '.join(cls.model_fields)}, as in rm3:documents=20,weight=0.7."
            ) from None

    @property
    def retriever(self) -> str:
        """The name of the retriever: ``rm3``, with the parameters that are not the defaults."""
        changed = self.model_dump(exclude_defaults=True)
        own = ",".join(f"{name}={value}" for name, value in changed.items())
        return f"rm3:{own}" if own else "rm3"


def shares_of(words: Sequence[str]) -> dict[str, float]:
    """Return P(w|d) of a text: the share of each word in all of its words."""
    return {word: count / len(words) for word, count in Counter(words).items()}


def relevance_model(documents: Iterable[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Return Σ_d P(w|d)·weight(d) of each word.

    Args:
        documents: The word shares of each document, and its weight.
    """
    model: dict[str, float] = {}
    for shares, weight in documents:
        for word, share in shares.items():
            model[word] = model.get(word, 0.0) + weight * share
    return model


def most_weighted(weights: Mapping[str, float], n: int) -> list[str]:
    """Return the n words with the highest weights, best first, ties in alphabetical order."""
    return sorted(weights, key=lambda word: (-weights[word], word))[:n]


async def document_frequencies(
    engine: SearchEngine, words: Sequence[str]
) -> tuple[int, dict[str, int]]:
    """Count the documents of an engine, and those with each word; one round trip.

    Returns:
        The number of all documents, and for each word the number of documents that have it.
    """
    every, *counts = await engine.search(
        [Query("", 0), *(Query(word, 0, every_word=True) for word in words)]
    )
    found = {word: count.total or 0 for word, count in zip(words, counts, strict=True)}
    return every.total or 0, found
