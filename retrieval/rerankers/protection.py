"""The groups that a re-ranker protects, and the documents that belong to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import InputError, one_line
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.sources.schema import UNKNOWN

PROTECTED_HELP = (
    "The groups to protect, such as female or continent=Africa,Asia; 'all' for every group that "
    "lacks exposure in the first k. Defaults to the group that lacks most."
)


@dataclass(frozen=True, slots=True)
class Protected:
    """Groups of one dimension.

    Attributes:
        dimension: Its position among the dimensions of the candidates.
        groups: Their positions in that dimension, without repeats.
    """

    dimension: int
    groups: tuple[int, ...]


def group_of_each(memberships: FloatArray) -> NDArray[np.intp]:
    """Return the position of each document's one group, or −1, shape (n,).

    Tests and penalties that count documents need one group for each document. We take the group
    with the largest share, and the first in the schema among equal ones. A document has no group if
    its unknown mass is larger than any share, so also if it has no label at all.

    Args:
        memberships: Shape (n, G); rows sum to at most 1.
    """
    members = np.asarray(memberships, dtype=np.float64)
    largest = members.max(axis=1, initial=0.0)
    unknown = 1 - members.sum(axis=1)
    # Rounding must not make one of two equal halves smaller.
    known = (largest > 0) & (largest >= unknown - 1e-9)
    return np.where(known, members.argmax(axis=1), -1)


def choose_protected(lists: Sequence[Candidates], k: int, named: str | None = None) -> Protected:
    """Return the groups to protect.

    Args:
        lists: The candidates; several lists over the same dimensions count by their mean.
        k: We measure ε* − ε in the first k documents of the current order.
        named: As in ``PROTECTED_HELP``. The default is the group with the largest ε* − ε in any
            dimension; the group of documents without a label is never chosen by default.

    Raises:
        InputError: A group does not exist, or several dimensions have a group of this name.
    """
    if named is not None and named.strip() != "all":
        return _named(lists[0], named)
    lacks = []
    for dimension, groups in enumerate(lists[0].groups):
        lack = np.mean([_lack(candidates, dimension, k) for candidates in lists], axis=0)
        lack[[group == UNKNOWN for group in groups]] = -np.inf
        lacks.append(lack)
    worst = int(np.argmax([lack.max() for lack in lacks]))
    most = int(lacks[worst].argmax())
    if named is None:
        return Protected(worst, (most,))
    lacking = np.flatnonzero(lacks[worst] > 0).tolist()
    return Protected(worst, tuple(lacking) or (most,))


def _lack(candidates: Candidates, dimension: int, k: int) -> FloatArray:
    shown = exposure(candidates.memberships[dimension], candidates.discount, k)
    return np.asarray(candidates.targets[dimension] - shown)


def _named(candidates: Candidates, text: str) -> Protected:
    prefix, _, names = text.partition("=")
    if prefix.strip() not in candidates.dimensions:
        prefix, names = "", text
    every = [group for groups in candidates.groups for group in groups]
    # The name of a group may contain a comma.
    parts = [names] if names.strip() in every else names.split(",")
    wanted = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    found = [
        position
        for position, dimension in enumerate(candidates.dimensions)
        if prefix.strip() in ("", dimension)
        and wanted
        and set(wanted) <= set(candidates.groups[position])
    ]
    if not found:
        known = "; ".join(
            f"{dimension}={','.join(groups)}"
            for dimension, groups in zip(candidates.dimensions, candidates.groups, strict=True)
        )
        raise InputError(
            f"There is no group '{one_line(text, 100)}' to protect; choose among {known}."
        )
    if len(found) > 1:
        named = " or ".join(f"{candidates.dimensions[d]}={','.join(wanted)}" for d in found)
        raise InputError(f"Several attributes have '{one_line(text, 100)}'; write {named}.")
    groups = candidates.groups[found[0]]
    return Protected(found[0], tuple(groups.index(name) for name in wanted))
