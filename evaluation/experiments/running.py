"""An experiment with searches from its file to its records: a stage for each cell of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, product
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
from fairqr.evaluation.collections.query_targets import as_target, check_target
from fairqr.evaluation.experiments import specification as specs
from fairqr.evaluation.experiments.engine import Done, check_answered, refusal_of, run_tasks
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.measuring import measure as measure
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.training import folds_of, gather, train
from fairqr.evaluation.experiments.workers import RunOptions, Tools, make_ready
from fairqr.graph.opening import open_parts
from fairqr.graph.running import usage_of
from fairqr.graph.search.context import METHODS, Context
from fairqr.graph.search.rankers import ASKED
from fairqr.graph.search.result import SearchResult
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.encoders.opening import AUTO, Retriever, automatic
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.fairness.relevance import FITTED, held_out
from fairqr.retrieval.fairness.target import Target
from fairqr.retrieval.rerankers.learning import TrainedModel
from fairqr.retrieval.rerankers.protection import named_groups
from fairqr.retrieval.sources.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Cell:
    """A system on all topics, for one attribute, form of query and seed.

    Attributes:
        collection: The name of the collection; estimates of relevance never learnt from it.
        corpus: As :meth:`fairqr.retrieval.sources.catalog.Catalog.resolve` takes it.
        context: What its searches are asked to do.
    """

    attribute: str
    form: str
    system: specs.System
    seed: int
    collection: str
    corpus: str
    context: Context

    def key(self, topic: Topic) -> tuple[str, str, str, int, str]:
        """Return the key of the record of a topic."""
        return self.attribute, self.form, self.system.name, self.seed, topic.id

    @property
    def model(self) -> str | None:
        """The name of the model that refines or re-ranks; None if nothing asks one."""
        asks = self.context.rounds > 0 or self.context.strategy.ranker in ASKED
        return self.system.model if asks else None


def manifest_of(
    experiment: specs.Experiment, collection: Collection, prompts: PromptLibrary
) -> specs.Manifest:
    """Hold an experiment against a collection, and return what it is run with.

    Raises:
        InputError: The collection lacks an attribute, or a target or a context does not fit it.
    """
    schema, judge = collection.corpus.schema, experiment.judge or collection.about.target
    named = [TIMES.join(factors_of(name)) for name in experiment.attributes]
    attributes = tuple(dict.fromkeys(named)) or tuple(schema.attributes)
    dimensions = [Dimension.named(schema, it) for it in attributes]
    options = [it.settings.get("options", {}) for it in experiment.systems]
    options += [it.train.options for it in experiment.systems if it.train]
    protected = [str(it["protected"]) for it in options if it.get("protected") not in (None, "all")]
    targets = [experiment.target, *(it.settings.get("target") for it in experiment.systems)]
    if experiment.protected not in (None, "all") and not experiment.attributes:
        # The groups say which attribute is meant.
        of_each = [it.name for it in dimensions], [it.groups for it in dimensions]
        dimensions = [dimensions[named_groups(experiment.protected, *of_each)[0]]]
    for dimension in dimensions:
        check_target(as_target(judge), [dimension])
        for target in filter(None, targets):
            Target.parse(target).check([dimension.attribute])
        for text in protected:
            named_groups(text, [dimension.name], [dimension.groups])
    has_keywords = any(topic.keywords for topic in collection.topics)
    forms = dict.fromkeys(it if has_keywords else "title" for it in experiment.queries)
    systems, used = list[specs.System](), dict[str, str]()
    for system in experiment.systems:
        context = system.context(k=experiment.k)
        refines = ["refine"] * system.asks_a_model
        for kind in [*refines, *(it for it in ASKED if it == context.strategy.ranker)]:
            template = prompts.get(kind, context.prompts.get(kind))
            used[f"{kind}={template.version}"] = template.sha256
        # What auto stands for changes once an encoder is pulled. A corpus that is named may be an
        # engine with a ranking of its own.
        retriever = METHODS[system.method].searched_by(system.retriever or AUTO)
        if retriever == AUTO and system.corpus is None:
            retriever = automatic()
        systems.append(system.model_copy(update={"retriever": retriever}))
    topics = [topic.id for topic in collection.topics if collection.relevant(topic.id)]
    notes = [f"Estimates of relevance, if any, were fitted on: {held_out(collection.name)}."]
    if experiment.documents:
        notes.append(
            f"At most {experiment.documents:,} documents were searched: those judged for the "
            "topics, and others by chance. A corpus that a system names was searched whole."
        )
    measures = experiment.measures
    if as_target(judge) == "trec2022" and measures == specs.MEASURES:
        measures = specs.OF_THE_TRACK
    changes = {"systems": tuple(systems), "measures": measures}
    return specs.Manifest(
        experiment=experiment.model_copy(update=changes),
        collection=collection.name,
        collection_title=collection.title,
        collection_note=collection.about.note,
        fingerprints=collection.fingerprints(),
        attributes=tuple(it.name for it in dimensions),
        query_forms=tuple(forms),
        topics=tuple(topics[: experiment.topics]),
        judge=judge,
        prompts=used,
        notes=tuple(notes),
    )


def cells_of(manifest: specs.Manifest, collection: Collection, corpus: str) -> list[Cell]:
    """Return the cells of an experiment, in the order in which they are done.

    Args:
        manifest: What is run.
        collection: What is searched.
        corpus: What the systems search that name no corpus, as :class:`Cell` has it.
    """
    experiment, found = manifest.experiment, list[Cell]()
    common: dict[str, Any] = {"target": experiment.target, "k": experiment.k}
    each = product(manifest.attributes, manifest.query_forms, experiment.systems)
    for attribute, form, named in each:
        system = named.for_collection(collection.name)
        factors = factors_of(attribute)
        searched = system.corpus or corpus
        own = common | {"attributes": factors, "intersect": len(factors) > 1}
        for seed in experiment.seeds_of(system):
            context = system.context(**own, seed=seed)
            found += [Cell(attribute, form, system, seed, collection.name, searched, context)]
    return found


async def open_engine(
    tools: Tools, cell: Cell, watcher: StageWatcher | None = None
) -> SearchEngine:
    """Return the engine of a cell, whose corpus is indexed first if it has to be.

    Its estimates of relevance were not fitted on the collection that is to report them. A hybrid
    stores vectors first, so that its figures do not depend on what ran before.
    """
    retriever, count = cell.system.retriever or AUTO, (watcher or StageWatcher()).count

    async def opened() -> Any:
        stored = Retriever.of(retriever)._replace(stores_vectors=True)
        engine: Any = await Catalog().resolve(
            cell.corpus, retriever=stored, progress=lambda name: count(f"preparing {name}")
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
    name, own = cell.model, f"{cell.corpus} {cell.system.retriever}"

    async def opened() -> Any:
        engine, model = await open_engine(tools, cell), None
        if name is not None:
            # Feedback reads its words from the engine, so each engine has one of its own.
            place = f"model {name} {own if name == FeedbackRefiner.name else ''}"
            model = await tools.started(
                place, name, lambda: open_model(name, engine=engine, cache=tools.replies)
            )
        return open_parts(engine, model, prompts=tools.prompts).graph("search")

    return await tools.keep(f"graph {own} {name}", name, opened)


async def search(
    tools: Tools, cell: Cell, topic: Topic, weights: TrainedModel | None
) -> Done[specs.SearchRecord]:
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
    facts = dict(zip(specs.SearchRecord.keys, cell.key(topic), strict=True))
    context = cell.context
    if weights is not None:
        options = {**context.options, "weights": weights}
        context = context.model_copy(update={"options": options})
    try:
        query = topic.text(specs.keywords_of(cell.form))
        state = await graph.ainvoke({"query": query}, context=context)
    except QueryError as error:
        return Done((specs.SearchRecord(**facts, error=str(error)),))
    result, usage = SearchResult.model_validate(state["result"]), usage_of(state["result"])
    name = next(iter(result.target))
    record = specs.SearchRecord(
        **facts,
        **spent(usage),
        at_once=tools.at_once,
        **result.model_dump(include={"divergence", "stop_reason", "warnings"}),
        ids=[document.id for document in result.ranking],
        rounds=[
            specs.Round(ids=it.ids, exposure=it.exposure[name], divergence=it.divergence)
            for it in result.iterations
        ],
        best_round=result.best_iteration,
        target=result.target[name],
        milliseconds=round(result.usage.milliseconds + result.usage.cached_milliseconds, 1),
    )
    topics = [round_.topic for round_ in result.iterations] + [result.unused_topic]
    groups = [group for round_ in result.iterations for group in round_.refinements]
    statuses = [topic.status for topic in topics if topic is not None]
    statuses += [group.status for group in (*groups, *result.unused_refinements)]
    if (by_model := result.reranking) is not None:
        answers = by_model.asked - sum(by_model.failures.values())
        statuses += [*by_model.failures, *["ok"] * answers]
    if result.stop_reason == "budget" and context.budget.seconds is not None:
        # The search's own limit cut questions off.
        statuses = [status for status in statuses if status != "timeout"]
    message = next(iter(result.warnings), "")
    checked = [check_answered(status, message) for status in statuses]
    return Done((record,), refusal=refusal_of(checked))


async def run(experiment: specs.Experiment, options: RunOptions) -> None:
    """Do all searches that are not done yet.

    Everything that they use is opened before anything is written. A system is left out, and the
    watcher gets the reason, if its corpus is not here or cannot rank as it asks, if a model is not
    there that it names itself, or if it finds nothing to learn from.

    Raises:
        FairqrError: A search cannot be done for a reason that concerns more than its topic; the
            results so far are kept.
    """
    watcher, store = options.watcher, specs.RunFolder(options.folder)
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
    is_left = [not done >= {cell.key(topic) for topic in topics} for cell in cells]
    weights = dict[str, TrainedModel]()
    async with options.tools(store.replies) as tools:
        by_system = {cell.system.name: cell for cell in compress(cells, is_left)}
        away = []
        for name, cell in by_system.items():
            if not await is_here(tools, cell, watcher, usual_model=experiment.model):
                away.append(name)

        async def start(cell: Cell) -> None:
            weights.clear()
            try:
                weights.update(await weights_of(cell, topics, collection, tools, watcher))
            except InputError as error:
                watcher.note(f"'{cell.system.name}' was left out: {error}")

        async def do(task: tuple[Cell, Topic]) -> Done[specs.SearchRecord]:
            if task[0].system.train and not weights:
                return Done(())
            return await tools.do(search, *task, weights.get(task[1].id))

        here = [cell for cell in cells if cell.system.name not in away]
        here.sort(key=lambda cell: cell.model is None)  # what takes long comes first: time left
        with store.locked():
            store.begin(manifest)
            await run_tasks(
                [*product(here, topics)],
                do,
                store.lines,
                title="searches",
                keys=lambda task: [task[0].key(task[1])],
                place=lambda task: task[0],
                start=start,
                model=lambda cell: cell.model or cell.system.name,
                watcher=watcher,
                at_once=tools.at_once,
            )


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
    if (training := cell.system.train) is None:
        return {}
    queries = {it.id: it.text(specs.keywords_of(cell.form)) for it in topics}
    found = dict[str, TrainedModel]()
    folds = folds_of([*queries], min(training.folds, len(queries)))
    engine, progress = await open_engine(tools, cell), watcher.count(f"training {cell.system.name}")
    examples = await gather(engine, queries, collection.qrels, cell.context, depth=training.depth)
    for number, fold in enumerate(folds, 1):
        step, others = cell.context.strategy.final_step, queries.keys() - {*fold}
        found |= dict.fromkeys(fold, await train(step, examples, others, training.options))
        progress(number, len(folds))
    return found
