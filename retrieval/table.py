"""The documents that a run has met, one row each, with their groups.

The hits of a search bring the groups of their documents along. All that is computed afterwards,
such as the target, the exposure and the fair step, reads them here, and no engine is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Before Python 3.12 pydantic makes no JSON schema of typing's own.
from typing_extensions import TypedDict

from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.engines.engine import Memberships
from fairqr.retrieval.exposure import FloatArray, intersection

__all__ = ["CodedMemberships", "DocumentTable", "coded", "decoded"]


class CodedMemberships(TypedDict):
    """The memberships of a list of documents in one attribute, as plain data.

    Few documents differ in their groups, so each distinct row is kept once.
    """

    patterns: list[list[float]]
    rows: list[int]


def coded(memberships: Memberships) -> dict[str, CodedMemberships]:
    """Return memberships as plain data, for a checkpoint."""
    return {name: _coded(array) for name, array in memberships.items()}


def _coded(array: FloatArray) -> CodedMemberships:
    if not array.size:
        return CodedMemberships(patterns=[], rows=[])
    # Rows are compared as bytes, which is quick and makes no Python object for each number.
    rows = np.ascontiguousarray(array, dtype=np.float64)
    as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, numbers = np.unique(as_bytes, return_index=True, return_inverse=True)
    return CodedMemberships(patterns=rows[first].tolist(), rows=numbers.tolist())


def decoded(memberships: CodedMemberships) -> FloatArray:
    """Return the array that was coded, shape (n, G)."""
    patterns = np.array(memberships["patterns"], dtype=np.float64)
    if not memberships["rows"]:
        return patterns.reshape(0, patterns.shape[1] if patterns.ndim == 2 else 0)
    rows: FloatArray = patterns[memberships["rows"]]
    return rows


class DocumentTable:
    """The groups of documents by id.

    A document that is added twice keeps the groups that came last.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._parts: dict[str, list[FloatArray]] = {}
        self._arrays: dict[str, FloatArray] = {}
        self._size = 0

    def add(self, ids: Sequence[str], memberships: Memberships) -> None:
        """Add documents with their groups, as hits bring them."""
        if not ids:
            return
        self._rows.update(zip(ids, range(self._size, self._size + len(ids)), strict=True))
        self._size += len(ids)
        for name, array in memberships.items():
            self._parts.setdefault(name, []).append(array)
        self._arrays.clear()

    def __contains__(self, id_: str) -> bool:
        return id_ in self._rows

    def memberships(self, dimension: Dimension, ids: Sequence[str]) -> FloatArray:
        """Return the share of each group in these documents, shape (len(ids), G).

        Raises:
            KeyError: A document was never added.
        """
        if not ids:
            return np.zeros((0, len(dimension.groups)))
        rows = np.array([self._rows[id_] for id_ in ids], dtype=np.intp)
        return intersection([self._array(factor.name)[rows] for factor in dimension.factors])

    def _array(self, attribute: str) -> FloatArray:
        if attribute not in self._arrays:
            self._arrays[attribute] = np.concatenate(self._parts[attribute])
        return self._arrays[attribute]
