"""Running an experiment: all searches that are not done yet, several at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fairqr.agents.cache import ReplyCache
from fairqr.agents.chat import ChatModel
from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.models import open_model
from fairqr.agents.ranking.model import RankingModel
from fairqr.agents.ranking.open import open_ranking_model
from fairqr.agents.refiner import Refiner
from fairqr.errors import QueryError
from fairqr.evaluation.at_once import all_of
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.topics import Topic
from fairqr.evaluation.experiments.plan import Cell, Plan
from fairqr.evaluation.experiments.specification import System
from fairqr.evaluation.experiments.store import Record, Round, Store
from fairqr.evaluation.experiments.training import folds_of, gather, train
from fairqr.graph.builder import build_graph
from fairqr.graph.rankers import ASKED, Rankers, open_language_model
from fairqr.graph.result import SearchResult
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.catalog import Backend, Catalog, Choice
from fairqr.retrieval.index import Index, Progress
from fairqr.retrieval.vectors.encoder import PROBE
from fairqr.retrieval.vectors.open import DEFAULT_ENCODER, open_encoder, open_retriever
from fairqr.settings import environment

__all__ = ["Watcher", "run_plan"]


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
        indexes: By backend and retriever.
        models: By name, and for those that need an index, by that too.
    """

    collection: Collection
    prompts: PromptLibrary
    store: Store
    watcher: Watcher
    indexes: dict[tuple[str, str], Index]
    models: dict[tuple[str, str], ChatModel | Refiner | RankingModel]

    async def index(self, backend: Backend, retriever: str) -> Index:
        """Return the collection's index."""
        key = (backend, retriever)
        if key not in self.indexes:
            progress = self.watcher.preparing
            plain = await Catalog().resolve(
                self.collection.corpus_name,
                Choice(backend),
                lambda name: progress(f"indexing {name}") or (lambda count: None),
            )
            self.indexes[key] = await open_retriever(
                plain, retriever, progress(f"encoding {plain.name}")
            )
        return self.indexes[key]

    async def model(self, name: str, index: Index) -> ChatModel | Refiner | RankingModel:
        """Return what refines or ranks, started; its replies are kept with the experiment."""
        # Feedback reads its words from the index, so each index has one of its own.
        key = (name, str(id(index)) if name == "feedback" else "")
        if key not in self.models:
            model = open_language_model(name, index=index, cache=ReplyCache(self.store.replies))
            await model.start()
            self.models[key] = model
        return self.models[key]

    async def close(self) -> None:
        """Close the indexes."""
        for index in self.indexes.values():
            await index.close()


async def run_plan(
    plan: Plan,
    collection: Collection,
    store: Store,
    *,
    prompts: PromptLibrary,
    watcher: Watcher,
    at_once: int = 4,
) -> list[str]:
    """Do all searches of a plan that are not done yet.

    Args:
        plan: What is to be done.
        collection: Which it was made for.
        store: Where results go; locked while this runs.
        prompts: Where prompts come from.
        watcher: Told how far it has come.
        at_once: How many searches may be under way at the same time.

    Returns:
        Sentences about systems that were left out, since what they need is not there.

    Raises:
        FairqrError: A search cannot be done for a reason that concerns more than its topic; what
            was done until then is kept.
    """
    left_out: list[str] = []
    before = {record.key for record in store.records()} if store.exists() else set()
    await _check_needs(
        plan,
        [c for c in plan.cells if any(c.key(topic) not in before for topic in plan.topics)],
        prompts,
    )
    with store.locked():
        store.begin(plan.manifest)
        done = {record.key for record in store.records()}
        async with _workshop(collection, prompts, store, watcher) as workshop:
            with store.writing():
                keys = [cell.key(topic) for cell in plan.cells for topic in plan.topics]
                watcher.total(len(keys), sum(key in done for key in keys))
                for cell in plan.cells:
                    todo = [topic for topic in plan.topics if cell.key(topic) not in done]
                    if lacking := _lacks(cell.system, plan):
                        left_out.append(f"'{cell.system.name}' was left out: {lacking}")
                    elif todo:
                        watcher.started(cell)
                        await _run_cell(cell, todo, plan, workshop, at_once)
    return list(dict.fromkeys(left_out))


@asynccontextmanager
async def _workshop(
    collection: Collection, prompts: PromptLibrary, store: Store, watcher: Watcher
) -> AsyncIterator[Workshop]:
    workshop = Workshop(collection, prompts, store, watcher, {}, {})
    try:
        yield workshop
    finally:
        await workshop.close()


async def _check_needs(plan: Plan, cells: Sequence[Cell], prompts: PromptLibrary) -> None:
    """Start what these cells ask and encode with, before anything is written or searched for.

    Raises:
        ModelUnavailableError: A model or an encoder is not there.
        ModelError: An encoder fails.
    """
    experiment = plan.manifest.experiment
    systems = [cell.system for cell in cells if not _lacks(cell.system, plan)]
    asking = {s.model or experiment.model for s in systems if s.asks_a_model}
    for name in sorted(asking - {FeedbackRefiner.name}):
        await open_model(name, cache=False).start()
    rankers = {}
    for cell in cells:
        if cell.system.ranker is not None and not _lacks(cell.system, plan):
            rankers[cell.system.name] = cell
    for cell in rankers.values():
        model = None
        if cell.system.ranker in ASKED:
            model = open_ranking_model(cell.system.model or experiment.model, cache=False)
        ranker = Rankers(None, model, prompts).ranker_for(cell.context(experiment))
        if ranker is not None:
            await ranker.start()
    for retriever in sorted({s.retriever for s in systems}):
        kind, _, encoder = retriever.partition(":")
        if kind == "dense":
            await open_encoder(encoder or DEFAULT_ENCODER).encode_query(PROBE)


def _lacks(system: System, plan: Plan) -> str:
    """Say what a system needs that is not there."""
    backend = system.backend or plan.manifest.experiment.backend
    if backend == "elasticsearch" and not environment("ELASTICSEARCH_URL"):
        return "it needs a server; name one with FAIRQR_ELASTICSEARCH_URL and run again."
    return ""


async def _run_cell(
    cell: Cell, topics: list[Topic], plan: Plan, workshop: Workshop, at_once: int
) -> None:
    """Search for these topics, at most so many at a time."""
    experiment = plan.manifest.experiment
    index = await workshop.index(cell.system.backend or experiment.backend, cell.system.retriever)
    model = None
    if cell.system.asks_a_model or cell.system.ranker in ASKED:
        model = await workshop.model(cell.system.model or experiment.model, index)
    weights = await _weights(cell, plan, workshop, index)
    graph = build_graph(index=index, model=model, prompts=workshop.prompts)

    async def search(topic: Topic) -> None:
        record = await _search(cell, topic, plan, graph, weights.get(topic.id), at_once)
        workshop.store.add(record)
        workshop.watcher.finished(record)

    await all_of(topics, search, at_once)


async def _search(
    cell: Cell, topic: Topic, plan: Plan, graph: Any, weights: Path | None, at_once: int
) -> Record:
    """Search for one topic; a query that finds nothing is a result too."""
    context = cell.context(plan.manifest.experiment)
    if weights is not None:
        options = {**context.options, "weights": str(weights)}
        context = context.model_copy(update={"options": options})
    key = dict(
        zip(("attribute", "queries", "system", "seed", "topic"), cell.key(topic), strict=True)
    )
    query = topic.text(cell.form.keywords)
    try:
        state = await graph.ainvoke({"query": query}, context=context)
    except QueryError as error:
        return Record.model_validate({**key, "error": str(error)})
    result = SearchResult.model_validate(state["result"])
    return Record.model_validate({**key, **_told(result), "at_once": at_once})


def _told(result: SearchResult) -> Mapping[str, Any]:
    """Return what is kept of a result."""
    name = next(iter(result.target))
    usage = result.usage
    return {
        "ids": [document.id for document in result.ranking],
        "rounds": [
            Round(ids=r.ids, exposure=r.exposure[name], divergence=r.divergence)
            for r in result.iterations
        ],
        "best_round": result.best_iteration,
        "target": result.target[name],
        "divergence": result.divergence,
        "stop_reason": result.stop_reason,
        "model_calls": usage.model_calls + usage.cached_calls,
        "tokens": usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens,
        "milliseconds": round(usage.milliseconds + usage.cached_milliseconds, 1),
        "warnings": result.warnings,
    }


async def _weights(cell: Cell, plan: Plan, workshop: Workshop, index: Index) -> dict[str, Path]:
    """Return the file of weights for each topic, trained on the topics of the other folds."""
    training = cell.system.train
    if training is None:
        return {}
    context = cell.context(plan.manifest.experiment)
    method = context.strategy.final_step
    names = [topic.id for topic in plan.topics]
    paths: dict[str, Path] = {}
    examples = None
    folds = folds_of(names, min(training.folds, len(names)), cell.seed)
    for number, fold in enumerate(folds):
        path = workshop.store.weights(cell.system.name, cell.attribute, cell.form, number)
        paths.update(dict.fromkeys(fold, path))
        if path.exists():
            continue
        if examples is None:
            workshop.watcher.preparing(f"training {cell.system.name}")
            queries = {topic.id: topic.text(cell.form.keywords) for topic in plan.topics}
            examples = await gather(
                index, queries, workshop.collection.qrels, context, depth=training.depth
            )
        others = [name for name in names if name not in fold]
        model = await train(method, examples, others, training.options)
        model.save(path)
    return paths
