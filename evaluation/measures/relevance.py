"""Measures of relevance, as trec_eval defines them.

A query without a relevant document has no value (trec_eval says 0, and counts it in the mean), a
query that the run lacks counts as 0 (as with ``trec_eval -c``). P@k alone has a value, 0, without a
relevant document: it divides by nothing that could be 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairqr.evaluation.batch import Batch
from fairqr.evaluation.measures.base import Convention, Need, RankingMeasure
from fairqr.evaluation.relevance import average_precision, ndcg, precision, recall, reciprocal_rank
from fairqr.evaluation.scores import Reason, Scores, Undefined
from fairqr.retrieval.fairness.exposure import LOG2, TREC, Discount


class _Relevance(RankingMeasure):
    @property
    def counts_missing(self) -> bool:
        """A query that the run lacks counts as 0."""
        return True

    @property
    def needs(self) -> frozenset[Need]:
        """Judgements."""
        return frozenset({Need.QRELS})

    def why_undefined(self, batch: Batch) -> Mapping[int, Undefined]:
        """Return the queries to which nothing is relevant."""
        bare = np.flatnonzero(batch.relevant_counts == 0).tolist()
        return dict.fromkeys(bare, Undefined(Reason.NO_RELEVANT))


@dataclass(frozen=True, kw_only=True)
class NDCG(_Relevance):
    """nDCG@k = DCG of the ranking / DCG of the best one, in [0, 1]; 1 is best.

    See :func:`fairqr.evaluation.relevance.ndcg`.

    Attributes:
        discount: The weight of each rank: ``log2``, 1/log2(r+1), by default.
        gains: ``graded``: a document's gain is its grade, as in trec_eval. ``binary``: it is
            relevant or not, as in FAIR-QR.
        convention: ``trec2022`` takes that track's discount, 1/log2(max(r,2)), and binary gains.
    """

    name = "nDCG"
    summary = "discounted cumulative gain, divided by the best possible"
    example = "nDCG@20"
    choices: ClassVar = {"gains": ("graded", "binary"), "convention": ("trec2022",)}
    set_by_convention = ("discount", "gains")

    discount: Discount = LOG2
    gains: str = "graded"
    convention: Convention | None = None

    def of_rankings(self, batch: Batch) -> Scores:
        """Return nDCG of each ranking."""
        discount = TREC if self.convention else self.discount
        gains, ideal = batch.grades(self.k), batch.ideal_grades(self.k)
        if self.convention or self.gains == "binary":
            gains, ideal = (gains > 0).astype(np.float64), (ideal > 0).astype(np.float64)
        return Scores(ndcg(gains, ideal[batch.owner], discount, self.k))


@dataclass(frozen=True, kw_only=True)
class Precision(_Relevance):
    """P@k: the relevant share of the first k ranks, in [0, 1]; 1 is best.

    A list shorter than k is divided by k too.
    """

    name = "P"
    aliases = ("Precision",)
    cutoff = True
    summary = "how many of the first k documents are relevant, divided by k"
    example = "P@10"

    def why_undefined(self, batch: Batch) -> Mapping[int, Undefined]:
        """Return nothing: P@k always has a value."""
        return {}

    def of_rankings(self, batch: Batch) -> Scores:
        """Return P@k of each ranking."""
        return Scores(precision(batch.relevance(self.k), self.depth))


@dataclass(frozen=True, kw_only=True)
class Recall(_Relevance):
    """R@k: the share of the relevant documents that stand in the first k ranks, in [0, 1]."""

    name = "R"
    aliases = ("Recall",)
    cutoff = True
    summary = "how many of the relevant documents stand in the first k ranks"
    example = "R@100"

    def of_rankings(self, batch: Batch) -> Scores:
        """Return R@k of each ranking."""
        totals = batch.relevant_counts[batch.owner]
        return Scores(recall(batch.relevance(self.k), totals, self.k))


@dataclass(frozen=True, kw_only=True)
class AP(_Relevance):
    """Average precision, whose mean is MAP, in [0, 1]; 1 is best."""

    name = "AP"
    aliases = ("MAP",)
    summary = "average precision; its mean over the queries is MAP"
    example = "AP"

    def of_rankings(self, batch: Batch) -> Scores:
        """Return AP of each ranking."""
        totals = batch.relevant_counts[batch.owner]
        return Scores(average_precision(batch.relevance(self.k), totals, self.k))


@dataclass(frozen=True, kw_only=True)
class RR(_Relevance):
    """Reciprocal rank of the first relevant document, whose mean is MRR, in [0, 1]; 1 is best."""

    name = "RR"
    aliases = ("MRR",)
    summary = "1/rank of the first relevant document; its mean over the queries is MRR"
    example = "RR"

    def of_rankings(self, batch: Batch) -> Scores:
        """Return RR of each ranking."""
        return Scores(reciprocal_rank(batch.relevance(self.k), self.k))
