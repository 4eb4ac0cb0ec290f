"""The groups that a re-ranker protects, and the documents that belong to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import InputError, one_line
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.fairness.protected import listed_groups
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.sources.schema import UNKNOWN

PROTECTING = ("fa-ir", "deltr")
"""The methods that protect groups."""

PROTECTED_HELP = (
    "The groups to protect, such as female, 'not Europe' or continent=Africa,Asia; 'all' for every "
    "group that lacks exposure in the first k. Defaults to the group that lacks most."
)


def group_of_each(memberships: FloatArray) -> NDArray[np.intp]:
    """Return the position of each document's one group, or −1, shape (n,).

    Tests and penalties that count documents need one group for each document. We take the group
    with the largest share, and the first in the schema among equal ones. A document has no group if
    its unknown mass is larger than any share, so also if it has no label at all.

    Args:
        memberships: Shape (n, G); rows sum to at most 1.
    """
    largest = memberships.max(axis=1, initial=0.0)
    unknown = 1 - memberships.sum(axis=1)
    # Rounding must not make one of two equal halves smaller.
    has_group = (largest > 0) & (largest >= unknown - 1e-9)
    return np.where(has_group, memberships.argmax(axis=1), -1)


def choose_protected(
    lists: Sequence[Candidates], k: int, text: str | None = None
) -> tuple[int, list[int]]:
    """Return the dimension and the groups to protect, by their positions in the candidates.

    Args:
        lists: The candidates; several lists over the same dimensions count by their mean.
        k: We measure ε* − ε in the first k documents of the current order.
        text: As in ``PROTECTED_HELP``. The default is the group with the largest ε* − ε in any
            dimension; the group of documents without a label is never chosen by default.

    Raises:
        InputError: A group does not exist, or several dimensions have a group of this name.
    """
    if text is not None and text.strip() != "all":
        return named_groups(text, lists[0].dimensions, lists[0].groups)

    lacks = [_mean_lack(lists, dimension, k) for dimension in range(len(lists[0].groups))]
    worst = int(np.argmax([lack.max() for lack in lacks]))
    group_lacking_most = int(lacks[worst].argmax())
    if not text:
        return worst, [group_lacking_most]
    lacking = np.flatnonzero(lacks[worst] > 0).tolist()
    return worst, lacking or [group_lacking_most]


def _mean_lack(lists: Sequence[Candidates], dimension: int, k: int) -> FloatArray:
    """Return ε* − ε of each group of a dimension, in the mean over the lists, shape (G,)."""
    lacks = []
    for candidates in lists:
        shares = exposure(candidates.memberships[dimension], candidates.discount, k)
        lacks.append(candidates.targets[dimension] - shares)
    lack = np.mean(lacks, axis=0)
    is_unknown = [group == UNKNOWN for group in lists[0].groups[dimension]]
    lack[is_unknown] = -np.inf
    return np.asarray(lack)


def named_groups(
    text: str, dimensions: Sequence[str], groups_of_each: Sequence[Sequence[str]]
) -> tuple[int, list[int]]:
    """Return the dimension and the groups that a text names, by their positions.

    Args:
        text: As in ``PROTECTED_HELP``, but not ``all``.
        dimensions: The name of each dimension.
        groups_of_each: The names of its groups.

    Raises:
        InputError: A group does not exist, or several dimensions have a group of this name.
    """
    prefix, _, names = text.partition("=")
    named_dimension = prefix.strip()
    if named_dimension not in dimensions:
        named_dimension = ""
        names = text

    matches = []
    for position, (dimension, groups) in enumerate(zip(dimensions, groups_of_each, strict=True)):
        if named_dimension not in ("", dimension):
            continue
        named = [name for name in listed_groups(names, groups) if name]
        if named and set(named) <= set(groups):
            matches.append((position, [groups.index(name) for name in named]))
    if not matches:
        choices = "; ".join(
            f"{dimension}={','.join(groups)}"
            for dimension, groups in zip(dimensions, groups_of_each, strict=True)
        )
        raise InputError(
            f"There is no group '{one_line(text, 100)}' to protect; choose among {choices}."
        )
    if len(matches) > 1:
        exact = " or ".join(f"{dimensions[position]}={names.strip()}" for position, _ in matches)
        raise InputError(f"Several attributes have '{one_line(text, 100)}'; write {exact}.")
    return matches[0]
