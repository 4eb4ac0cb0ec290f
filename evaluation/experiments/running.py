"""Running an experiment: all searches that are not done yet, several at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fairqr.agents.cache import ReplyFile
from fairqr.agents.chat import ChatModel
from fairqr.agents.ranking.model import RankingModel
from fairqr.agents.refiner import Refiner
from fairqr.base.errors import IndexNotFoundError, UnsupportedError
from fairqr.evaluation.at_once import all_of
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.topics import Topic
from fairqr.evaluation.experiments.needs import check_needs, check_needs_there
from fairqr.evaluation.experiments.plan import Cell, Plan
from fairqr.evaluation.experiments.searching import (
    Place,
    Search,
    open_searcher,
    search_there,
    searched,
)
from fairqr.evaluation.experiments.store import Record, Store
from fairqr.evaluation.experiments.training import folds_of, gather, train
from fairqr.evaluation.workers.tools import Pool
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context
from fairqr.graph.search.rankers import ASKED
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.engines.engine import Query, SearchEngine

__all__ = ["Watcher", "run_plan"]

LOOKED_UP = 100
"""How many relevant documents a corpus is asked for, to know whether it is the right one."""

Searcher = Callable[[str, Context], Awaitable[Mapping[str, Any]]]
"""Takes a query and a context, and gives the fields of a record."""


class Watcher(Protocol):
    """Is told how far a run has come."""

    def total(self, searches: int, done: int) -> None:
        """Take how many searches there are, and how many were done before."""
        ...

    def started(self, cell: Cell) -> None:
        """Take which cell is begun."""
        ...

    def finished(self, record: Record) -> None:
        """Take a search that is done."""
        ...

    def preparing(self, what: str) -> Progress | None:
        """Take what is indexed, encoded or trained; return what is told how many documents."""
        ...


@dataclass(slots=True)
class Workshop:
    """What searches need, opened when it is first needed.

    Attributes:
        collection: Whose documents are searched.
        prompts: Where prompts come from.
        store: Where replies and weights are kept.
        watcher: Told what is being prepared.
        engines: By what is searched and the retriever.
        models: By name, and for those that need an engine, by that too.
        pool: The workers that search; None where this process does.
    """

    collection: Collection
    prompts: PromptLibrary
    store: Store
    watcher: Watcher
    pool: Pool | None
    engines: dict[tuple[str, str], SearchEngine]
    models: dict[tuple[str, str], ChatModel | Refiner | RankingModel]

    async def engine(self, corpus: str, retriever: str) -> SearchEngine:
        """Return what searches a corpus, indexed first where it has to be."""
        key = (corpus, retriever)
        if key not in self.engines:
            self.engines[key] = await Catalog().resolve(
                corpus,
                retriever=retriever,
                progress=lambda what: (
                    self.watcher.preparing(f"preparing {what}") or (lambda count: None)
                ),
            )
        return self.engines[key]

    async def model(self, name: str, engine: SearchEngine) -> ChatModel | Refiner | RankingModel:
        """Return what refines or ranks, started; its replies are kept with the experiment."""
        # Feedback reads its words from the engine, so each engine has one of its own.
        key = (name, str(id(engine)) if name == "feedback" else "")
        if key not in self.models:
            replies = ReplyFile(self.store.replies)
            self.models[key] = await open_searcher(name, engine, replies)
        return self.models[key]

    async def aclose(self) -> None:
        """Close the engines."""
        for engine in self.engines.values():
            await engine.aclose()


async def run_plan(
    plan: Plan,
    collection: Collection,
    store: Store,
    *,
    prompts: PromptLibrary,
    watcher: Watcher,
    at_once: int = 4,
    pool: Pool | None = None,
) -> list[str]:
    """Do all searches of a plan that are not done yet.

    Args:
        plan: What is to be done.
        collection: Which it was made for.
        store: Where results go; locked while this runs.
        prompts: Where prompts come from.
        watcher: Told how far it has come.
        at_once: How many searches may be under way at the same time.
        pool: Workers that search; this process does where None.

    Returns:
        Sentences about systems that were left out, since what they need is not there.

    Raises:
        FairqrError: A search cannot be done for a reason that concerns more than its topic; what
            was done until then is kept.
    """
    before = {record.key for record in store.records()} if store.exists() else set()
    cells = [c for c in plan.cells if any(c.key(topic) not in before for topic in plan.topics)]
    async with _workshop(collection, prompts, store, watcher, pool) as workshop:
        left_out = await _without_a_corpus(cells, plan, workshop)
        cells = [cell for cell in cells if cell.system.name not in left_out]
        if pool is None:
            await check_needs(plan, cells, prompts)
        else:
            await pool.do(check_needs_there, plan, cells)
        with store.locked():
            store.begin(plan.manifest)
            done = {record.key for record in store.records()}
            with store.writing():
                keys = [cell.key(topic) for cell in plan.cells for topic in plan.topics]
                watcher.total(len(keys), sum(key in done for key in keys))
                for cell in cells:
                    todo = [topic for topic in plan.topics if cell.key(topic) not in done]
                    if todo:
                        watcher.started(cell)
                        await _run_cell(cell, todo, plan, workshop, at_once)
    return [f"'{name}' was left out: {why}" for name, why in left_out.items()]


async def _without_a_corpus(
    cells: Sequence[Cell], plan: Plan, workshop: Workshop
) -> dict[str, str]:
    """Return by system why its corpus is not searched: it is not here, or does not fit."""
    reasons: dict[str, str] = {}
    for system in {cell.system.name: cell.system for cell in cells}.values():
        corpus = plan.manifest.experiment.corpus_of(system)
        if corpus is None:
            continue
        try:
            engine = await workshop.engine(corpus, system.retriever)
        except (IndexNotFoundError, UnsupportedError) as error:
            reasons[system.name] = str(error)
            continue
        if not await _has_some(engine, workshop.collection.relevant_documents()):
            reasons[system.name] = (
                f"'{corpus}' has none of the relevant documents of '{workshop.collection.name}'; "
                "name a corpus with the same documents."
            )
    return reasons


async def _has_some(engine: SearchEngine, ids: Iterable[str]) -> bool:
    """Return whether an engine has one of the first of these documents, as far as it can say."""
    some = tuple(sorted(ids)[:LOOKED_UP])
    try:
        (hits,) = await engine.search([Query("", len(some), only=some)])
    except UnsupportedError:
        return True
    return bool(hits.ids)


@asynccontextmanager
async def _workshop(
    collection: Collection,
    prompts: PromptLibrary,
    store: Store,
    watcher: Watcher,
    pool: Pool | None,
) -> AsyncIterator[Workshop]:
    workshop = Workshop(collection, prompts, store, watcher, pool, {}, {})
    try:
        yield workshop
    finally:
        await workshop.aclose()


async def _run_cell(
    cell: Cell, topics: list[Topic], plan: Plan, workshop: Workshop, at_once: int
) -> None:
    """Search for these topics, at most so many at a time."""
    experiment = plan.manifest.experiment
    corpus = experiment.corpus_of(cell.system) or workshop.collection.corpus_name
    engine = await workshop.engine(corpus, cell.system.retriever)
    name = None
    if cell.system.asks_a_model or cell.system.ranker in ASKED:
        name = cell.system.model or experiment.model
    weights = await _weights(cell, plan, workshop, engine)
    searcher: Searcher
    if workshop.pool is None:
        model = await workshop.model(name, engine) if name is not None else None
        graph = build_search_graph(engine, model, prompts=workshop.prompts)
        searcher = partial(searched, graph)
    else:
        fingerprint = (await engine.info()).fingerprint
        place = Place(corpus, fingerprint, cell.system.retriever, name)
        searcher = partial(_search_there, workshop.pool, place)

    async def search(topic: Topic) -> None:
        record = await _search(cell, topic, plan, searcher, weights.get(topic.id), at_once)
        workshop.store.add(record)
        workshop.watcher.finished(record)

    await all_of(topics, search, at_once)


async def _search_there(
    pool: Pool, place: Place, query: str, context: Context
) -> Mapping[str, Any]:
    return await pool.do(search_there, Search.of(place, query, context))


async def _search(
    cell: Cell, topic: Topic, plan: Plan, searcher: Searcher, weights: Path | None, at_once: int
) -> Record:
    """Search for one topic."""
    context = cell.context(plan.manifest.experiment)
    if weights is not None:
        options = {**context.options, "weights": str(weights)}
        context = context.model_copy(update={"options": options})
    key = dict(
        zip(("attribute", "queries", "system", "seed", "topic"), cell.key(topic), strict=True)
    )
    found = await searcher(topic.text(cell.form.keywords), context)
    told = {} if "error" in found else {"at_once": at_once}
    return Record.model_validate({**key, **found, **told})


async def _weights(
    cell: Cell, plan: Plan, workshop: Workshop, engine: SearchEngine
) -> dict[str, Path]:
    """Return the file of weights for each topic, trained on the topics of the other folds."""
    training = cell.system.train
    if training is None:
        return {}
    context = cell.context(plan.manifest.experiment)
    method = context.strategy.final_step
    names = [topic.id for topic in plan.topics]
    paths: dict[str, Path] = {}
    examples = None
    folds = folds_of(names, min(training.folds, len(names)))
    for number, fold in enumerate(folds):
        path = workshop.store.weights(cell.system.name, cell.attribute, cell.form, number)
        paths.update(dict.fromkeys(fold, path))
        if path.exists():
            continue
        if examples is None:
            workshop.watcher.preparing(f"training {cell.system.name}")
            queries = {topic.id: topic.text(cell.form.keywords) for topic in plan.topics}
            examples = await gather(
                engine, queries, workshop.collection.qrels, context, depth=training.depth
            )
        others = [name for name in names if name not in fold]
        model = await train(method, examples, others, training.options)
        model.save(path)
    return paths
