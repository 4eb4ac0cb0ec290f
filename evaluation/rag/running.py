"""Running a Fair RAG experiment: labels first, then the policies of every query that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairqr.agents.attribution.verdicts import Attributor
from fairqr.agents.cache import ReplyFile
from fairqr.agents.generators import open_generator
from fairqr.evaluation.at_once import all_of
from fairqr.evaluation.experiments.care import Cautious
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.rag.answering import Answerer
from fairqr.evaluation.rag.collection import RagQuery
from fairqr.evaluation.rag.generating import QueryWork
from fairqr.evaluation.rag.labelling import (
    check_labels,
    check_pools,
    label_manifest,
    label_queries,
    take_labels,
)
from fairqr.evaluation.rag.labels import useful_positions, why_dropped
from fairqr.evaluation.rag.plan import Cost, Part, RagPlan, cost_of
from fairqr.evaluation.rag.policies import Draw
from fairqr.evaluation.rag.records import LabelRecord, PolicyRecord
from fairqr.evaluation.rag.remote import generator_there, judge_there, retriever_there
from fairqr.evaluation.rag.store import LabelManifest, LabelStore, RagStore
from fairqr.evaluation.workers.tools import Pool
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.pools.base import PoolRetriever
from fairqr.retrieval.pools.open import open_pool_retriever

__all__ = ["match_labels", "remaining_cost", "run_fair_rag"]


def match_labels(plan: RagPlan, folders: Sequence[Path]) -> dict[tuple[str, str], Path]:
    """Find out which collection and generator given labels are for.

    Returns:
        The folders by the names of the collection and the generator.

    Raises:
        InputError: A folder holds no labels, those of another collection, generator or prompt, or
            has not looked at all documents of the pools.
    """
    wanted = [
        _wanted(plan, part, generator)
        for part in plan.parts
        for generator in plan.manifest.experiment.generators
    ]
    queries = {part.collection.name: part.collection.queries for part in plan.parts}
    matched: dict[tuple[str, str], Path] = {}
    for folder in folders:
        given = LabelStore(folder)
        found = given.manifest().model_dump()
        # The one that differs least, so that the sentence is about what is wrong.
        nearest = min(
            wanted,
            key=lambda one: sum(found[name] != value for name, value in one.model_dump().items()),
        )
        check_labels(given, nearest)
        check_pools(folder, queries[nearest.collection])
        matched[nearest.collection, nearest.generator] = folder
    return matched


def remaining_cost(plan: RagPlan, store: RagStore, folders: Sequence[Path] = ()) -> Cost:
    """Estimate what a run will still cost, at most.

    Args:
        plan: What is to be done.
        store: Where some of it may be done already.
        folders: Of labels that are given.

    Raises:
        InputError: The folder holds another run, given labels do not fit, or a line is damaged.
    """
    store.check(plan.manifest)
    experiment = plan.manifest.experiment
    given = match_labels(plan, folders)
    done = {record.key for record in store.records()}
    total = Cost()
    for part in plan.parts:
        for generator in experiment.generators:
            pair = (part.collection.name, generator)
            labels = {label.query: label for label in store.labels(*pair).lines.read()}
            if pair in given:
                found = LabelStore(given[pair]).lines.read()
                labels = {label.query: label for label in found} | labels
            kept = {
                label.query
                for label in labels.values()
                if why_dropped(label, experiment.min_useful) is None
            }
            total += cost_of(part, generator, experiment, labelled=labels, kept=kept, done=done)
    return total


async def run_fair_rag(
    plan: RagPlan,
    store: RagStore,
    *,
    attributor: Attributor | None,
    watcher: StageWatcher,
    at_once: int = 4,
    folders: Sequence[Path] = (),
    pool: Pool | None = None,
) -> None:
    """Do all that is not done yet.

    Args:
        plan: What is to be done.
        store: Where results go; locked while this runs.
        attributor: What judges; None leaves attribution out.
        watcher: Told how far it has come.
        at_once: How many queries may be under way at the same time.
        folders: Of labels that are given; what they lack is labelled.
        pool: Workers that generate, judge and retrieve; this process does where None.

    Raises:
        FairqrError: It cannot go on for a reason that concerns more than one answer; what was done
            until then is kept.
    """
    given = match_labels(plan, folders)
    with store.locked():
        if store.exists() and remaining_cost(plan, store, folders).is_nothing:
            store.begin(plan.manifest)
            return
        if attributor is not None:
            attributor = judge_there(attributor, pool) if pool else attributor
            await attributor.start()
        run = _Run(plan, store, attributor, watcher, at_once, given, pool)
        await run.start_retrievers()
        for name in plan.manifest.experiment.generators:
            # One at a time, since large models do not fit side by side: the one before is let go.
            await run.work_with(name)


@dataclass(slots=True)
class _Run:
    plan: RagPlan
    store: RagStore
    attributor: Attributor | None
    watcher: StageWatcher
    at_once: int
    given: Mapping[tuple[str, str], Path]
    pool: Pool | None
    _retrievers: dict[str, PoolRetriever] = field(default_factory=dict, init=False)
    _scores: dict[tuple[str, str, str], FloatArray] = field(default_factory=dict, init=False)

    async def start_retrievers(self) -> None:
        for name in self.plan.manifest.experiment.retrievers:
            opened = retriever_there(name, self.pool) if self.pool else open_pool_retriever(name)
            self._retrievers[name] = opened
            await self._retrievers[name].start()

    async def work_with(self, name: str) -> None:
        """Do all that a generator is needed for; it is started before anything is written."""
        generator = (
            generator_there(name, self.pool)
            if self.pool
            else open_generator(name, cache=ReplyFile(self.store.replies))
        )
        await generator.start()
        self.store.begin(self.plan.manifest)
        for part in self.plan.parts:
            answerer = Answerer(generator, part.collection.task, part.prompt)
            labels = await self.label(part, name, answerer)
            await self.answer(part, name, answerer, labels)

    async def label(self, part: Part, generator: str, answerer: Answerer) -> list[LabelRecord]:
        """Label the queries of a collection, but for those that have labels."""
        name, queries = part.collection.name, part.collection.queries
        labels = self.store.labels(name, generator)
        labels.begin(_wanted(self.plan, part, generator))
        if (name, generator) in self.given:
            take_labels(self.given[name, generator], queries, labels)
        return await label_queries(
            queries, answerer, labels, watcher=self.watcher, at_once=self.at_once
        )

    async def answer(
        self, part: Part, generator: str, answerer: Answerer, labels: Sequence[LabelRecord]
    ) -> None:
        """Make the records of the queries that are kept."""
        name, draws = part.collection.name, self.plan.draws
        least = self.plan.manifest.experiment.min_useful
        kept = [
            (query, label)
            for query, label in zip(part.collection.queries, labels, strict=True)
            if why_dropped(label, least) is None
        ]
        if dropped := len(labels) - len(kept):
            self.watcher.note(
                f"{name}, {generator}: {dropped} of {len(labels)} queries are left out, since they "
                f"have fewer than {least} useful documents or could not be labelled."
            )
        there: dict[str, list[PolicyRecord]] = {}
        for record in self.store.records():
            if (record.collection, record.generator) == (name, generator):
                there.setdefault(record.query, []).append(record)
        done = {record.key for records in there.values() for record in records}
        keys = [draw.key(name, generator, query.id) for query, _ in kept for draw in draws]
        self.watcher.stage(
            f"{name}, {generator}: rankings", len(keys), sum(key in done for key in keys)
        )

        async def one(query_and_label: tuple[RagQuery, LabelRecord]) -> None:
            query, label = query_and_label
            todo = [draw for draw in draws if draw.key(name, generator, query.id) not in done]
            if todo:
                work = self._work(part, generator, answerer, query, label)
                work.remember(there.get(query.id, ()))
                await self._do(work, todo, written)

        written = Cautious(self.store.lines, answerer.patience)
        with written.writing():
            await all_of(kept, one, self.at_once)

    def _work(
        self, part: Part, generator: str, answerer: Answerer, query: RagQuery, label: LabelRecord
    ) -> QueryWork:
        return QueryWork(
            experiment=self.plan.manifest.experiment,
            collection=part.collection.name,
            generator=generator,
            query=query,
            useful=useful_positions(query, label),
            answerer=answerer,
            attributor=self.attributor,
            hypothesis=part.hypothesis,
        )

    async def _do(
        self, work: QueryWork, draws: Sequence[Draw], written: Cautious[PolicyRecord]
    ) -> None:
        names = dict.fromkeys(draw.retriever for draw in draws if draw.retriever)
        scores = {name: await self._score(name, work) for name in names}
        for draw in draws:
            record = await work.record(draw, scores)
            failed = any(answer.utility is None for answer in record.answers)
            written.add(record, has_failures=failed)
            self.watcher.advance()

    async def _score(self, retriever: str, work: QueryWork) -> FloatArray:
        """Return a retriever's scores of a pool, which are the same for every generator."""
        key = (retriever, work.collection, work.query.id)
        if key not in self._scores:
            texts = [document.text for document in work.query.pool]
            self._scores[key] = await self._retrievers[retriever].scores(work.query.query, texts)
        return self._scores[key]


def _wanted(plan: RagPlan, part: Part, generator: str) -> LabelManifest:
    return label_manifest(part.collection, generator, part.prompt, plan.manifest.experiment.pool)
