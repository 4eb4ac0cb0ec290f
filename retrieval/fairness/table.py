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
from fairqr.retrieval.fairness.exposure import FloatArray, intersection


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
    if not array.size:
        return CodedMemberships(patterns=[], rows=[])
    # Compare rows as bytes, which creates no Python object for each number.
    whole = np.ascontiguousarray(array, dtype=np.float64)
    held: list[bytes] = whole.view(f"V{whole.itemsize * whole.shape[1]}").ravel().tolist()
    numbers = {row: number for number, row in enumerate(dict.fromkeys(held))}
    rows = [numbers[row] for row in held]
    patterns = np.frombuffer(b"".join(numbers)).reshape(len(numbers), -1)
    return CodedMemberships(patterns=patterns.tolist(), rows=rows)


def decoded(memberships: CodedMemberships) -> FloatArray:
    """Return the decoded array, shape (n, G)."""
    patterns = np.array(memberships["patterns"], dtype=np.float64)
    if not memberships["rows"]:
        return patterns.reshape(0, patterns.shape[1] if patterns.ndim == 2 else 0)
    rows: FloatArray = patterns[memberships["rows"]]
    return rows


class DocumentTable:
    """The groups of documents, by id.

    A document that is added again gets its latest groups.
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
        if attribute not in self._arrays:
            self._arrays[attribute] = np.concatenate(self._parts[attribute])
        return self._arrays[attribute]
