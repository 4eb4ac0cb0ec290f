"""Which documents are useful, which queries are kept, and what a set of labels is like."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairqr.evaluation.rag.collection import RagQuery
from fairqr.evaluation.rag.records import LabelRecord

__all__ = [
    "NO_BASELINE",
    "LabelSummary",
    "summarise_labels",
    "useful_ids",
    "useful_positions",
    "why_dropped",
]

NO_BASELINE = "the answer without documents failed"
"""Why a query is dropped of which no gain is known."""


def useful_ids(label: LabelRecord) -> frozenset[str]:
    """Return the ids of the documents whose gain is positive."""
    return frozenset(id_ for id_, gain in label.gains.items() if gain is not None and gain > 0)


def useful_positions(query: RagQuery, label: LabelRecord) -> tuple[int, ...]:
    """Return the places of the useful documents in the pool of a query."""
    useful = useful_ids(label)
    return tuple(place for place, document in enumerate(query.pool) if document.id in useful)


def why_dropped(label: LabelRecord, min_useful: int) -> str | None:
    """Return why an experiment leaves a query out, or None where it keeps it."""
    if label.without is None:
        return NO_BASELINE
    if len(useful_ids(label)) < min_useful:
        return f"fewer than {min_useful} useful documents"
    return None


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """What a set of labels is like, as Appendix D of the Fair RAG paper tells it.

    Attributes:
        labelled: How many queries have labels.
        kept: How many of them have enough useful documents; what follows is of these.
        documents: How many documents their pools hold together.
        unlabelled: How many of those have no gain, since the generator failed.
        useful: How many are useful.
        useful_mean: Per query; None where no query is kept.
        useful_sd: The sample standard deviation; None with fewer than two queries.
        share: Of useful documents among those with a gain, in [0, 1]; None where there are none.
        dropped: How many queries were dropped, by reason.
    """

    labelled: int
    kept: int
    documents: int
    unlabelled: int
    useful: int
    useful_mean: float | None
    useful_sd: float | None
    share: float | None
    dropped: Mapping[str, int]


def summarise_labels(labels: Iterable[LabelRecord], min_useful: int = 2) -> LabelSummary:
    """Describe labels.

    Args:
        labels: One for each query.
        min_useful: Queries with fewer useful documents count as dropped.
    """
    listed = list(labels)
    reasons = [why_dropped(label, min_useful) for label in listed]
    kept = [label for label, reason in zip(listed, reasons, strict=True) if reason is None]
    counts = [len(useful_ids(label)) for label in kept]
    gains = [gain for label in kept for gain in label.gains.values()]
    known = [gain for gain in gains if gain is not None]
    return LabelSummary(
        labelled=len(listed),
        kept=len(kept),
        documents=len(gains),
        unlabelled=len(gains) - len(known),
        useful=sum(counts),
        useful_mean=statistics.fmean(counts) if counts else None,
        useful_sd=statistics.stdev(counts) if len(counts) > 1 else None,
        share=sum(counts) / len(known) if known else None,
        dropped=dict(Counter(reason for reason in reasons if reason is not None)),
    )
