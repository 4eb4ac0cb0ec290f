"""The documents that a run has seen so far, one row each, with their groups.

The hits of a search bring the groups of their documents. Everything computed afterwards, such as
the target, the exposure and the fair step, reads them here without another request.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

# Before Python 3.12, pydantic cannot make a JSON schema from typing's own.
from typing_extensions import TypedDict

from fairqr.retrieval.engines.engine import Memberships
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, distinct_rows, intersection


class CodedMemberships(TypedDict):
    """The memberships of a list of documents in one attribute, as plain data.

    Documents mostly share their groups, so each distinct row is kept once.
    """

    patterns: list[list[float]]
    rows: list[int]


def coded(memberships: Memberships, attributes: Collection[str]) -> dict[str, CodedMemberships]:
    """Return memberships in these attributes as plain data, for a checkpoint."""
    return {name: _coded(memberships[name]) for name in memberships if name in attributes}


def _coded(array: FloatArray) -> CodedMemberships:
    patterns, rows = distinct_rows(array)
    return CodedMemberships(patterns=patterns.tolist(), rows=rows.tolist())


def decoded(memberships: CodedMemberships) -> FloatArray:
    """Return the decoded array, shape (n, G)."""
    patterns = np.array(memberships["patterns"], dtype=np.float64, ndmin=2)
    return np.asarray(patterns[np.array(memberships["rows"], dtype=np.intp)])


class DocumentTable:
    """The groups of documents, by id.

    A document that is added again gets its latest groups.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._parts: dict[str, list[FloatArray]] = {}
        self._size = 0

    def add(self, ids: Sequence[str], memberships: Memberships) -> None:
        """Add documents with their groups, as hits bring them."""
        if not ids:
            return
        self._rows.update(zip(ids, range(self._size, self._size + len(ids)), strict=True))
        self._size += len(ids)
        for name, array in memberships.items():
            self._parts.setdefault(name, []).append(array)

    @property
    def ids(self) -> list[str]:
        """All documents, in the order in which they were first added."""
        return list(self._rows)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._rows

    def memberships(self, dimension: Dimension, ids: Sequence[str]) -> FloatArray:
        """Return the share of each group in these documents, shape (len(ids), G).

        Raises:
            KeyError: A document was not added.
        """
        if not ids:
            return np.zeros((0, len(dimension.groups)))
        rows = np.fromiter(map(self._rows.__getitem__, ids), dtype=np.intp, count=len(ids))
        return intersection([self._array(factor.name)[rows] for factor in dimension.factors])

    def _array(self, attribute: str) -> FloatArray:
        parts = self._parts[attribute]
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        return parts[0]
