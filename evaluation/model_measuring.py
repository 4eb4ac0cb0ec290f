"""Measures a model: how much its words should count, what they bring, and what they cost.

Each topic is searched for once with all kinds of words. What other weights would have given is
computed from the state of that search, without asking again.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from fairqr.agents.profiles.finding import UNMEASURED_SHARE, UNMEASURED_WEIGHTS, profiled_name
from fairqr.agents.profiles.profile import ModelProfile, SearchCost
from fairqr.base.errors import InputError, ModelError
from fairqr.base.loops import run_together
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.collection import Collection, Topic
from fairqr.evaluation.collections.labels import Groups, scan_corpus
from fairqr.evaluation.collections.query_targets import as_target
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.measures.measure import Measure, parse_measure
from fairqr.evaluation.model_weights import (
    KINDS,
    absolute_change,
    candidates,
    cautious_candidates,
    closed_share,
    fit_weights,
    halve,
    relative_change,
)
from fairqr.graph.opening import open_parts
from fairqr.graph.search.builder import as_node
from fairqr.graph.search.context import Context
from fairqr.graph.search.models import Model
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.state import SearchState
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.relevance import FITTED, EvidenceWeights, held_out
from fairqr.retrieval.sources.schema import UNKNOWN

K = 20
"""How many results count."""

QUICK_QUESTIONS = 20
"""About how many questions a quick measurement asks."""

TOKENS_A_QUESTION = 900
"""About how many tokens a question of the prompts for large models takes, with its reply."""

FEWEST_TOPICS = 4
"""Two halves of fewer topics say nothing."""

GIVEN_UP_AFTER = 3
"""After so many searches without any usable reply, the model counts as away."""

EVERY_KIND = EvidenceWeights(topic=1, queries=1, passage=1, group=1)

MEASURES = ("nDCG@20×AWRF@20(unit=bits)", "nDCG@20", "AWRF@20(unit=bits)")


@dataclass(frozen=True, slots=True)
class Plan:
    """Which searches a measurement makes.

    Attributes:
        topics: The topics with judgements.
        cells: The attributes and forms of query: each topic is searched for in each of them. A form
            is the number of keywords.
        is_quick: Whether it asks a few questions only.
        seed: Draws the topics of a quick measurement, and the halves.
        questions: About how many questions the model is asked.
    """

    topics: Sequence[Topic]
    cells: Sequence[tuple[str, int]]
    is_quick: bool
    seed: int
    questions: int

    @property
    def tokens(self) -> int:
        """About how many tokens the questions take."""
        return self.questions * TOKENS_A_QUESTION


def plan_measurement(
    collection: Collection,
    attributes: Sequence[str] = (),
    *,
    is_quick: bool = False,
    seed: int = 0,
) -> Plan:
    """Return which searches to measure a model by.

    A quick measurement takes the attribute with the fewest groups, titles, and so many topics that
    about :data:`QUICK_QUESTIONS` are asked.

    Args:
        collection: With topics and judgements.
        attributes: The names of the attributes; defaults to gender and continent, or to all if the
            collection lacks one of these.
        is_quick: Ask a few questions only.
        seed: Draws the topics of a quick measurement, and the halves.

    Raises:
        InputError: The collection has too few topics, or lacks an attribute.
    """
    schema = collection.corpus.schema
    usual = [name for name in ("gender", "continent") if name in schema.attributes]
    names = list(attributes) or (usual if len(usual) == 2 else list(schema.attributes))
    groups = {name: _count_groups(schema.attribute(name).groups) for name in names}
    topics = [topic for topic in collection.topics if collection.relevant(topic.id)]
    has_keywords = any(topic.keywords for topic in topics)
    forms = [0, 10] if has_keywords else [0]
    if is_quick:
        fewest = min(names, key=lambda name: groups[name])
        names = [fewest]
        forms = forms[:1]
        number = max(FEWEST_TOPICS, QUICK_QUESTIONS // (1 + groups[fewest]))
        topics = _drawn(topics, number, seed)
    if len(topics) < FEWEST_TOPICS:
        raise InputError(
            f"The collection '{collection.name}' has {len(topics)} topics with relevant documents; "
            f"measuring a model needs at least {FEWEST_TOPICS}."
        )
    cells = [(name, form) for name in names for form in forms]
    questions_a_topic = len(forms) * (1 + sum(groups[name] for name in names))
    return Plan(topics, cells, is_quick, seed, len(topics) * questions_a_topic)


def _count_groups(groups: Sequence[str]) -> int:
    return sum(group != UNKNOWN for group in groups)


def _drawn(topics: Sequence[Topic], number: int, seed: int) -> list[Topic]:
    """Return some topics at random, in their own order."""
    order = np.random.default_rng(seed).permutation(len(topics)).tolist()
    return [topics[position] for position in sorted(order[:number])]


@dataclass(frozen=True, slots=True)
class MeasuredSearch:
    """A search with all kinds of words.

    Attributes:
        topic: The position of its topic.
        cell: The position of its cell.
        lists: The first documents with the weights of each candidate.
        lacking: 1 − p·F without the model.
        state: The state in which it ended.
    """

    topic: int
    cell: int
    lists: list[list[str]]
    lacking: float
    state: SearchState


def lists_by_weights(pool: Pool, tried: Sequence[EvidenceWeights]) -> list[list[str]]:
    """Return the list that a search would have given with each of these weights.

    Args:
        pool: What a search with all kinds of words has found in its only round of words.
        tried: The weights.
    """
    by_kinds: dict[tuple[str, ...], Pool] = {}
    lists = []
    for weights in tried:
        counted = tuple(kind for kind in KINDS if getattr(weights, kind) > 0)
        if counted not in by_kinds:
            by_kinds[counted] = _with_kinds(pool, counted)
        lists.append(_best_list(by_kinds[counted].with_weights(weights)))
    return lists


def _with_kinds(pool: Pool, counted: Sequence[str]) -> Pool:
    """Return a pool of what the queries of some kinds found; others would not have been run."""
    kinds = {"query", *counted}
    if "group" in kinds:
        kinds.add("named")
    rankings = []
    for record in pool.state["rankings"]:
        query = record["query"]
        is_passage = query["part"] == "passage"
        if query["kind"] in kinds and not (is_passage and "passage" not in kinds):
            rankings.append(record)
    lookups = [lookup for lookup in pool.state["lookups"] if lookup["kind"] in kinds]
    first = pool.state["fair_lists"][:1]
    state: dict[str, Any] = {**pool.state}
    state |= {"rankings": rankings, "lookups": lookups, "fair_lists": first, "iterations": []}
    return Pool(pool.engine, pool.context, state)  # type: ignore[arg-type]


def _best_list(pool: Pool) -> list[str]:
    """Return the list of the last round.

    It is the best one by what is known in the end, since the fair step chose it among all documents
    found.
    """
    if len(pool.state["rankings"]) == 1:
        return pool.state["fair_lists"][0]["ids"]
    return pool.fair_list(1)["ids"]


def lacking_of(pool: Pool) -> float:
    """Return 1 − p·F of the list without the model, by what the search itself expects."""
    without = _with_kinds(pool, ())
    fair = without.fair_lists[0]
    return 1 - without.mean_relative_relevance(fair.ids) * fair.objective.fairness


@dataclass
class ModelMeasurement:
    """A measurement of a model: its searches, and what they are judged by.

    Attributes:
        collection: What is searched.
        engine: Searches it.
        model: The model.
        prompts: The versions of its prompts.
        plan: Which searches are made.
        library: The prompts.
        watcher: Gets the progress.
    """

    collection: Collection
    engine: SearchEngine
    model: Model
    prompts: Mapping[str, str]
    plan: Plan
    library: PromptLibrary = field(default_factory=PromptLibrary)
    watcher: StageWatcher = field(default_factory=StageWatcher)
    at_once: int = 4

    async def run(self) -> ModelProfile:
        """Search, fit the weights on half of the topics, and measure on the other half.

        Raises:
            ModelError: The model gave no usable reply.
        """
        if hasattr(self.engine, "calibrations"):
            # No estimate learnt from the judgements that it is measured by.
            self.engine.calibrations = FITTED[held_out(self.collection.name)]
        self.watcher.stage("searches", len(self.plan.topics) * len(self.plan.cells), 0)
        kinds = kinds_of(self.prompts, self.library)
        tried = candidates(kinds)
        if self.plan.is_quick:
            tried = cautious_candidates(kinds, UNMEASURED_WEIGHTS)
        searches = await self._search_all(tried)
        values = await asyncio.to_thread(self._judge, searches)
        return await self._profile(tried, searches, values)

    async def _search_all(self, tried: Sequence[EvidenceWeights]) -> list[MeasuredSearch]:
        """Return the searches for all topics in all cells."""
        # As a node of another graph, it returns its whole state.
        opened = open_parts(self.engine, self.model, prompts=self.library)
        graph = as_node(opened.graph("search"))
        gate = asyncio.Semaphore(self.at_once)
        failures: list[str] = []
        answered: list[int] = []
        searches: list[MeasuredSearch] = []

        async def search(topic: int, cell: int) -> None:
            async with gate:
                attribute, keywords = self.plan.cells[cell]
                context = self._context(attribute)
                query = self.plan.topics[topic].text(keywords)
                values = await graph.ainvoke({"query": query}, context=context)
                state = cast("SearchState", values)
                pool = Pool(self.engine, context, state)
                if state["stop_reason"] == "model_failed":
                    failures.append(next(iter(state["warnings"]), "no reply"))
                else:
                    answered.append(topic)
                if not answered and len(failures) >= GIVEN_UP_AFTER:
                    raise ModelError("failed", failures[-1])
                lists = await asyncio.to_thread(lists_by_weights, pool, tried)
                searches.append(MeasuredSearch(topic, cell, lists, lacking_of(pool), state))
                self.watcher.advance()

        places = itertools.product(range(len(self.plan.topics)), range(len(self.plan.cells)))
        await run_together([search(topic, cell) for topic, cell in places])
        return searches

    def _context(self, attribute: str) -> Context:
        return Context(
            attributes=(attribute,),
            k=K,
            ask="always",
            max_iterations=1,
            word_weights=EVERY_KIND,
            prompts=dict(self.prompts),
        )

    def _judge(self, searches: Sequence[MeasuredSearch]) -> FloatArray:
        """Return the measures by topic, cell and candidate, shape (3, n, cells, C)."""
        shown = [id_ for search in searches for ids in search.lists for id_ in ids]
        needed = [*shown, *self.collection.relevant_documents()]
        groups = scan_corpus(self.collection.corpus, needed)
        rule = as_target(self.collection.about.target)
        size = len(self.plan.topics), len(self.plan.cells), len(searches[0].lists)
        values = np.full((len(MEASURES), *size), np.nan)
        for search in searches:
            attribute, _ = self.plan.cells[search.cell]
            measures = [
                parse_measure(text).with_attribute(attribute).for_target(rule) for text in MEASURES
            ]
            topic = self.plan.topics[search.topic]
            values[:, search.topic, search.cell] = self._scores(topic, search, measures, groups)
        return values

    def _scores(
        self, topic: Topic, search: MeasuredSearch, measures: Sequence[Measure], groups: Groups
    ) -> FloatArray:
        """Return the measures of the lists of a search, shape (3, C); NaN for no value."""
        distinct = list(dict.fromkeys(tuple(ids) for ids in search.lists))
        judged = self.collection.qrels.get(topic.id, {})
        batch = Batch(
            [topic.id] * len(distinct),
            [[ids] for ids in distinct],
            [judged] * len(distinct),
            groups=groups,
            target=as_target(self.collection.about.target),
        )
        columns = [distinct.index(tuple(ids)) for ids in search.lists]
        rows = []
        for measure in measures:
            scores = measure.scores(batch)
            row = [score if isinstance(score, float) else np.nan for score in scores]
            rows.append(np.array(row)[columns])
        return np.array(rows)

    async def _profile(
        self,
        tried: Sequence[EvidenceWeights],
        searches: Sequence[MeasuredSearch],
        values: FloatArray,
    ) -> ModelProfile:
        """Return what the measurement says of the model."""
        none = list(tried).index(EvidenceWeights())
        products = values[0]
        halves = halve(len(self.plan.topics), self.plan.seed)
        fitted = halves.fitted
        chosen = fit_weights(products[fitted], products[fitted][:, :, none])
        reported = values[:, halves.reported]
        after = reported[..., chosen]
        before = reported[..., none]
        lacking = np.zeros(products.shape[:2])
        for search in searches:
            lacking[search.topic, search.cell] = search.lacking
        share = closed_share(after[0], before[0], lacking[halves.reported])
        gain = relative_change(after[0], before[0])
        weights = tried[chosen]
        if share <= 0 and self.plan.is_quick and not (gain.high is not None and gain.high < 0):
            # So few topics cannot tell; the words count as before.
            weights = UNMEASURED_WEIGHTS
            share = UNMEASURED_SHARE
        elif share <= 0:
            # What brings nothing to the topics held back does not count.
            weights = EvidenceWeights()
        info = await self.engine.info()
        return ModelProfile(
            model=profiled_name(self.model),
            prompts=dict(self.prompts),
            collection=self.collection.name,
            corpora=tuple(dict.fromkeys([self.engine.name, info.fingerprint])),
            weights=weights,
            gain=gain,
            relevance=absolute_change(after[1], before[1]),
            fairness=absolute_change(after[2], before[2]),
            share=round(share, 4),
            topics=len(halves.reported),
            fitted=len(fitted),
            searches=int((~np.isnan(before[0])).sum()),
            cost=cost_of([search.state for search in searches]),
            seed=self.plan.seed,
            is_quick=self.plan.is_quick,
            date=datetime.datetime.now(datetime.UTC).date(),
        )


def kinds_of(prompts: Mapping[str, str], library: PromptLibrary) -> list[str]:
    """Return the kinds of words that a model gives; without prompts, words of groups alone."""
    asked = {"group"}
    if "topic" in prompts:
        asked |= set(library.get("topic", prompts["topic"]).output)
    if "refine" in prompts:
        asked |= {"passage"} & set(library.get("refine", prompts["refine"]).output)
    return [kind for kind in KINDS if kind in asked]


def cost_of(states: Sequence[SearchState]) -> SearchCost:
    """Return what the model cost in a search on average, replies of the cache included."""
    calls = tokens = seconds = 0.0
    for state in states:
        usage = state["result"]["usage"]
        calls += usage["model_calls"] + usage["cached_calls"]
        tokens += usage["prompt_tokens"] + usage["completion_tokens"] + usage["cached_tokens"]
        seconds += (usage["milliseconds"] + usage["cached_milliseconds"]) / 1000
    number = max(1, len(states))
    return SearchCost(
        calls=round(calls / number, 2),
        tokens=round(tokens / number),
        seconds=round(seconds / number, 3),
    )
