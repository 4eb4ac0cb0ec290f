"""The documents that a run has seen so far, one row each, with their groups.

The hits of a search bring the groups of their documents. Everything computed afterwards, such as
the target, the exposure and the fair step, reads them here without another request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Before Python 3.12, pydantic cannot make a JSON schema from typing's own.
from typing_extensions import TypedDict

from fairqr.retrieval.engines.engine import Memberships, shares_above_zero
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, distinct_rows, intersection
from fairqr.retrieval.sources.schema import OTHER, Attribute

MOST_GROUPS = 2_000
"""The most groups that an open attribute may have of their own; the others are ``other``."""


class CodedMemberships(TypedDict):
    """The memberships of a list of documents in one attribute, as plain data.

    Documents mostly share their groups, so each distinct row is kept once. Those of an open
    attribute map the names of groups to shares.
    """

    patterns: list[list[float]] | list[dict[str, float]]
    rows: list[int]


def coded(memberships: Memberships, attributes: Collection[str]) -> dict[str, CodedMemberships]:
    """Return memberships in these attributes as plain data, for a checkpoint."""
    return {name: coded_rows(memberships[name]) for name in memberships if name in attributes}


def coded_rows(array: NDArray[Any]) -> CodedMemberships:
    """Return the memberships of documents in one attribute as plain data."""
    if array.dtype == object:
        numbers: dict[tuple[tuple[str, float], ...], int] = {}
        keys = [tuple(shares.items()) for shares in array]
        of_documents = [numbers.setdefault(key, len(numbers)) for key in keys]
        return CodedMemberships(patterns=[dict(key) for key in numbers], rows=of_documents)
    patterns, rows = distinct_rows(array)
    return CodedMemberships(patterns=patterns.tolist(), rows=rows.tolist())


def decoded(memberships: CodedMemberships) -> NDArray[Any]:
    """Return the decoded array, shape (n, G), or (n,) for an open attribute."""
    patterns = memberships["patterns"]
    rows = np.array(memberships["rows"], dtype=np.intp)
    if patterns and isinstance(patterns[0], dict):
        return named_array(patterns)[rows]
    return np.asarray(np.array(patterns, dtype=np.float64, ndmin=2)[rows])


def named_array(shares: Sequence[Mapping[str, float]]) -> NDArray[Any]:
    """Return the shares of documents by the names of groups as an array of objects, shape (n,)."""
    array = np.empty(len(shares), dtype=object)
    array[:] = shares
    return array


class DocumentTable:
    """The groups of documents, by id.

    A document that is added again gets its latest groups.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._parts: dict[str, list[NDArray[Any]]] = {}
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
        arrays = []
        for factor in dimension.factors:
            array = self._array(factor.name)[rows]
            if array.dtype == object:
                array = shares_in_groups(array, factor)
            arrays.append(array)
        return intersection(arrays)

    def rows(self, attribute: Attribute, ids: Sequence[str]) -> NDArray[Any]:
        """Return the shares of these documents as hits have them; see :data:`Memberships`.

        Raises:
            KeyError: A document was not added.
        """
        if not ids:
            return np.empty(0, object) if attribute.open else np.zeros((0, len(attribute.universe)))
        return self._array(attribute.name)[[self._rows[id_] for id_ in ids]]

    def groups_of(self, attribute: Attribute, ids: Sequence[str]) -> list[dict[str, float]]:
        """Return the groups of each document in an attribute, with their shares above 0.

        Raises:
            KeyError: A document was not added.
        """
        return [shares_above_zero(attribute, row) for row in self.rows(attribute, ids)]

    def with_found_groups(self, dimension: Dimension, ids: Sequence[str]) -> Dimension:
        """Return a dimension whose open attributes have the groups of these documents.

        Groups are in the order of how much of the documents they have, the largest first; values
        that fewer documents have than the attribute wants are ``other``, and so are those of
        documents that are added later.
        """
        found: dict[str, list[str]] = {}
        for factor in dimension.factors:
            if factor.open:
                found[factor.name] = groups_found(factor, self.rows(factor, ids))
        return dimension.with_groups(found) if found else dimension

    def _array(self, attribute: str) -> NDArray[Any]:
        parts = self._parts[attribute]
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        return parts[0]


def groups_found(attribute: Attribute, array: NDArray[Any]) -> list[str]:
    """Return the groups of documents in an open attribute, the largest first.

    Args:
        attribute: The attribute, which says how many documents a group needs.
        array: The shares of each document by the names of groups, shape (n,).
    """
    sizes = totals_by_group(attribute, array)
    documents = Counter(group for shares in array for group in shares)
    large = {group: sizes[group] for group in sizes if documents[group] >= attribute.at_least}
    return largest_first(large)[:MOST_GROUPS]


def largest_first(sizes: Mapping[str, float]) -> list[str]:
    """Return groups from the largest to the smallest, those of one size by name."""
    return sorted(sizes, key=lambda group: (-sizes[group], group))


def totals_by_group(attribute: Attribute, members: NDArray[Any]) -> dict[str, float]:
    """Return the sum of the shares of each group over documents, by the names of groups.

    Args:
        attribute: The attribute.
        members: The shares of documents, as :data:`Memberships` has them.
    """
    if not attribute.open:
        return dict(zip(attribute.universe, members.sum(axis=0).tolist(), strict=True))
    totals: dict[str, float] = {}
    for shares in members:
        for group, share in shares.items():
            totals[group] = totals.get(group, 0.0) + share
    return totals


def shares_in_groups(
    documents: Sequence[Mapping[str, float]] | NDArray[Any], attribute: Attribute
) -> FloatArray:
    """Return the shares of documents in the groups that an open attribute was given.

    Args:
        documents: The shares of each document by the names of groups.
        attribute: With its groups, of which ``other`` is the last.

    Returns:
        Shape (n, G).
    """
    columns = {group: column for column, group in enumerate(attribute.universe)}
    other = columns[OTHER]
    members = np.zeros((len(documents), len(columns)))
    for row, shares in enumerate(documents):
        for group, share in shares.items():
            members[row, columns.get(group, other)] += share
    return members
