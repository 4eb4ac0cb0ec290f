"""How much more attention one group gets than all others, item by item."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fairqr.retrieval.fairness.exposure import INVERSE_LOG, Discount


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
