"""Which documents say the same, so that they share one claim to exposure by merit.

A group merits its share of the estimated relevance (the target's part ``merit``). If each document
claimed as much as it is likely to be relevant, a seller who lists one offer fifty times would claim
fifty shares. So near duplicates share one claim.

They are documents whose texts are the same, but for white space and case, or whose vectors have a
cosine of at least :data:`ALIKE`; also those that are linked so through others. Only texts and
vectors are compared that a search has read anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.encoders.encoder import Float32Array
from fairqr.retrieval.fairness.answerable import FITTED_WITH
from fairqr.retrieval.fairness.exposure import FloatArray

ALIKE = 0.97
"""The cosine of near duplicates, with MiniLM. It separates copies from people who are described in
the same words: no two of the 11,283 persons of notables are above .911, and of the 19,488 of TREC
Fair 2022, whose texts are Wikipedia's, two pairs are above .97, such as Ant and Dec. So are nearly
all copies with a sentence added or the sentences in another order, 77 to 81 % with one word in
twenty replaced, and 40 % with one in ten (``benchmarks/near_duplicates.py``). Texts of a few words
that differ in one may be: those of two flats in one house have .989."""

EQUAL = 0.999
"""The same with other encoders, whose scale is not known: the texts are the same."""

COMPARED = 1_000
"""The vectors of so many documents are compared, the first ones."""

Claims = NDArray[np.intp]
"""For each document the row of the first one that says the same, shape (n,); its own row if there
is none before it."""


def claims_by_text(texts: Sequence[str]) -> Claims:
    """Return the claims of documents by their texts; those without a text are alone."""
    first: dict[str, int] = {}
    claims = np.arange(len(texts))
    for row, text in enumerate(texts):
        words = " ".join(text.casefold().split())
        if words:
            claims[row] = first.setdefault(words, row)
    return claims


def claims_by_vector(vectors: Float32Array, encoder: str, known: Claims | None = None) -> Claims:
    """Return the claims of documents by their vectors, joined with those that are known.

    Args:
        vectors: Of length 1, or zeros where there is none, shape (m, d).
        encoder: The name of the encoder that made them.
        known: The claims of n ≥ m documents of which these are the first; by default of these
            alone, each with its own.

    Returns:
        Shape (n,).
    """
    claims = np.arange(len(vectors)) if known is None else known
    least = ALIKE if encoder == FITTED_WITH else EQUAL
    compared = vectors[:COMPARED]
    # In both directions, and each with itself.
    one, other = np.nonzero(compared @ compared.T >= least)
    # Give linked documents the lowest row among them, until nothing changes.
    while True:
        joined = np.arange(len(claims))
        np.minimum.at(joined, claims[one], claims[other])
        if (joined[claims] == claims).all():
            return claims
        claims = joined[claims]


def claims_of_rows(claims: Claims, rows: Sequence[int] | NDArray[np.intp]) -> Claims:
    """Return the claims of some of the documents, in the order of their rows."""
    _, first, numbers = np.unique(claims[rows], return_index=True, return_inverse=True)
    return np.asarray(first[numbers])


def merits_of(probabilities: FloatArray, claims: Claims | None) -> FloatArray:
    """Return what each document merits.

    The claim of documents that say the same is the highest probability among them, and they share
    it by their probabilities: ``merit(i) = p(i)·max(p)/Σp``, over the documents of the claim. A
    document that is alone merits its probability.

    Args:
        probabilities: How likely each document is relevant, at least 0, shape (n,).
        claims: The claims; None if no documents were compared.

    Returns:
        Shape (n,).
    """
    if claims is None:
        return probabilities
    size = len(probabilities)
    highest = np.zeros(size)
    np.maximum.at(highest, claims, probabilities)
    total = np.bincount(claims, probabilities, size)
    part = np.divide(highest, total, out=np.ones(size), where=total > 0)
    return np.asarray(probabilities * part[claims])


def say_shared(claims: Claims | None) -> str:
    """Return how many near duplicates there are, and as how many documents they count; or nothing.

    It is a clause without a full stop.
    """
    sizes = np.zeros(0, np.intp) if claims is None else np.bincount(claims)
    shared = sizes[sizes > 1]
    if not len(shared):
        return ""
    return f"{shared.sum():,} near duplicates count as {len(shared):,}"
