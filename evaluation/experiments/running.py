"""An experiment with searches from its plan to its records: a stage for each cell of its tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fairqr.agents.models.opening import open_language_model, open_model
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.base.errors import IndexNotFoundError, InputError, QueryError, UnsupportedError
from fairqr.evaluation.collections.collection import Collection, Topic
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.engine import Done, check_answered, refusal_of, run_tasks
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.measuring import MeasuredSearches, measure_experiment
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.specification import Experiment, System, keywords_of
from fairqr.evaluation.experiments.store import Manifest, Round, SearchRecord, Store
from fairqr.evaluation.experiments.training import folds_of, gather, train
from fairqr.evaluation.experiments.workers import RunOptions, Tools
from fairqr.evaluation.measures.measure import parse_measures
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import METHODS, Context
from fairqr.graph.search.rankers import ASKED, Rankers
from fairqr.graph.search.result import SearchResult
from fairqr.graph.steps import usage_of
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.encoders.encoder import PROBE
from fairqr.retrieval.encoders.opening import AUTO, Retriever, automatic
from fairqr.retrieval.engines.elasticsearch.vectors import FieldHybridEngine
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.hybrid.texts import EncodedPoolEngine
from fairqr.retrieval.engines.tantivy.store import Announce
from fairqr.retrieval.fairness.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.fairness.relevance import FITTED, held_out
from fairqr.retrieval.fairness.target import Target
from fairqr.retrieval.sources.catalog import Catalog

LOOKED_UP = 100
"""How many relevant documents a corpus is asked for, to know whether it is the right one."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A system on all topics, for one attribute, form of query and seed."""

    attribute: str
    form: str
    system: System
    seed: int

    def key(self, topic: Topic) -> tuple[str, str, str, int, str]:
        """Return the key of the record of a topic."""
        return self.attribute, self.form, self.system.name, self.seed, topic.id

    def context(self, experiment: Experiment) -> Context:
        """Return the context that searches have."""
        factors = factors_of(self.attribute)
        common: dict[str, Any] = {
            "attributes": factors,
            "intersect": len(factors) > 1,
            "target": experiment.target,
            "k": experiment.k,
            "method": self.system.method,
            "seed": self.seed,
        }
        return Context.of(**common | self.system.settings)


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a run.

    Attributes:
        manifest: What it is done with.
        topics: Those that are searched for.
        cells: In the order in which they are done.
    """

    manifest: Manifest
    topics: tuple[Topic, ...]
    cells: tuple[Cell, ...]


def make_plan(experiment: Experiment, collection: Collection, prompts: PromptLibrary) -> Plan:
    """Hold an experiment against a collection.

    Raises:
        InputError: The collection lacks an attribute or all forms of query, or a target or a
            context does not fit it.
    """
    systems = tuple(
        system.model_copy(update={"retriever": _searched_by(experiment, system)})
        for system in experiment.systems
    )
    experiment = experiment.model_copy(update={"systems": systems})
    schema = collection.corpus.schema
    named = [TIMES.join(factors_of(name)) for name in experiment.attributes]
    attributes = tuple(dict.fromkeys(named)) or tuple(schema.attributes)
    for attribute in attributes:
        dimension = Dimension.named(schema, attribute)
        if experiment.target is not None:
            Target.parse(experiment.target).check([dimension.attribute])
    longest = max(len(topic.keywords) for topic in collection.topics)
    forms = [it for it in dict.fromkeys(experiment.queries) if longest or not keywords_of(it)]
    if not forms:
        raise InputError(
            f"The topics of '{collection.name}' have no keywords; add 'title' to the queries."
        )
    topics = tuple(topic for topic in collection.topics if collection.relevant(topic.id))
    topics = topics[: experiment.topics]
    cells = tuple(
        Cell(attribute, form, system, seed)
        for attribute, form, system in product(attributes, forms, experiment.all_systems())
        for seed in experiment.seeds_of(system)
    )
    used: dict[str, str] = {}
    for cell in cells:
        context, kinds = cell.context(experiment), {cell.system.ranker} & {*ASKED}
        for kind in [*["refine"] * cell.system.asks_a_model, *filter(None, kinds)]:
            template = prompts.get(kind, context.prompts.get(kind))
            used[f"{kind}={template.version}"] = template.sha256
    manifest = Manifest(
        experiment=experiment,
        collection=collection.name,
        collection_title=collection.title,
        collection_note=collection.about.note,
        fingerprints=collection.fingerprints(),
        attributes=attributes,
        query_forms=tuple(forms),
        topics=tuple(topic.id for topic in topics),
        judge=experiment.judge or collection.about.target,
        prompts=used,
        notes=tuple(_notes(experiment, collection, len(forms), len(topics))),
    )
    return Plan(manifest, topics, cells)


def _searched_by(experiment: Experiment, system: System) -> str:
    """Say what ``auto`` stands for, which changes once an encoder is pulled.

    A corpus that is named may be an engine with a ranking of its own.
    """
    named = METHODS[system.method].searched_by(experiment.retriever_of(system))
    is_ours = named == AUTO and experiment.corpus_of(system) is None
    return automatic() if is_ours else named


def _notes(
    experiment: Experiment, collection: Collection, forms: int, topics: int
) -> Iterator[str]:
    """Yield sentences about what the experiment names and the collection lacks.

    Raises:
        InputError: There is one topic only, so nothing to train on.
    """
    if any(not system.retriever.startswith(("bm25", "dense")) for system in experiment.systems):
        yield f"Estimates of relevance were fitted on: {held_out(collection.name)}."
    if forms < len(set(experiment.queries)):
        yield "The topics have no keywords, so only their titles are searched for."
    if missing := sum(not collection.relevant(topic.id) for topic in collection.topics):
        yield f"Left out are topics without a relevant document: {missing}."
    for system in experiment.all_systems():
        if system.train is None or system.train.folds <= topics:
            continue
        if topics < 2:
            raise InputError(
                f"'{system.name}' is trained on the other topics, and there is one topic only; "
                "use at least two, or leave the system out."
            )
        yield (
            f"'{system.name}' is trained in {topics} folds instead of {system.train.folds}, "
            "since there are no more topics."
        )
    measures = parse_measures(experiment.measures)
    deepest = max(factor.k or 0 for measure in measures for factor in measure.factors)
    if deepest > experiment.k:
        yield (
            f"Systems return {experiment.k} documents, and measures look at up to {deepest}: what "
            "is not returned counts as not there."
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The engine and the model of some searches.

    Attributes:
        collection: The name of the collection; estimates of relevance never learnt from it.
        corpus: As :meth:`fairqr.retrieval.sources.catalog.Catalog.resolve` takes it.
        fingerprint: The engine's fingerprint must be this.
        retriever: ``bm25``, ``dense`` or ``dense:ENCODER``.
        model: Refines or re-ranks; None if nothing does.
        at_once: How many searches run at the same time, for the record.
    """

    collection: str
    corpus: str
    fingerprint: str
    retriever: str
    model: str | None
    at_once: int


@dataclass(frozen=True, slots=True)
class Search:
    """A search to do.

    Attributes:
        key: That of its record.
        context: The values of the context that are not the default ones.
        weights: The content of the file of weights that the final step reads, if any.
    """

    key: tuple[Any, ...]
    query: str
    context: Mapping[str, Any]
    weights: bytes | None


async def check_needs(tools: Tools, experiment: Experiment, cells: Sequence[Cell]) -> None:
    """Start the models and encoders of these cells, before anything is written.

    Raises:
        ModelUnavailableError: A model or an encoder is not there.
        ModelError: An encoder fails.
    """
    by_name = {cell.system.name: cell for cell in cells}
    asking = {it.system.model or experiment.model for it in cells if it.system.asks_a_model}
    for name in sorted(asking - {FeedbackRefiner.name}):
        await open_model(name, cache=False).start()
    for cell in by_name.values():
        if (kind := cell.system.ranker) is not None:
            name = cell.system.model or experiment.model
            model = open_language_model(name, cache=False) if kind in ASKED else None
            ranker = Rankers(None, model, tools.prompts).ranker_for(cell.context(experiment))
            if ranker is not None:
                await ranker.start()
    # A corpus that is named has vectors of its own, and says what encodes queries.
    systems = [cell.system for cell in by_name.values()]
    for retriever in {it.retriever for it in systems if experiment.corpus_of(it) is None}:
        if (encoder := Retriever.of(retriever).encoder) is not None:
            await encoder.encode_query(PROBE)


async def open_engine(
    tools: Tools, collection: str, corpus: str, retriever: str, progress: Announce | None = None
) -> SearchEngine:
    """Return the engine of a corpus, which is indexed first if it has to be.

    Its estimates of relevance were not fitted on the collection that is to report them.
    """

    async def opened() -> SearchEngine:
        engine = await Catalog().resolve(corpus, retriever=retriever, progress=progress)
        if isinstance(engine, HybridEngine | EncodedPoolEngine | FieldHybridEngine):
            engine.calibrations = FITTED[held_out(collection)]
        return engine

    return await tools.keep(f"engine {collection} {corpus} {retriever}", corpus, opened)


async def search(tools: Tools, place: Place, task: Search) -> Done[SearchRecord]:
    """Do a search; a query that finds nothing is a result too.

    Raises:
        InputError: The worker has other documents.
        ModelError: The model was away for a part of it.
    """
    graph = await tools.keep(f"graph {place}", place, lambda: _open_graph(tools, place))
    context, parts = dict(task.context), dict(zip(SearchRecord.keys, task.key, strict=True))
    with tempfile.TemporaryDirectory(prefix="fairqr-") as folder:
        if task.weights is not None:
            path = Path(folder) / "weights.json"
            path.write_bytes(task.weights)
            context["options"] = {**context.get("options", {}), "weights": str(path)}
        try:
            state = await graph.ainvoke({"query": task.query}, context=Context.of(**context))
        except QueryError as error:
            return Done((SearchRecord(**parts, error=str(error)),))
    result, usage = SearchResult.model_validate(state["result"]), usage_of(state["result"])
    name = next(iter(result.target))
    record = SearchRecord(
        **parts,
        **spent(usage),
        ids=[document.id for document in result.ranking],
        rounds=[
            Round(ids=it.ids, exposure=it.exposure[name], divergence=it.divergence)
            for it in result.iterations
        ],
        best_round=result.best_iteration,
        target=result.target[name],
        divergence=result.divergence,
        stop_reason=result.stop_reason,
        milliseconds=round(result.usage.milliseconds + result.usage.cached_milliseconds, 1),
        warnings=result.warnings,
        at_once=place.at_once,
    )
    asked = [it for round_ in result.iterations for it in round_.refinements]
    statuses = [group.status for group in (*asked, *result.unused_refinements)]
    if (by_model := result.reranking) is not None:
        answers = by_model.asked - sum(by_model.failures.values())
        statuses += [*by_model.failures, *["ok"] * answers]
    if result.stop_reason == "budget":  # the search's own limit cuts questions off, too
        statuses = [status for status in statuses if status != "timeout"]
    message = next(iter(result.warnings), "")
    checked = [check_answered(status, message, usage) for status in statuses]
    return Done((record,), refusal=refusal_of(checked))


async def _open_graph(tools: Tools, place: Place) -> Any:
    engine = await open_engine(tools, place.collection, place.corpus, place.retriever)
    if (await engine.info()).fingerprint != place.fingerprint:
        raise InputError(
            f"The documents of '{place.corpus}' differ from those that the experiment began with; "
            "copy those documents, or the file of the source, to this machine."
        )
    model = None
    if (name := place.model) is not None:
        # Feedback reads its words from the engine, so each engine has one of its own.
        own = f" {place.corpus} {place.retriever}" if name == FeedbackRefiner.name else ""
        model = await tools.started(
            f"model {name}{own}", name, lambda: open_model(name, engine=engine, cache=tools.replies)
        )
    return build_search_graph(engine, model, prompts=tools.prompts)


async def run_searches(
    plan: Plan, collection: Collection, store: Store, tools: Tools, *, watcher: StageWatcher
) -> None:
    """Do all searches of a plan that have no record yet.

    A system whose corpus is not here is left out, and the watcher gets the reason.

    Args:
        plan: What to do.
        collection: The collection that the plan was made for.
        store: Where results go; locked while this runs.
        tools: Do the searches.
        watcher: Receives each search.

    Raises:
        FairqrError: A search cannot be done for a reason that concerns more than its topic; the
            results so far are kept.
    """
    store.check(plan.manifest)
    run = _Run(plan, collection, store, watcher, tools)
    cells = await run.cells_to_do()
    await tools.do(check_needs, plan.manifest.experiment, cells)
    with store.locked():
        store.begin(plan.manifest)
        await run.search_all(cells)


@dataclass(frozen=True, slots=True)
class _Run:
    plan: Plan
    collection: Collection
    store: Store
    watcher: StageWatcher
    tools: Tools

    async def cells_to_do(self) -> list[Cell]:
        """Return the cells with a search to do, but for those whose corpus is not here."""
        done, topics = self.store.lines.done(), self.plan.topics
        cells = [it for it in self.plan.cells if not done >= {it.key(topic) for topic in topics}]
        absent: dict[str, str | None] = {}
        for system in {cell.system.name: cell.system for cell in cells}.values():
            if self.plan.manifest.experiment.corpus_of(system):
                absent[system.name] = why = await self._why_absent(system)
                if why:
                    self.watcher.note(f"'{system.name}' was left out: {why}")
        return [cell for cell in cells if not absent.get(cell.system.name)]

    async def _why_absent(self, system: System) -> str | None:
        """Return why a corpus is not searched, if it is not here or does not fit."""
        some = tuple(sorted(self.collection.relevant_documents())[:LOOKED_UP])
        try:
            engine = await self._engine(system)
        except (IndexNotFoundError, UnsupportedError) as error:
            return str(error)
        (hits,) = await engine.search([Query("", len(some), only=some)])
        # Engines that do not know how many documents they have only look up those they returned.
        if hits.ids or (await engine.info()).documents is None:
            return None
        return (
            f"'{self._corpus(system)}' has none of the relevant documents of "
            f"'{self.collection.name}'; name a corpus with the same documents."
        )

    def _corpus(self, system: System) -> str:
        return self.plan.manifest.experiment.corpus_of(system) or self.collection.corpus_name

    async def _engine(self, system: System) -> SearchEngine:
        return await open_engine(
            self.tools,
            self.collection.name,
            self._corpus(system),
            system.retriever,
            lambda name: self.watcher.count(f"preparing {name}"),
        )

    def _model(self, system: System) -> str | None:
        asks = system.asks_a_model or system.ranker in ASKED
        return (system.model or self.plan.manifest.experiment.model) if asks else None

    async def search_all(self, cells: Sequence[Cell]) -> None:
        """Do the searches of these cells, one cell after the other."""
        ready: dict[int, tuple[Place, dict[str, bytes], dict[str, Any]]] = {}

        async def start(number: int) -> None:
            cell = cells[number]
            engine = await self._engine(cell.system)
            place = Place(
                self.collection.name,
                self._corpus(cell.system),
                (await engine.info()).fingerprint,
                cell.system.retriever,
                self._model(cell.system),
                self.tools.at_once,
            )
            context = cell.context(self.plan.manifest.experiment)
            weights = await self._weights(cell, engine, context)
            ready[number] = place, weights, context.model_dump(exclude_unset=True)

        async def do(task: tuple[int, Topic]) -> Done[SearchRecord]:
            cell, topic = cells[task[0]], task[1]
            place, weights, context = ready[task[0]]
            query = topic.text(keywords_of(cell.form))
            asked = Search(cell.key(topic), query, context, weights.get(topic.id))
            return await self.tools.do(search, place, asked)

        undone = await run_tasks(
            [*product(range(len(cells)), self.plan.topics)],
            do,
            self.store.lines,
            title="searches",
            keys=lambda task: [cells[task[0]].key(task[1])],
            place=lambda task: task[0],
            start=start,
            model=lambda it: self._model(cells[it].system) or cells[it].system.name,
            watcher=self.watcher,
            at_once=self.tools.at_once,
        )
        if undone is not None:
            raise undone

    async def _weights(
        self, cell: Cell, engine: SearchEngine, context: Context
    ) -> dict[str, bytes]:
        """Return the weights that rank each topic; those of a fold learn from the other folds."""
        if (training := cell.system.train) is None:
            return {}
        queries = {it.id: it.text(keywords_of(cell.form)) for it in self.plan.topics}
        found, examples = dict[str, bytes](), None
        folds = folds_of([*queries], min(training.folds, len(queries)))
        progress = self.watcher.count(f"training {cell.system.name}")
        for number, fold in enumerate(folds):
            path = self.store.weights(cell.system.name, cell.attribute, cell.form, number)
            if not path.exists():
                qrels, depth = self.collection.qrels, training.depth
                examples = examples or await gather(engine, queries, qrels, context, depth=depth)
                step, others = context.strategy.final_step, queries.keys() - {*fold}
                (await train(step, examples, others, training.options)).save(path)
                progress(number + 1, len(folds))
            found |= dict.fromkeys(fold, path.read_bytes())
        return found


async def run(experiment: Experiment, options: RunOptions) -> None:
    """Do all searches that are not done yet."""
    collection = find_collection(experiment.collection, experiment.split)
    plan = make_plan(experiment, collection, options.prompts)
    store = Store(options.folder)
    for sentence in plan.manifest.notes:
        options.watcher.note(sentence)
    async with options.tools(store.replies) as tools:
        await run_searches(plan, collection, store, tools, watcher=options.watcher)


def measure(folder: Path) -> MeasuredSearches:
    """Measure all searches of a folder."""
    store = Store(folder)
    experiment = store.manifest().experiment
    return measure_experiment(store, find_collection(experiment.collection, experiment.split))
