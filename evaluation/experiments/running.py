"""Running an experiment with searches: a stage for each cell, a task for each topic."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairqr.base.errors import IndexNotFoundError, UnsupportedError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.topics import Topic
from fairqr.evaluation.experiments.engine import Keep, Stage, run_stages
from fairqr.evaluation.experiments.plan import Cell, Plan
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.searching import Place, Search, check_needs, open_engine, search
from fairqr.evaluation.experiments.store import SearchRecord, Store
from fairqr.evaluation.experiments.training import folds_of, gather, train
from fairqr.evaluation.workers.tools import Pool
from fairqr.graph.search.rankers import ASKED
from fairqr.retrieval.engines.engine import Query, SearchEngine

__all__ = ["run_searches"]

LOOKED_UP = 100
"""How many relevant documents a corpus is asked for, to know whether it is the right one."""


async def run_searches(
    plan: Plan, collection: Collection, store: Store, pool: Pool, *, watcher: StageWatcher
) -> None:
    """Do all searches of a plan that have no record yet.

    A system whose corpus is not here is left out, and the watcher is told why.

    Args:
        plan: What is to be done.
        collection: Which it was made for.
        store: Where results go; locked while this runs.
        pool: Does the searches.
        watcher: Told of each search.

    Raises:
        FairqrError: A search cannot be done for a reason that concerns more than its topic; what
            was done until then is kept.
    """
    store.check(plan.manifest)
    async with contextlib.aclosing(pool.tools):
        run = _Run(plan, collection, store, watcher, pool)
        cells = await run.cells_to_do()
        await pool.do(check_needs, plan, cells)
        with store.locked():
            store.begin(plan.manifest)
            stages = partial(run.stages, cells)
            await run_stages(stages, watcher=watcher, at_once=pool.at_once)


@dataclass(frozen=True, slots=True)
class _Run:
    plan: Plan
    collection: Collection
    store: Store
    watcher: StageWatcher
    pool: Pool

    async def cells_to_do(self) -> list[Cell]:
        """Return the cells with a search to do, but for those whose corpus is not here."""
        done = self.store.lines.done()
        cells = [
            cell
            for cell in self.plan.cells
            if any(cell.key(topic) not in done for topic in self.plan.topics)
        ]
        absent: dict[str, str] = {}
        for system in {cell.system.name: cell.system for cell in cells}.values():
            corpus = self.plan.manifest.experiment.corpus_of(system)
            if corpus and (why := await self._why_absent(corpus, system.retriever)):
                absent[system.name] = why
                self.watcher.note(f"'{system.name}' was left out: {why}")
        return [cell for cell in cells if cell.system.name not in absent]

    async def _why_absent(self, corpus: str, retriever: str) -> str | None:
        """Return why a corpus is not searched, if it is not here or does not fit."""
        try:
            engine = await self._engine(corpus, retriever)
        except (IndexNotFoundError, UnsupportedError) as error:
            return str(error)
        if await _has_some(engine, self.collection.relevant_documents()):
            return None
        return (
            f"'{corpus}' has none of the relevant documents of '{self.collection.name}'; "
            "name a corpus with the same documents."
        )

    async def _engine(self, corpus: str, retriever: str) -> SearchEngine:
        return await open_engine(
            self.pool.tools, corpus, retriever, lambda name: self.watcher.count(f"preparing {name}")
        )

    async def stages(self, cells: Sequence[Cell]) -> AsyncIterator[Stage[Topic, SearchRecord]]:
        """Yield a stage for each cell."""
        done = self.store.lines.done()
        for cell in cells:
            yield await self._stage(cell, done)

    async def _stage(self, cell: Cell, done: Set[Hashable]) -> Stage[Topic, SearchRecord]:
        experiment = self.plan.manifest.experiment
        corpus = experiment.corpus_of(cell.system) or self.collection.corpus_name
        engine = await self._engine(corpus, cell.system.retriever)
        model = None
        if cell.system.asks_a_model or cell.system.ranker in ASKED:
            model = cell.system.model or experiment.model
        fingerprint = (await engine.info()).fingerprint
        place = Place(corpus, fingerprint, cell.system.retriever, model, self.pool.at_once)
        folds = self._folds(cell)
        context = cell.context(experiment).model_dump(exclude_unset=True)

        async def do(topic: Topic, keep: Keep[SearchRecord]) -> None:
            path = next((path for path, fold in folds.items() if topic.id in fold), None)
            task = Search(
                cell.key(topic),
                topic.text(cell.form.keywords),
                context,
                weights=path.read_bytes() if path else None,
            )
            keep(await self.pool.do(search, place, task))

        async def start() -> None:
            await self._train(cell, folds, engine)

        return Stage(
            title=f"{cell.attribute}, {cell.form}: {cell.system.name}",
            model=model or cell.system.name,
            tasks=self.plan.topics,
            keys=lambda topic: [cell.key(topic)],
            done=done,
            start=start,
            do=do,
            lines=self.store.lines,
            pace=cell.system.name,
        )

    def _folds(self, cell: Cell) -> dict[Path, list[str]]:
        """Return the topics of each fold, by the file of the weights that rank them."""
        if cell.system.train is None:
            return {}
        names = [topic.id for topic in self.plan.topics]
        folds = folds_of(names, min(cell.system.train.folds, len(names)))
        parts = (cell.system.name, cell.attribute, cell.form)
        return {self.store.weights(*parts, number): fold for number, fold in enumerate(folds)}

    async def _train(self, cell: Cell, folds: dict[Path, list[str]], engine: SearchEngine) -> None:
        """Train the weights that are missing, those of each fold on the topics of the others."""
        training = cell.system.train
        missing = {path: fold for path, fold in folds.items() if not path.exists()}
        if training is None or not missing:
            return
        self.watcher.stage(f"training {cell.system.name}", len(folds), len(folds) - len(missing))
        context = cell.context(self.plan.manifest.experiment)
        examples = await gather(
            engine,
            {topic.id: topic.text(cell.form.keywords) for topic in self.plan.topics},
            self.collection.qrels,
            context,
            depth=training.depth,
        )
        for path, fold in missing.items():
            others = [topic.id for topic in self.plan.topics if topic.id not in fold]
            model = await train(context.strategy.final_step, examples, others, training.options)
            model.save(path)
            self.watcher.advance()


async def _has_some(engine: SearchEngine, ids: Iterable[str]) -> bool:
    """Return whether an engine has one of the first of these documents, as far as it can say."""
    some = tuple(sorted(ids)[:LOOKED_UP])
    try:
        (hits,) = await engine.search([Query("", len(some), only=some)])
    except UnsupportedError:
        return True
    return bool(hits.ids)
