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

PROTECTING = "fa-ir", "deltr"
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
    known = (largest > 0) & (largest >= unknown - 1e-9)
    return np.where(known, memberships.argmax(axis=1), -1)


def choose_protected(
    lists: Sequence[Candidates], k: int, named: str | None = None
) -> tuple[int, list[int]]:
    """Return the dimension and the groups to protect, by their positions in the candidates.

    Args:
        lists: The candidates; several lists over the same dimensions count by their mean.
        k: We measure ε* − ε in the first k documents of the current order.
        named: As in ``PROTECTED_HELP``. The default is the group with the largest ε* − ε in any
            dimension; the group of documents without a label is never chosen by default.

    Raises:
        InputError: A group does not exist, or several dimensions have a group of this name.
    """
    if named is not None and named.strip() != "all":
        return named_groups(named, lists[0].dimensions, lists[0].groups)
    lacks = []
    for dimension, groups in enumerate(lists[0].groups):
        shown = [exposure(it.memberships[dimension], it.discount, k) for it in lists]
        wanted = [it.targets[dimension] for it in lists]
        lack = np.mean(np.subtract(wanted, shown), axis=0)
        lack[[group == UNKNOWN for group in groups]] = -np.inf
        lacks.append(lack)
    worst = int(np.argmax([lack.max() for lack in lacks]))
    lacking = np.flatnonzero(lacks[worst] > 0).tolist() if named else []
    return worst, lacking or [int(lacks[worst].argmax())]


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
    if prefix.strip() not in dimensions:
        prefix, names = "", text
    known = list(zip(dimensions, groups_of_each, strict=True))
    found = [
        (place, [groups.index(name) for name in wanted])
        for place, (dimension, groups) in enumerate(known)
        if prefix.strip() in ("", dimension)
        and (wanted := [name for name in listed_groups(names, groups) if name])
        and set(wanted) <= set(groups)
    ]
    if not found:
        choices = "; ".join(f"{dimension}={','.join(groups)}" for dimension, groups in known)
        raise InputError(
            f"There is no group '{one_line(text, 100)}' to protect; choose among {choices}."
        )
    if len(found) > 1:
        named = " or ".join(f"{known[place][0]}={names.strip()}" for place, _ in found)
        raise InputError(f"Several attributes have '{one_line(text, 100)}'; write {named}.")
    return found[0]
