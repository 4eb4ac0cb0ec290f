"""An experiment with searches from its file to its records: a stage for each cell of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from fairqr.agents.models.opening import open_model
from fairqr.agents.refiners.feedback import FeedbackRefiner
from fairqr.base.errors import (
    IndexNotFoundError,
    InputError,
    ModelUnavailableError,
    QueryError,
    UnsupportedError,
)
from fairqr.evaluation.collections.collection import Collection, Topic
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.measuring import measure as measure
from fairqr.evaluation.experiments.planning import Cell, cells_of, manifest_of
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.specification import (
    Experiment,
    RoundRecord,
    RunFolder,
    SearchRecord,
    keywords_of,
)
from fairqr.evaluation.experiments.tasks import (
    Done,
    Tasks,
    check_answered,
    refusal_of,
    run_tasks,
)
from fairqr.evaluation.experiments.training import folds_of, gather, train
from fairqr.evaluation.experiments.workers import RunOptions, Tools, make_ready
from fairqr.graph.opening import open_parts
from fairqr.graph.running import usage_of
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.encoders.opening import AUTO, Retriever
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.relevance import FITTED, held_out
from fairqr.retrieval.rerankers.learning import TrainedModel
from fairqr.retrieval.sources.catalog import Catalog


async def open_engine(
    tools: Tools, cell: Cell, watcher: StageWatcher | None = None
) -> SearchEngine:
    """Return the engine of a cell, whose corpus is indexed first if it has to be.

    Its estimates of relevance were not fitted on the collection that is to report them. A hybrid
    stores vectors first, so that its figures do not depend on what ran before.
    """
    retriever = cell.system.retriever or AUTO
    count = (watcher or StageWatcher()).count

    async def opened() -> Any:
        storing_vectors = Retriever.of(retriever)._replace(stores_vectors=True)
        engine: Any = await Catalog().resolve(
            cell.corpus,
            retriever=storing_vectors,
            progress=lambda name: count(f"preparing {name}"),
        )
        if hasattr(engine, "calibrations"):
            engine.calibrations = FITTED[held_out(cell.collection)]
        return engine

    return await tools.keep(f"engine {cell.corpus} {retriever}", cell.collection, opened)


async def open_graph(tools: Tools, cell: Cell) -> Any:
    """Return the graph that searches for a cell, with its model started.

    Raises:
        ModelUnavailableError: A model is not there.
    """
    name = cell.model
    of_engine = f"{cell.corpus} {cell.system.retriever}"

    async def opened() -> Any:
        engine = await open_engine(tools, cell)
        model = None
        if name is not None:
            # Feedback reads its words from the engine, so each engine has one of its own.
            suffix = of_engine if name == FeedbackRefiner.name else ""
            model = await tools.started(
                f"model {name} {suffix}",
                name,
                lambda: open_model(name, engine=engine, cache=tools.replies),
            )
        return open_parts(engine, model, prompts=tools.prompts).graph("search")

    return await tools.keep(f"graph {of_engine} {name}", name, opened)


async def search(
    tools: Tools, cell: Cell, topic: Topic, weights: TrainedModel | None
) -> Done[SearchRecord]:
    """Do a search; a query that finds nothing is a result too.

    Args:
        tools: What is open here.
        cell: How to search.
        topic: What to search for.
        weights: What the final step ranks by, if it was trained.

    Raises:
        ModelError: The model was away for a part of it.
    """
    graph = await open_graph(tools, cell)
    ids = dict(zip(SearchRecord.keys, cell.key(topic), strict=True))
    context = cell.context
    if weights is not None:
        options = {**context.options, "weights": weights}
        context = context.model_copy(update={"options": options})
    query = topic.text(keywords_of(cell.form))
    try:
        state = await graph.ainvoke({"query": query}, context=context)
    except QueryError as error:
        return Done((SearchRecord(**ids, error=str(error)),))
    result = SearchResult.model_validate(state["result"])
    attribute = next(iter(result.target))
    rounds = [
        RoundRecord(
            ids=iteration.ids,
            exposure=iteration.exposure[attribute],
            divergence=iteration.divergence,
        )
        for iteration in result.iterations
    ]
    milliseconds = result.usage.milliseconds + result.usage.cached_milliseconds
    record = SearchRecord(
        **ids,
        **spent(usage_of(state["result"])),
        at_once=tools.at_once,
        **result.model_dump(include={"divergence", "stop_reason", "warnings"}),
        ids=[document.id for document in result.ranking],
        rounds=rounds,
        best_round=result.best_iteration,
        target=result.target[attribute],
        milliseconds=round(milliseconds, 1),
    )
    message = next(iter(result.warnings), "")
    checked = [check_answered(status, message) for status in _statuses(result, context)]
    return Done((record,), refusal=refusal_of(checked))


def _statuses(result: SearchResult, context: Context) -> list[str]:
    """Return how each question to a model ended."""
    topics = [iteration.topic for iteration in result.iterations] + [result.unused_topic]
    statuses: list[str] = [topic.status for topic in topics if topic is not None]
    for iteration in result.iterations:
        statuses += [group.status for group in iteration.refinements]
    statuses += [group.status for group in result.unused_refinements]
    reranking = result.reranking
    if reranking is not None:
        answers = reranking.asked - sum(reranking.failures.values())
        statuses += [*reranking.failures, *["ok"] * answers]
    if result.stop_reason == "budget" and context.budget.seconds is not None:
        # The search's own limit cut questions off.
        statuses = [status for status in statuses if status != "timeout"]
    return statuses


async def run(experiment: Experiment, options: RunOptions) -> None:
    """Do all searches that are not done yet.

    Everything that they use is opened before anything is written. A system is left out, and the
    watcher gets the reason, if its corpus is not here or cannot rank as it asks, if a model is not
    there that it names itself, or if it finds nothing to learn from.

    Raises:
        FairqrError: A search cannot be done for a reason that concerns more than its topic; the
            results so far are kept.
    """
    watcher = options.watcher
    store = RunFolder(options.folder)
    collection = find_collection(experiment.collection, experiment.split)
    manifest = manifest_of(experiment, collection, options.prompts)
    store.check(manifest)
    done = store.lines.done()
    topics = [topic for topic in collection.topics if topic.id in manifest.topics]
    corpus = collection.corpus_name
    if experiment.documents:
        reading = watcher.count(f"reading {collection.name}")
        corpus = collection.part(manifest.topics, experiment.documents, reading)
    cells = cells_of(manifest, collection, corpus)
    remaining = [cell for cell in cells if not done >= {cell.key(topic) for topic in topics}]
    weights: dict[str, TrainedModel] = {}

    async def start(cell: Cell) -> None:
        weights.clear()
        try:
            weights.update(await weights_of(cell, topics, collection, tools, watcher))
        except InputError as error:
            watcher.note(f"'{cell.system.name}' was left out: {error}")

    async def do(task: tuple[Cell, Topic]) -> Done[SearchRecord]:
        cell, topic = task
        if cell.system.train and not weights:
            return Done(())
        return await tools.do(search, cell, topic, weights.get(topic.id))

    async with options.tools(store.replies) as tools:
        away = []
        for name, cell in {cell.system.name: cell for cell in remaining}.items():
            if not await is_here(tools, cell, watcher, usual_model=experiment.model):
                away.append(name)
        here = [cell for cell in cells if cell.system.name not in away]
        here.sort(key=lambda cell: cell.model is None)  # what takes long comes first: time left
        tasks = Tasks(
            tasks=[*product(here, topics)],
            do=do,
            lines=store.lines,
            title="searches",
            keys=lambda task: [task[0].key(task[1])],
            start=start,
            name_at=lambda cell: cell.model or cell.system.name,
            place=lambda task: task[0],
        )
        with store.locked():
            store.begin(manifest)
            await run_tasks(tasks, watcher=watcher, at_once=tools.at_once)


async def is_here(
    tools: Tools, cell: Cell, watcher: StageWatcher, *, usual_model: str = ""
) -> bool:
    """Open what a cell uses; return whether its documents and a model of its own are here.

    Args:
        tools: What is open here.
        cell: A cell of the system.
        watcher: Gets the reason why it is left out.
        usual_model: The model of systems that name none, without which nothing is run.
    """
    try:
        await open_engine(tools, cell, watcher)
        await tools.do(make_ready, open_graph, cell)
    except (IndexNotFoundError, UnsupportedError) as error:
        if cell.system.corpus is None:
            raise
        watcher.note(f"'{cell.system.name}' was left out: {error}")
        return False
    except ModelUnavailableError as error:
        if cell.model == usual_model:
            raise
        watcher.note(f"'{cell.system.name}' was left out: {error}")
        return False
    return True


async def weights_of(
    cell: Cell, topics: Sequence[Topic], collection: Collection, tools: Tools, watcher: StageWatcher
) -> dict[str, TrainedModel]:
    """Return the weights that rank each topic; those of a fold learn from the other folds."""
    training = cell.system.train
    if training is None:
        return {}
    keywords = keywords_of(cell.form)
    queries = {topic.id: topic.text(keywords) for topic in topics}
    folds = folds_of([*queries], min(training.folds, len(queries)))
    engine = await open_engine(tools, cell)
    progress = watcher.count(f"training {cell.system.name}")
    examples = await gather(engine, queries, collection.qrels, cell.context, depth=training.depth)
    step = cell.context.strategy.final_step
    weights: dict[str, TrainedModel] = {}
    for number, fold in enumerate(folds, 1):
        others = queries.keys() - {*fold}
        weights |= dict.fromkeys(fold, await train(step, examples, others, training.options))
        progress(number, len(folds))
    return weights
