"""Where unequal use of useful documents comes from: what was retrieved, or what was picked.

The rule, for one collection, generator, retriever and α. Of each query the inequality of use among
its useful documents is split (see :mod:`fairqr.evaluation.rag.measures.inequality`). Over the
queries with a value come 95% intervals of the means of

* R, the part from retrieval,
* P, the part from picking,
* R − P, paired by query, and
* R − P − S, likewise; S is the part from repetition.

A part is *there* where its whole interval is above 0. The verdict is

* ``retrieval`` where R is there and R − P − S is above 0: where nearly all samples are the same,
  what the generator prefers shows as repetition, and not as picking,
* ``picking`` where P is there and R − P is below 0,
* ``both`` where R and P are there and the interval of R − P holds 0,
* ``cannot be told`` in all other cases, and for fewer than :data:`FEWEST` queries.

The intervals are not corrected for the number of verdicts. ``cannot be told`` does not mean that
there is no inequality.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairqr.evaluation.rag.analysis.frame import Frame, Mean, mean_of
from fairqr.evaluation.rag.analysis.names import Name

__all__ = ["FEWEST", "Diagnosis", "Verdict", "diagnose", "is_above", "is_below"]

Verdict = Literal["retrieval", "picking", "both", "cannot be told"]

FEWEST = 5
"""Fewer queries give no interval worth the name."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Where the inequality of use comes from.

    Attributes:
        verdict: By the rule of the module.
        total: The mean inequality of use; the sum of the three parts.
        retrieval: R.
        picking: P.
        repetition: S, the part that the same answer adds by being served again.
        difference: R − P.
        lead: R − P − S.
    """

    verdict: Verdict
    total: Mean
    retrieval: Mean
    picking: Mean
    repetition: Mean
    difference: Mean
    lead: Mean


def is_above(mean: Mean) -> bool:
    """Return whether the whole interval, of enough queries, is above 0; rounding does not count."""
    return mean.interval is not None and mean.count >= FEWEST and mean.interval.low > 1e-12


def is_below(mean: Mean) -> bool:
    """Return whether the whole interval is below 0; rounding does not count."""
    return mean.interval is not None and mean.interval.high < -1e-12


def diagnose(frame: Frame) -> Diagnosis:
    """Judge the cells of a frame: one collection, generator, retriever and policy."""
    retrieval, picking = frame.by_query(Name.FROM_RETRIEVAL), frame.by_query(Name.FROM_PICKING)
    repetition = frame.by_query(Name.FROM_REPETITION)
    # All parts are there or none is, so the queries are the same.
    differences = {query: retrieval[query] - picking[query] for query in retrieval}
    leads = [differences[query] - repetition[query] for query in differences]
    difference = mean_of(list(differences.values()))
    lead = mean_of(leads)
    exposed, picked = frame.mean(Name.FROM_RETRIEVAL), frame.mean(Name.FROM_PICKING)
    return Diagnosis(
        verdict=_verdict(exposed, picked, difference, lead),
        total=frame.mean(Name.USE_UNEQUAL),
        retrieval=exposed,
        picking=picked,
        repetition=frame.mean(Name.FROM_REPETITION),
        difference=difference,
        lead=lead,
    )


def _verdict(retrieval: Mean, picking: Mean, difference: Mean, lead: Mean) -> Verdict:
    if difference.count < FEWEST:
        return "cannot be told"
    if is_above(retrieval) and is_above(difference) and is_above(lead):
        return "retrieval"
    if is_above(picking) and is_below(difference):
        return "picking"
    even = not is_above(difference) and not is_below(difference)
    return "both" if even and is_above(retrieval) and is_above(picking) else "cannot be told"
