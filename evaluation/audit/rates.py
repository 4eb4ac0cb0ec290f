"""Rates of groups over all queries, Σ above / Σ below, and how they compare with the best rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairqr.evaluation import estimates
from fairqr.evaluation.audit.figures import within
from fairqr.evaluation.audit.label_errors import LabelErrors
from fairqr.evaluation.estimates import Estimate, divided, middle_of, wider_by
from fairqr.retrieval.fairness.exposure import FloatArray


def have_values(values: FloatArray) -> NDArray[np.bool_]:
    """Return which queries have values, shape (n,), of those of each group, shape (n, G)."""
    return np.asarray(~np.isnan(values).any(axis=1))


def shares_of_queries(above: FloatArray, below: FloatArray, weights: FloatArray) -> list[Estimate]:
    """Return Σ above / Σ below of each group, over the queries that have both, shape (n, G)."""
    rows = have_values(above + below)
    return estimates.shares(above[rows], below[rows], weights[rows])


def rates_of_queries(
    above: FloatArray, below: FloatArray, weights: FloatArray, labels: LabelErrors
) -> list[Estimate]:
    """Return the same where both change if labels are corrected."""
    if labels.confusion is None:
        return shares_of_queries(above, below, weights)
    rows = have_values(above + below)
    weights = weights[rows]
    parts = np.concatenate([above[rows], below[rows]], axis=1)
    by_logit = estimates.estimate(parts, weights, labels.rates, scale="logit")
    unscaled = estimates.estimate(parts, weights, labels.rates, scale="own")
    ends = middle_of(labels.drawn_rates(weights @ parts))
    corrected = []
    for scaled, plain, drawn in zip(by_logit, unscaled, ends, strict=True):
        # Without some query, or with all, corrected rates may be beyond 0 or 1, and have no logit.
        rate = plain if np.isnan(scaled.low) else scaled
        corrected.append(within(wider_by(rate, drawn), 0.0))
    return corrected


class RelativeRates:
    """Rates of groups, each divided by the rate of a reference group or by the highest of all.

    Args:
        above: Shape (n, G).
        below: Shape (n, G).
        whole: What ``above`` can be at most, shape (n, G).
        weights: The weights of the queries, shape (n,).
        labels: How often labels are wrong.
        reference: The position of the reference group; None compares with the highest rate.
    """

    def __init__(
        self,
        above: FloatArray,
        below: FloatArray,
        whole: FloatArray,
        weights: FloatArray,
        labels: LabelErrors,
        *,
        reference: int | None,
    ) -> None:
        rows = have_values(above + below)
        self._above = above[rows]
        self._below = below[rows]
        self._whole = whole[rows]
        self._weights = weights[rows]
        self._labels = labels
        self._parts = np.concatenate([self._above, self._below], axis=1)
        self._totals = self._weights @ self._parts
        self._rates = labels.rates(self._totals)
        self._has_reference = reference is not None
        # The group that leads stays the same without a query, so that its own ratio is 1.
        highest = int(np.nan_to_num(self._rates).argmax())
        self._leader = highest if reference is None else reference

    def estimates(self) -> list[Estimate]:
        """Return the ratio of each group; NaN where the leading group has no rate."""
        queries = len(self._above)
        size = self._above.shape[1]
        if not self._rates[self._leader] > 0:
            return [Estimate(np.nan, np.nan, np.nan, queries)] * size
        # Which group leads may be chance, so all others are compared with it at the same time
        # (Hsu 1984, multiple comparisons with the best), and no ratio is above 1.
        ratios = estimates.estimate(
            self._parts,
            self._weights,
            self._relative,
            scale="log",
            telling=self._telling(),
            comparisons=1 if self._has_reference else max(1, size - 1),
        )
        if self._labels.confusion is None:
            ratios = self._with_ends_of_shares(ratios)
        else:
            ratios = self._with_wrong_labels(ratios)
        ratios[self._leader] = self._of_leader(ratios)
        most = np.inf if self._has_reference else 1.0
        return [within(ratio, 0.0, most) for ratio in ratios]

    def _relative(self, totals: FloatArray) -> FloatArray:
        """Return the rates divided by that of the leading group, shape (…, G)."""
        rates = self._labels.rates(totals)
        of_leader = rates[..., self._leader : self._leader + 1]
        return divided(rates, of_leader)

    def _telling(self) -> FloatArray:
        """Return how many effective queries say something of each ratio, shape (G,)."""
        by_query = self._weights[:, None]
        with_some = estimates.effective_queries(by_query * (self._above > 0))
        possible = estimates.effective_queries(by_query * (self._below > 0))
        rest = (self._whole - self._above).round(10)
        with_rest = estimates.effective_queries(by_query * (rest > 0))
        of_groups = np.minimum(with_some, possible)
        of_pairs = np.minimum(of_groups, of_groups[self._leader])
        return np.asarray(np.minimum(of_pairs, with_rest))

    def _with_ends_of_shares(self, ratios: list[Estimate]) -> list[Estimate]:
        """Widen intervals where queries that are all alike leave the spread of a rate unknown."""
        shares = estimates.shares(self._above, self._whole, self._weights)
        share = shares[self._leader]
        rates = estimates.ratios(self._above, self._below, self._weights)
        least_of_leader = rates[self._leader].low
        if np.isnan(least_of_leader):
            least_of_leader = share.low * self._rates[self._leader] / share.value
            if share.low > 0:  # other queries might show another rate
                factors = (share.value / share.high, share.value / share.low)
                ratios = [
                    wider_by(ratio, [ratio.value * factor for factor in factors], is_ratio=True)
                    for ratio in ratios
                ]
        if not least_of_leader > 0:
            return ratios
        scale = divided(self._weights @ self._whole, self._weights @ self._below)
        for group in np.flatnonzero(self._rates == 0):
            high = float(shares[group].high * scale[group] / least_of_leader)
            ratios[group] = replace(ratios[group], low=shares[group].low, high=high)
        return ratios

    def _with_wrong_labels(self, ratios: list[Estimate]) -> list[Estimate]:
        """Widen intervals by what the checked samples of labels leave open."""
        drawn = self._labels.drawn_rates(self._totals)
        of_leader = drawn[:, self._leader : self._leader + 1]
        # Corrected rates may be below 0, and then have no logarithm.
        ends = middle_of(divided(drawn, of_leader))
        return [
            wider_by(ratio, end, is_ratio=True) for ratio, end in zip(ratios, ends, strict=True)
        ]

    def _of_leader(self, ratios: list[Estimate]) -> Estimate:
        """Return the ratio of the group that leads: 1, with an interval that ends there.

        The leading group may be as far below the best as another group may be above it. Where
        labels may be wrong, a small group may lead by chance alone, and its ratio may be anything.
        """
        others = [ratio.high for ratio in ratios if ratio is not ratios[self._leader]]
        least = 1.0 if self._has_reference else float(1 / np.max([1.0, *others]))
        if least < 1 and self._labels.confusion is not None:
            least = 0.0
        high = np.nan if np.isnan(least) else 1.0
        return Estimate(1.0, least, high, len(self._above))
