"""Shares of groups where labels may be wrong.

C is the confusion matrix, P(label | group), shape (G, G): row by group, column by label. If errors
depend on the group alone, shares by label are shares by group times C, in expectation. So all that
is linear in the labels is corrected by the inverse (the matrix method of Barron 1977).
Where C was counted on a sample, matrices are drawn from what that sample leaves possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairqr.retrieval.fairness.exposure import FloatArray


def by_group(by_label: FloatArray, confusion: FloatArray | None) -> FloatArray:
    """Return numbers by group from those by label, shape (…, G); None means right labels."""
    return by_label if confusion is None else by_label @ np.linalg.inv(confusion)


def slopes(confusion: FloatArray, shares: FloatArray) -> FloatArray:
    """Return how fast the share by each label grows with its group's share, shape (G,).

    It is a + b·share: b says how much more often the documents of a group have its label than
    those of the others have it, mixed by their shares.

    Args:
        confusion: C.
        shares: The shares of the groups, above 0, shape (G,).
    """
    others = shares[:, None] * (1 - np.eye(len(shares)))
    return np.asarray(np.diag(confusion) - (others * confusion).sum(axis=0) / others.sum(axis=0))


def variances(confusion: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the variance that labels give to the corrected membership of a document, shape (G,).

    Args:
        confusion: C.
        shares: The shares of the groups that documents are from, shape (G,).
    """
    squares = np.linalg.inv(confusion) ** 2
    return np.asarray(np.maximum(shares @ (confusion @ squares) - shares, 0.0))


def drawn_inverses(
    counted: Sequence[FloatArray], random: np.random.Generator, draws: int = 1_000
) -> FloatArray:
    """Return inverses of matrices that a checked sample may come from, shape (draws, G, G).

    Rows are independent samples, so a row is drawn from Dirichlet(counts + ½).

    Args:
        counted: For each attribute, how many checked documents of each group have each label, shape
            (Gₐ, Gₐ), and ΠGₐ = G. Rows that sum to 1 count as exact.
        random: Draws the rows.
        draws: How many matrices; where all rows are exact, there is one.
    """
    if all(rows.sum(axis=1).max() <= 1 + 1e-6 for rows in counted):
        draws = 1
    inverses = np.ones((draws, 1, 1))
    for rows in counted:
        matrices = np.stack(
            [
                random.dirichlet(row + 1 / 2, draws)
                if row.sum() > 1 + 1e-6
                else np.broadcast_to(row, (draws, len(row)))
                for row in rows
            ],
            axis=1,
        )
        product = np.einsum("dab,dij->daibj", inverses, np.linalg.inv(matrices))
        inverses = product.reshape(draws, *[inverses.shape[1] * len(rows)] * 2)
    return inverses
