"""What a model said about a query before, as evidence for a list that somebody else retrieved.

No model is asked while somebody waits for a list. The replies to the questions of a first round are
kept (:mod:`fairqr.agents.models.cache`), whether a search asked them or :meth:`LearntWords.learn`
did afterwards. With the words in them, each document is judged as in a search: by the original
query, by those of the topic and by those of the groups, in log-odds
(:func:`fairqr.retrieval.fairness.relevance.combined`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from fairqr.agents.models.cache import asking_with
from fairqr.agents.profiles.finding import Profiles
from fairqr.agents.refiners.refiner import GroupRequest, TopicRefiner, TopicRequest
from fairqr.base.errors import FairqrError
from fairqr.base.loops import run_together
from fairqr.graph.search.context import Context
from fairqr.graph.search.models import Model
from fairqr.graph.search.names import NamedText, lookup_of_named, only_holders
from fairqr.graph.search.parts import SearchParts
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.rankers import Rankers
from fairqr.graph.search.records import ranking_record
from fairqr.graph.search.result import GroupKey
from fairqr.graph.search.state import QueryRecord, SearchState, with_update
from fairqr.graph.search.words import (
    Answers,
    after_refinement,
    original_query,
    refined_queries,
)
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import Hits, SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension, dimensions_of
from fairqr.retrieval.sources.schema import UNKNOWN

WAITING = 100
"""How many queries may wait until the model is asked about them; others must come again."""

ASKED_AGAIN = 600.0
"""Seconds after which a model that gave no words for a query is asked about it again."""

REMEMBERED = 10_000
"""How many queries we remember together with the time when the model was asked."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Learnt:
    """The words that a model gave for a query.

    Attributes:
        model: The name of the model.
        state: The state of a search that was given these words, before it searches with them.
        queries: The queries with these words.
    """

    model: str
    state: SearchState
    queries: list[QueryRecord]


class LearntWords:
    """Finds the words that a model gave for a query, and how much they count.

    Args:
        model: The model, which keeps its replies.
        prompts: The library of prompts; defaults to the shipped prompts and yours.

    Attributes:
        name: The name of the model.
    """

    def __init__(self, model: Model, prompts: PromptLibrary | None = None) -> None:
        self.name = model.name
        self._model = model
        self._rankers = Rankers.of(None, model, prompts)
        self._profiles = Profiles()

    async def of(self, engine: SearchEngine, context: Context, query: str) -> Learnt | None:
        """Return the words that are kept for a query; None if no words count."""
        with asking_with(only_kept=True):
            return await self.learn(engine, context, query)

    async def learn(self, engine: SearchEngine, context: Context, query: str) -> Learnt | None:
        """Ask the model about the topic and the groups, as searches do, unless that is kept.

        Of many groups, it is asked about the first ``max_groups``.

        Args:
            engine: Its attributes have the groups that the model is asked about.
            context: What to aim at, and with which prompts to ask.
            query: What was searched for.

        Returns:
            The words; None if no words count.
        """
        parts = SearchParts(
            engine=engine,
            model=self._model,
            rankers=self._rankers,
            default=None,
            profiles=self._profiles,
        )
        weights = parts.trust(context).weights
        if not context.words_are_evidence or not weights.any():
            return None
        refiner = parts.refiner(context)
        if refiner is None or not isinstance(refiner, TopicRefiner):
            return None

        dimensions = dimensions_of(engine.schema, context.attributes, intersect=context.intersect)
        keys = _groups_to_ask_about(dimensions)[: context.max_groups]
        options: dict[str, Any] = {"seed": context.seed, "temperature": context.temperature}
        about_topic = refiner.refine_topic(TopicRequest(query, **options))
        about_groups = [refiner.refine(GroupRequest(query, *key, **options)) for key in keys]
        topic, *groups = await run_together([about_topic, *about_groups])

        answers = Answers(topic, dict(zip(keys, groups, strict=True)))
        state = _first_round(query, weights.model_dump())
        state = with_update(state, after_refinement(state, context, answers))
        queries = refined_queries(state, context)
        return Learnt(self.name, state, queries) if queries else None


def _groups_to_ask_about(dimensions: Sequence[Dimension]) -> list[GroupKey]:
    """Return all groups that are known before a search; open attributes have none."""
    keys = []
    for dimension in dimensions:
        if not dimension.is_open:
            keys += [(dimension.name, group) for group in dimension.groups if group != UNKNOWN]
    return keys


def _first_round(query: str, weights: dict[str, float]) -> SearchState:
    """Return the state of a search that has not asked its model yet."""
    state: dict[str, Any] = {
        "query": query,
        "weights": weights,
        "rankings": [],
        "lookups": [],
        "iterations": [],
        "topic": None,
        "words": {},
        "refinements": [],
    }
    return cast("SearchState", state)


async def with_words(
    engine: SearchEngine,
    context: Context,
    learnt: Learnt,
    hits: Hits,
    by_words: Sequence[Hits],
    texts: Sequence[str],
    titles: Sequence[str],
) -> Hits:
    """Return a list with the probability that each document is relevant by all evidence.

    Args:
        engine: Its schema has the attributes.
        context: Says which of them count.
        learnt: The words.
        hits: The list with its relevance by the original query.
        by_words: The same documents, with their relevance by each query of the words; without it
            if texts were not encoded yet.
        texts: The texts of the documents.
        titles: Their titles, empty where a document has none.
    """
    queries = []
    answers = []
    for query, answer in zip(learnt.queries, by_words, strict=True):
        if answer.relevance is not None:
            queries.append(query)
            answers.append(answer)
    documents = dict(zip(hits.ids, map(NamedText, titles, texts), strict=True))
    holders = await asyncio.to_thread(only_holders, queries, answers, documents)

    original = original_query(learnt.state["query"])
    attributes = hits.memberships.keys()
    rankings = [ranking_record(0, original, hits, attributes, with_scores=False)]
    for query, answer in zip(queries, holders.answers, strict=True):
        rankings.append(ranking_record(1, query, answer, attributes, with_scores=False))
    lookups = lookup_of_named(1, holders.named)
    state = with_update(learnt.state, {"rankings": rankings, "lookups": lookups})
    pool = Pool(engine, context, state)
    by_id = await asyncio.to_thread(lambda: pool.relative_relevance)
    return replace(hits, relevance=np.array([by_id[id_] for id_ in hits.ids]))


class AskAfterwards:
    """Asks a model about queries after they were answered, one query at a time.

    Args:
        learnt: Asks the model, which keeps its replies.
    """

    def __init__(self, learnt: LearntWords) -> None:
        self._learnt = learnt
        self._waiting: asyncio.Queue[tuple[SearchEngine, Context, str]] = asyncio.Queue(WAITING)
        self._asked_at: dict[tuple[object, ...], float] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, engine: SearchEngine, context: Context, query: str) -> None:
        """Have the model asked about a query, unless too many wait or it was asked a moment ago."""
        now = time.monotonic()
        key = (engine.name, context.attributes, query)
        asked_at = self._asked_at.get(key)
        is_recent = asked_at is not None and now - asked_at < ASKED_AGAIN
        if is_recent or self._waiting.full():
            return
        self._asked_at.pop(key, None)  # so that the oldest stands first
        self._asked_at[key] = now
        if len(self._asked_at) > REMEMBERED:
            del self._asked_at[next(iter(self._asked_at))]
        self._waiting.put_nowait((engine, context, query))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask_all())

    async def _ask_all(self) -> None:
        """Ask until no query waits."""
        while not self._waiting.empty():
            engine, context, query = self._waiting.get_nowait()
            try:
                await self._learnt.learn(engine, context, query)
            except FairqrError as error:
                log.warning("The model %s was not asked. %s", self._learnt.name, error)
