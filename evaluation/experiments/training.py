"""Weights for the systems that need them: trained on some topics, used on others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.qrels import Qrels
from fairqr.graph.search.context import Context
from fairqr.graph.search.target import estimate_target, vector_of
from fairqr.retrieval.engines.engine import SearchEngine, require
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import relevance_by_rank
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.rerankers import deltr, dlf, learning
from fairqr.retrieval.sources.schema import validated

TRAINED: dict[str, tuple[type[Any], Callable[[Sequence[Any], Any], learning.TrainedModel]]] = {
    "deltr": (deltr.DeltrTraining, deltr.train_deltr),
    "dlf": (learning.TrainingOptions, dlf.train_dlf),
}
"""The options and the training of each method that has weights."""


def folds_of(topics: Sequence[str], folds: int) -> list[list[str]]:
    """Deal topics into folds at random: a list of the topics of each fold.

    The seed is fixed. All seeds of an experiment share the weights of a fold, so the folds must be
    the same for all of them, or a topic would get weights that were trained on it.
    """
    order = np.random.default_rng(0).permutation(len(topics))
    return [[topics[i] for i in sorted(order[fold::folds])] for fold in range(folds)]


async def gather(
    engine: SearchEngine, queries: Mapping[str, str], qrels: Qrels, context: Context, *, depth: int
) -> list[learning.TopicExample]:
    """Collect what to train on; the target is the one that a search estimates.

    Args:
        engine: It has the documents.
        queries: The query of each topic.
        qrels: Judgements.
        context: The search's, which names attributes, target and discount.
        depth: How many documents to take for each topic.
    """
    dimensions = dimensions_of(engine.schema, context.attributes, intersect=context.intersect)
    shares: Mapping[str, FloatArray] = {}
    if context.effective_target.parts.get("corpus"):
        require(engine, "corpus_shares", "The target part 'corpus'")
        shares = await engine.corpus_shares()

    def target_of(retrieved: Ranking, table: DocumentTable) -> list[FloatArray]:
        by_rank = relevance_by_rank(len(retrieved.ids)).tolist()
        relevance = dict(zip(retrieved.ids, by_rank, strict=True))
        target = estimate_target(table, dimensions, retrieved, context, shares, relevance)
        return [vector_of(dimension, target[dimension.name]) for dimension in dimensions]

    return await learning.gather_examples(
        engine, queries, qrels, dimensions, target_of, depth=depth, discount=context.discount
    )


async def train(
    method: str,
    examples: Sequence[learning.TopicExample],
    topics: Collection[str],
    options: Mapping[str, Any],
) -> learning.TrainedModel:
    """Train on the examples of some topics.

    Raises:
        InputError: An option is wrong, or there is nothing to learn from.
    """
    model, trainer = TRAINED[method]
    checked = validated(model, dict(options), f"The training of {method}", InputError)
    chosen = [example for example in examples if example.topic in topics]
    return await asyncio.to_thread(trainer, chosen, checked)
