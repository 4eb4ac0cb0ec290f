"""How far rankings are from the target after exchanges, where documents have few of many groups.

An exchange of two documents changes what their groups get, and maybe the sum T that all groups get,
since documents may lack labels. With h(x) = x·log2 x, exposures g and the target ε*,

    JS(ε*, g/T) = (Σ h(g) / T + log2 T + Σ h(ε*) − Σ h(g + T·ε*) / T) / 2 + 1

since Σ g = T and Σ ε* = 1. So we need the two sums over g. They are known before the exchange, but
for its few groups; the second one for each T that occurs, of which there are few. With hundreds of
groups that is a tenth of the work of summing over all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairqr.retrieval.fairness.exposure import FloatArray, groups_held
from fairqr.retrieval.fairness.objective import LEAST, Positions, times_log

EXACT = 12
"""Sums T that are equal when rounded to this many digits are one."""


class Touched(NamedTuple):
    """Exchanges of the patterns of two ranks, each array of shape (n,).

    Attributes:
        sequence: The number of the sequence that each happens in.
        rising: The pattern that gains exposure.
        falling: The pattern that loses it.
        gained: How much it is.
    """

    sequence: Positions
    rising: Positions
    falling: Positions
    gained: FloatArray


class _Changes(NamedTuple):
    """What exchanges change, both arrays of shape (n, K).

    Attributes:
        groups: The groups that they touch.
        more: How much more each of them gets; 0 where there are fewer.
    """

    groups: Positions
    more: FloatArray


class SparseAttribute:
    """An attribute of which each pattern has few of the groups.

    Args:
        patterns: The memberships of each pattern, shape (P, G).
        target: ε*, shape (G,), sums to 1.
    """

    def __init__(self, patterns: FloatArray, target: FloatArray) -> None:
        self._patterns = patterns
        self._labelled = patterns.sum(axis=1)
        self._groups, self._shares = groups_held(patterns)
        self._target = target
        self._of_target = times_log(target)

    def after(self, given: FloatArray, exchanges: Touched) -> tuple[FloatArray, FloatArray]:
        """Return JS after exchanges, in bits, and what all groups then get.

        Args:
            given: What the groups get in each sequence, shape (G, m), not normalised.
            exchanges: The exchanges.

        Returns:
            Both of shape (n,). Where the groups get nothing, JS is not defined, and any number.
        """
        of = exchanges.sequence
        more_labelled = self._labelled[exchanges.rising] - self._labelled[exchanges.falling]
        total = given.sum(axis=0)[of] + exchanges.gained * more_labelled
        scale = np.maximum(total, LEAST)
        changes = self._changes(exchanges)
        before = given[changes.groups, of[:, None]]
        # Rounding may leave less than nothing.
        then = np.maximum(before + changes.more, 0.0)
        of_given = times_log(given)
        changed = times_log(then) - of_given[changes.groups, of[:, None]]
        own = of_given.sum(axis=0)[of] + changed.sum(axis=1)
        aim = scale[:, None] * self._target[changes.groups]
        with_target = times_log(then + aim) - times_log(before + aim)
        both = self._with_target(given, of, scale) + with_target.sum(axis=1)
        bits = ((own - both) / scale + np.log2(scale) + self._of_target.sum()) / 2 + 1
        return np.clip(bits, 0.0, 1.0), total

    def _changes(self, exchanges: Touched) -> _Changes:
        """Return what exchanges change of which groups, each group once."""
        rising = exchanges.rising[:, None]
        falling = exchanges.falling[:, None]
        of_rising = self._groups[exchanges.rising]
        of_falling = self._groups[exchanges.falling]
        held = self._shares[exchanges.rising]
        lost = self._shares[exchanges.falling]
        # A group of both patterns counts where it rises. Patterns with fewer groups have others
        # with a share of 0, which may be groups of the other pattern.
        more_of_rising = np.where(held > 0, held - self._patterns[falling, of_rising], 0.0)
        is_in_both = self._patterns[rising, of_falling] > 0
        more_of_falling = np.where(is_in_both, 0.0, -lost)
        more = np.concatenate([more_of_rising, more_of_falling], axis=1)
        groups = np.concatenate([of_rising, of_falling], axis=1)
        return _Changes(groups, exchanges.gained[:, None] * more)

    def _with_target(self, given: FloatArray, of: Positions, total: FloatArray) -> FloatArray:
        """Return Σ h(g + T·ε*) of sequences as they are, for the T of each exchange, shape (n,)."""
        totals, places = np.unique(total.round(EXACT), return_inverse=True)
        has_any = given.any(axis=1)
        aims = self._target[has_any, None, None] * totals
        of_present = times_log(given[has_any][..., None] + aims).sum(axis=0)
        absent = self._target[~has_any].sum()
        of_absent = times_log(totals) * absent + totals * self._of_target[~has_any].sum()
        return np.asarray((of_present + of_absent)[of, places])
