"""The policies of an experiment, and the rankings that are drawn from each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.evaluation.rag.records import Policy
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.sampling.oracle import sample_oracle
from fairqr.retrieval.sampling.plackett_luce import PlackettLuce, deterministic
from fairqr.retrieval.sampling.streams import stream_of

__all__ = ["Draw", "Key", "Rankings", "draw_rankings", "draws_of"]

Key = tuple[str, str, str, str, float | None, int, str]
"""See :attr:`fairqr.evaluation.rag.records.PolicyRecord.key`."""

Rankings = tuple[tuple[int, ...], ...]
"""Positions in a pool, the best first."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What rankings are drawn from; see :class:`fairqr.evaluation.rag.records.PolicyRecord`."""

    retriever: str
    policy: Policy
    alpha: float | None
    seed: int

    def key(self, collection: str, generator: str, query: str) -> Key:
        """Return the key of the record of a query."""
        return (
            collection,
            generator,
            self.retriever,
            self.policy,
            self.alpha,
            self.seed,
            query,
        )

    def samples(self, experiment: FairRagExperiment) -> int:
        """Return how many rankings are drawn."""
        return 1 if self.policy == "deterministic" else experiment.samples

    def answered(self, experiment: FairRagExperiment) -> int:
        """Return from how many of them answers are generated."""
        return 1 if self.policy == "deterministic" else experiment.answered


def draws_of(experiment: FairRagExperiment) -> list[Draw]:
    """Return what rankings are drawn from: each retriever as it is and at every α, and the oracle.

    The deterministic ranking has no chance in it, and stands under every seed, so that the policies
    of a seed can be held against it.
    """
    draws: list[Draw] = []
    for seed in experiment.seeds:
        for retriever in experiment.retrievers:
            draws.append(Draw(retriever, "deterministic", None, seed))
            draws += [Draw(retriever, "plackett-luce", alpha, seed) for alpha in experiment.alphas]
        draws.append(Draw("", "oracle", None, seed))
    return draws


def draw_rankings(
    draw: Draw,
    scores: FloatArray | None,
    useful: Sequence[int],
    size: int,
    experiment: FairRagExperiment,
    names: Sequence[str],
) -> Rankings:
    """Draw the rankings of one query.

    Args:
        draw: From what.
        scores: The retriever's, shape (n,); None for the oracle.
        useful: The positions of the useful documents, for the oracle.
        size: n, how many documents the pool has.
        experiment: How many, and how long.
        names: Of the collection and the query, which the stream is derived from, so that neither
            order nor concurrency changes what is drawn.

    Raises:
        InputError: The scores are no finite numbers.
    """
    if scores is None:
        is_useful = np.zeros(size, dtype=bool)
        is_useful[list(useful)] = True
        stream = stream_of(draw.seed, *names, draw.policy)
        drawn = sample_oracle(is_useful, experiment.samples, experiment.k, stream)
    elif draw.alpha is None:
        drawn = deterministic(scores, experiment.k)[np.newaxis, :]
    else:
        stream = stream_of(draw.seed, *names, draw.retriever, f"{draw.alpha:g}")
        policy = PlackettLuce.of(scores, draw.alpha, experiment.form)
        drawn = policy.sample(experiment.samples, experiment.k, stream)
    return tuple(tuple(ranking) for ranking in drawn.tolist())
