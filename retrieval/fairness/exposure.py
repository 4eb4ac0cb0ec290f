"""How much attention each group gets from a ranking.

A reader looks at rank r with a weight, the discount d(r). The exposure of a group is the sum of
d(r) × membership over the ranks, normalised to a distribution over the groups (Singh & Joachims
2018; FAIR-QR, Chen & Fang 2025).
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator

from fairqr.base.errors import InputError, one_line

FloatArray = NDArray[np.float64]


LONGEST = 50
"""A longer text, in characters, names no discount, unless it lists weights."""

MOST_WEIGHTS = 100
"""So many ranks may have weights of their own."""

DIGITS = 6
"""Weights that are listed have so many decimals."""

_LISTED = re.compile(r"\s*weights\(([\d.,e\s-]{1,2000})\)\s*")


@dataclass(frozen=True)
class Discount:
    """The weight of each rank, counted from 1.

    ========================  =============================================================
    ``log2``                  1/log2(r+1), as in nDCG
    ``trec``                  1/log2(max(r,2)), as in TREC Fair 2021 and 2022
    ``rbp(p)``                (1−p)·p^(r−1), rank-biased precision, 0 < p < 1
    ``top_k(k)``              1 up to rank k, then 0: the machine user of RAG
    ``inverse_log``           1/ln(1+r), as in Zehlike & Castillo (2020)
    ``weights(w1, w2, …)``    those of ranks 1, 2, …, then 0: how one's own users look
    ========================  =============================================================
    """

    kind: Literal["log2", "trec", "rbp", "top_k", "inverse_log", "weights"] = "log2"
    parameter: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        given = self.parameter
        if self.kind == "weights":
            weights = given if isinstance(given, tuple) else ()
            object.__setattr__(self, "parameter", _checked(weights))
            return
        number = None if isinstance(given, tuple) else given
        fits = {
            "rbp": number is not None and 0 < number < 1,
            "top_k": number is not None and number >= 1 and not number % 1,
        }
        if not fits.get(self.kind, self.kind in ("log2", "trec", "inverse_log") and given is None):
            raise InputError(
                f"There is no discount '{self}'; choose log2, trec, inverse_log, rbp(p) with p "
                "between 0 and 1, or top_k(k) with a whole k of at least 1."
            )
        if number is not None:
            # top_k(5) and top_k(5.0) are one discount and must compare equal.
            object.__setattr__(self, "parameter", float(number))

    @classmethod
    def parse(cls, text: str) -> Discount:
        """Read a discount as it is written above, e.g. ``rbp(0.8)``."""
        if listed := _LISTED.fullmatch(text):
            return cls("weights", _numbers(listed[1]))
        told = f"'{one_line(text, LONGEST)}' is not a discount; write log2, trec or rbp(0.8)."
        if len(text) > LONGEST:
            raise InputError(told)
        match = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*(\d*\.?\d+(?:e-?\d+)?)\s*\))?\s*", text)
        if not match:
            raise InputError(told)
        return cls(match[1], float(match[2]) if match[2] else None)  # type: ignore[arg-type]

    def __str__(self) -> str:
        if self.parameter is None:
            return self.kind
        several = self.parameter if isinstance(self.parameter, tuple) else (self.parameter,)
        numbers = (repr(number).removesuffix(".0") for number in several)
        return f"{self.kind}({', '.join(numbers)})"

    def weights(self, n: int) -> FloatArray:
        """Return the weights of ranks 1 to n, shape (n,), read-only."""
        return _weights(self, n)


def _checked(weights: Sequence[float]) -> tuple[float, ...]:
    """Return the weights of ranks, rounded.

    Raises:
        InputError: They are too many, or rise, or the first is 0.
    """
    rounded = tuple(round(float(weight), DIGITS) for weight in weights)
    is_number = all(0 <= weight < math.inf for weight in rounded)
    falls = all(one >= two for one, two in itertools.pairwise(rounded))
    if not 1 <= len(rounded) <= MOST_WEIGHTS or not is_number or not falls or not rounded[0]:
        raise InputError(
            f"The weights of ranks are 1 to {MOST_WEIGHTS} numbers that never rise, the first "
            "above 0, such as weights(1, 0.6, 0.4)."
        )
    return rounded


def _numbers(text: str) -> tuple[float, ...]:
    """Return the numbers between commas.

    Raises:
        InputError: One is none.
    """
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise InputError(f"'{one_line(text, LONGEST)}' are no numbers between commas.") from None


DiscountText = Annotated[
    Discount, BeforeValidator(lambda it: Discount.parse(it) if isinstance(it, str) else it)
]
"""A discount in a model, which may be given as text."""


@functools.lru_cache(maxsize=32)
def _weights(discount: Discount, n: int) -> FloatArray:
    """Compute weights once: a search measures the same few lengths again and again."""
    rank = np.arange(1, n + 1, dtype=np.float64)
    match discount.kind, discount.parameter:
        case "trec", _:
            weights = 1 / np.log2(np.maximum(rank, 2))
        case "rbp", float(p):
            weights = (1 - p) * p ** (rank - 1)
        case "top_k", float(k):
            weights = (rank <= k).astype(np.float64)
        case "inverse_log", _:
            weights = 1 / np.log1p(rank)
        case "weights", tuple(given):
            weights = np.zeros(n)
            weights[: len(given)] = given[:n]
        case _:
            weights = 1 / np.log2(rank + 1)
    weights.flags.writeable = False
    return np.asarray(weights)


LOG2 = Discount()
TREC = Discount("trec")
INVERSE_LOG = Discount("inverse_log")


def group_exposure(
    memberships: ArrayLike, discount: Discount = LOG2, k: int | None = None
) -> FloatArray:
    """Return the exposure of each group, not normalised.

    Args:
        memberships: Shape (…, n, G): for each ranking the documents in rank order, and the share
            of each group in each of them. Rows that sum to less than 1 have unknown mass.
        discount: The weight of each rank.
        k: How many of the first ranks count; all by default.

    Returns:
        Shape (…, G), in units of the discount.
    """
    members = np.asarray(memberships, dtype=np.float64)[..., :k, :]
    return np.asarray(np.matmul(discount.weights(members.shape[-2]), members))


def normalise(exposures: ArrayLike) -> FloatArray:
    """Scale vectors over groups, shape (…, G), to sum to 1; a vector of zeros stays as it is."""
    values = np.asarray(exposures, dtype=np.float64)
    total = values.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(values, total, out=np.zeros_like(values), where=total > 0))


def exposure(memberships: ArrayLike, discount: Discount = LOG2, k: int | None = None) -> FloatArray:
    """Return the distribution of exposure over the groups.

    ε_g = Σ_r d(r)·membership_g(r) / Σ_g' Σ_r d(r)·membership_g'(r), over the first k ranks.

    Arguments are as in :func:`group_exposure`. The result sums to 1, or is all zeros if no document
    of the ranking has a known group: the exposure is then undefined.
    """
    return normalise(group_exposure(memberships, discount, k))


def exposure_and_unknown(
    memberships: ArrayLike, discount: Discount = LOG2
) -> tuple[FloatArray, FloatArray]:
    """Return the :func:`exposure`, and the share of it all that went to unknown mass.

    Returns:
        Shapes (…, G) and (…). The share is in [0, 1], and 0 for an empty ranking.
    """
    members = np.asarray(memberships, dtype=np.float64)
    known = group_exposure(members, discount)
    total = float(discount.weights(members.shape[-2]).sum())
    unknown = 1 - known.sum(axis=-1) / total if total else np.zeros(known.shape[:-1])
    return normalise(known), np.clip(unknown, 0, 1)


def exposure_ratio(protected: ArrayLike, discount: Discount = INVERSE_LOG) -> float | None:
    """Return the mean exposure of protected items divided by the mean exposure of the others.

    Exposure(G) = (1/|G|) Σ_{i∈G} v(rank_i), v(a) = 1/log(1+a), over the whole list; the base of the
    logarithm cancels (Wang et al. 2024, section 3.2.2; Singh & Joachims 2018).

    Args:
        protected: Whether the item at each rank belongs to the protected group, shape (n,).
        discount: v.

    Returns:
        1 if the groups are treated alike, more if the protected group is ranked higher; None if
        either group has no items, or if the others get no exposure (possible with a discount that
        covers only the first ranks).
    """
    mask = np.asarray(protected, dtype=bool)
    if mask.all() or not mask.any():
        return None
    exposed = discount.weights(mask.size)
    others = float(exposed[~mask].mean())
    return float(exposed[mask].mean()) / others if others > 0 else None


def item_exposure(
    rankings: ArrayLike, n: int, times: ArrayLike | None = None, gained: ArrayLike = 1.0
) -> FloatArray:
    """Return ε, the expected exposure of each document to a machine user, shape (n,).

    ε_i = (1/N) Σ_s MU(rank_s(i)), where MU is 1 for documents that are read and 0 for the others.
    Each is in [0, 1], and all of them sum to the number of documents read. For attributed exposure,
    a sample only counts if its answer used the document. (That formula is reconstructed, since it
    was illegible in our copy of the paper.)

    Args:
        rankings: Shape (N, r): positions, each row cut at k.
        n: How many documents the pool has.
        times: Shape (N,): how often each row was drawn; by default once.
        gained: What a place counts, such as whether its document was used, which gives ε^a; of a
            shape that goes with (N, r).
    """
    ranked = np.asarray(rankings, dtype=np.intp)
    weights = np.ones(len(ranked)) if times is None else np.asarray(times, dtype=np.float64)
    values = np.broadcast_to(np.asarray(gained, dtype=np.float64), ranked.shape)
    total = np.bincount(ranked.ravel(), (values * weights[:, None]).ravel(), n)
    return np.asarray(total / weights.sum(), dtype=np.float64)


def intersection(memberships: Sequence[ArrayLike]) -> FloatArray:
    """Return the memberships in the product of several attributes.

    A document that is half European and all female is half «female × European». Unknown mass of one
    attribute is unknown in the product.

    Args:
        memberships: One array of shape (n, G_a) for each attribute a.

    Returns:
        Shape (n, Π G_a), the groups of the last attribute varying fastest.
    """
    product, *others = (np.asarray(members, dtype=np.float64) for members in memberships)
    for other in others:
        pairs = np.einsum("ng,nh->ngh", product, other)
        product = pairs.reshape(len(product), product.shape[1] * other.shape[1])
    return product


def absent_as_one(members: FloatArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return memberships and target with all groups that no document has as one, the last.

    No order gives these groups any exposure, and without exposure the share of a group in the
    Jensen–Shannon divergence is linear in its target. So the divergence of an order stays.

    Args:
        members: Shape (n, G).
        target: ε*, shape (G,).

    Returns:
        Shapes (n, H + 1) and (H + 1,), of the H groups that some document has.
    """
    is_present = np.asarray(members.any(axis=0))
    return (
        np.column_stack([members[:, is_present], np.zeros(len(members))]),
        np.append(target[is_present], target[~is_present].sum()),
    )


def groups_held(memberships: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """Return the groups that each document has, the largest share first, and these shares.

    Args:
        memberships: Shape (n, G).

    Returns:
        Both of shape (n, m), where m is the most groups of a document, at least 1. Documents with
        fewer groups have the first of all again, with a share of 0.
    """
    documents, groups = np.nonzero(memberships)
    shares = np.asarray(memberships)[documents, groups]
    largest_first = np.lexsort((-shares, documents))
    counts = np.bincount(documents, minlength=len(memberships))
    nth = np.arange(len(documents)) - np.repeat(counts.cumsum() - counts, counts)
    shape = (len(memberships), max(1, int(counts.max(initial=0))))
    held = np.zeros(shape, dtype=np.intp)
    held[documents, nth] = groups[largest_first]
    of_held = np.zeros(shape)
    of_held[documents, nth] = shares[largest_first]
    return held, of_held


def distinct_rows(rows: FloatArray) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return the distinct rows of an array, in order of their first place, and each row's number.

    Args:
        rows: Memberships of documents, shape (n, G); documents mostly share their groups.

    Returns:
        Shapes (m, G) and (n,).
    """
    whole = np.ascontiguousarray(rows, dtype=np.float64)
    # Compare rows as bytes, which creates no Python object for each number.
    held = whole.view(f"V{whole.itemsize * whole.shape[1]}").ravel().tolist() if whole.size else []
    seen = {row: number for number, row in enumerate(dict.fromkeys(held))}
    numbers = np.fromiter(map(seen.__getitem__, held), np.intp, len(held))
    return np.frombuffer(b"".join(seen)).reshape(len(seen), whole.shape[1]), numbers
