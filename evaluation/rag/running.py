"""Running a Fair RAG experiment: labels first, then the policies of every query that is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fairqr.agents.cache import ReplyFile
from fairqr.agents.generators import open_generator
from fairqr.evaluation.experiments.engine import Keep, Stage, run_stages
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.rag.answering import Asked
from fairqr.evaluation.rag.collection import RagQuery
from fairqr.evaluation.rag.generating import (
    Policies,
    PolicyTask,
    answer_policy,
    open_policies,
    score_pool,
)
from fairqr.evaluation.rag.labelling import (
    check_labels,
    given_labels,
    label_manifest,
    label_stage,
)
from fairqr.evaluation.rag.labels import useful_positions, why_dropped
from fairqr.evaluation.rag.plan import Cost, Part, RagPlan, cost_of
from fairqr.evaluation.rag.policies import Key
from fairqr.evaluation.rag.records import LabelRecord, PolicyRecord
from fairqr.evaluation.rag.store import LabelManifest, LabelStore, RagStore
from fairqr.evaluation.workers.tools import LocalPool, Pool, Tools
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.exposure import FloatArray

__all__ = ["match_labels", "remaining_cost", "run_fair_rag"]


GivenLabels = Mapping[tuple[str, str], Sequence[LabelRecord]]
"""Labels that another run made, by the names of the collection and the generator."""


def match_labels(plan: RagPlan, folders: Sequence[Path]) -> GivenLabels:
    """Read given labels, and find out which collection and generator each folder is for.

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
    matched: dict[tuple[str, str], Sequence[LabelRecord]] = {}
    for folder in folders:
        given = LabelStore(folder)
        found = given.manifest().model_dump()
        # The one that differs least, so that the sentence is about what is wrong.
        nearest = min(
            wanted,
            key=lambda one: sum(found[name] != value for name, value in one.model_dump().items()),
        )
        check_labels(given, nearest)
        labels = given_labels(folder, queries[nearest.collection])
        matched[nearest.collection, nearest.generator] = labels
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
            labels = [*given.get(pair, ()), *store.labels(*pair).lines.read()]
            found = {label.query: label for label in labels}
            kept = {it for it in found if why_dropped(found[it], experiment.min_useful) is None}
            total += cost_of(part, generator, experiment, labelled=found, kept=kept, done=done)
    return total


async def run_fair_rag(
    plan: RagPlan,
    store: RagStore,
    *,
    prompts: PromptLibrary,
    watcher: StageWatcher,
    at_once: int = 4,
    folders: Sequence[Path] = (),
    pool: Pool | None = None,
) -> None:
    """Do all that is not done yet.

    Args:
        plan: What is to be done.
        store: Where results go; locked while this runs.
        prompts: Where prompts come from.
        watcher: Told how far it has come.
        at_once: How many queries may run at the same time.
        folders: Of labels that are given; what they lack is labelled.
        pool: Does the jobs; defaults to this process.

    Raises:
        FairqrError: It cannot go on for a reason that concerns more than one answer; what was done
            until then is kept.
    """
    here = LocalPool(Tools(prompts, ReplyFile(store.replies)))
    run = _Run(plan, store, watcher, match_labels(plan, folders), here, pool or here)
    with store.locked():
        store.check(plan.manifest)
        await run_stages(run.stages, watcher=watcher, at_once=at_once)
        store.begin(plan.manifest)


@dataclass(frozen=True, slots=True)
class _Run:
    plan: RagPlan
    store: RagStore
    watcher: StageWatcher
    given: GivenLabels
    here: Pool
    pool: Pool
    _scores: dict[tuple[str, str, str], FloatArray] = field(default_factory=dict, init=False)

    async def stages(self) -> AsyncIterator[Stage[Any, Any]]:
        """Yield the labels and then the rankings of each generator and collection.

        One generator after the other, since large models do not fit side by side.
        """
        for generator in self.plan.manifest.experiment.generators:
            for part in self.plan.parts:
                policies = self._policies(part, generator)
                labels = self.store.labels(part.collection.name, generator)
                given = self._given(part, generator, labels)
                start = partial(self._start, part, policies, labels, given)
                labelling = label_stage(
                    part.collection,
                    policies.asked,
                    labels,
                    self.pool,
                    start,
                    [label.query for label in given],
                )
                yield labelling
                found = {label.query: label for label in [*given, *labels.lines.read()]}
                rankings = self._rankings(part, policies, found, start)
                dropped = len(found) - len(rankings.tasks)
                if dropped and (labelling.left or rankings.left):
                    note = (
                        f"{part.collection.name}, {generator}: {dropped} of {len(found)} queries "
                        f"are left out, since they have fewer than {self._least} useful documents "
                        "or could not be labelled."
                    )
                    rankings = replace(rankings, note=note)
                yield rankings

    @property
    def _least(self) -> int:
        return self.plan.manifest.experiment.min_useful

    def _policies(self, part: Part, generator: str) -> Policies:
        return Policies(
            self.plan.manifest.experiment,
            part.collection.name,
            Asked(generator, part.collection.task, part.prompt),
            self.plan.manifest.attributor,
            part.hypothesis,
        )

    def _given(self, part: Part, generator: str, labels: LabelStore) -> list[LabelRecord]:
        """Return the given labels that the folder does not have."""
        there = {label.query for label in labels.lines.read()}
        given = self.given.get((part.collection.name, generator), ())
        return [label for label in given if label.query not in there]

    async def _start(
        self, part: Part, policies: Policies, labels: LabelStore, given: Sequence[LabelRecord]
    ) -> None:
        """Make the models ready, and then begin the folders."""
        open_generator(policies.asked.generator, cache=False)  # a wrong name is an error here
        await self.pool.do(open_policies, policies)
        self.store.begin(self.plan.manifest)
        labels.begin(_wanted(self.plan, part, policies.asked.generator))
        there = {label.query for label in labels.lines.read()}
        with labels.lines.writing():
            for label in given:
                if label.query not in there:
                    labels.lines.add(label)

    def _rankings(
        self,
        part: Part,
        policies: Policies,
        found: Mapping[str, LabelRecord],
        start: Callable[[], Awaitable[None]],
    ) -> Stage[RagQuery, PolicyRecord]:
        """Return the stage that makes the records of the queries that are kept."""
        name, generator = part.collection.name, policies.asked.generator
        kept = [
            query
            for query in part.collection.queries
            if query.id in found and why_dropped(found[query.id], self._least) is None
        ]
        before: dict[str, list[PolicyRecord]] = {}
        for record in self.store.records():
            if (record.collection, record.generator) == (name, generator):
                before.setdefault(record.query, []).append(record)
        done = {record.key for records in before.values() for record in records}

        def keys(query: RagQuery) -> list[Key]:
            return [draw.key(name, generator, query.id) for draw in self.plan.draws]

        answers = [draw.answered(policies.experiment) for draw in self.plan.draws]
        work: dict[Hashable, float] = {
            key: number for query in kept for key, number in zip(keys(query), answers, strict=True)
        }

        async def do(query: RagQuery, keep: Keep[PolicyRecord]) -> None:
            known = {a.ranking: a for record in before.get(query.id, ()) for a in record.answers}
            useful = useful_positions(query, found[query.id])
            for draw in self.plan.draws:
                if draw.key(name, generator, query.id) in done:
                    continue
                scores = await self._score(draw.retriever, name, query) if draw.retriever else None
                task = PolicyTask(query, useful, draw, scores, tuple(known.values()))
                answered = await self.pool.do(answer_policy, policies, task)
                known |= {answer.ranking: answer for answer in answered.record.answers}
                if not keep(answered):
                    return

        return Stage(
            title=f"{name}, {generator}: rankings",
            model=generator,
            tasks=kept,
            keys=keys,
            done=done,
            start=start,
            do=do,
            lines=self.store.lines,
            pace=f"{name} {generator} rankings",
            work=work.__getitem__,
            more=sum(answers) * (len(part.collection.queries) - len(found)),
        )

    async def _score(self, retriever: str, collection: str, query: RagQuery) -> FloatArray:
        """Return a retriever's scores of a pool, which are the same for every generator."""
        key = (retriever, collection, query.id)
        if key not in self._scores:
            # What BM25 does is quicker than to send it anywhere.
            pool = self.here if retriever == "bm25" else self.pool
            self._scores[key] = await pool.do(score_pool, retriever, query)
        return self._scores[key]


def _wanted(plan: RagPlan, part: Part, generator: str) -> LabelManifest:
    return label_manifest(part.collection, generator, part.prompt, plan.manifest.experiment.pool)
