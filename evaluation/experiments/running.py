"""An experiment with searches from its plan to its records: a stage for each cell of its tables."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.agents.models.opening import open_language_model, open_model
from fairqr.agents.models.replies import Usage
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.base.errors import (
    FairqrError,
    IndexNotFoundError,
    InputError,
    QueryError,
    UnsupportedError,
)
from fairqr.evaluation.collections.collection import Collection, Topic
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.engine import Done, check_answered, refusal_of, run_tasks
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.experiments.measuring import MeasuredSearches, measure_experiment
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.specification import Experiment, QueryForm, System
from fairqr.evaluation.experiments.store import Manifest, Round, SearchRecord, Store
from fairqr.evaluation.experiments.training import folds_of, gather, train
from fairqr.evaluation.experiments.workers import Pool, Tools
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

STORE = Store

LOOKED_UP = 100
"""How many relevant documents a corpus is asked for, to know whether it is the right one."""

Key = tuple[str, str, str, int, str]
"""See :attr:`fairqr.evaluation.experiments.store.SearchRecord.key`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A system on all topics, for one attribute, form of query and seed."""

    attribute: str
    form: QueryForm
    system: System
    seed: int

    def key(self, topic: Topic) -> tuple[str, str, str, int, str]:
        """Return the key of the record of a topic."""
        return self.attribute, str(self.form), self.system.name, self.seed, topic.id

    def settings(self, experiment: Experiment) -> dict[str, object]:
        """Return the values of the context that searches have."""
        factors = factors_of(self.attribute)
        return {
            "attributes": factors,
            "intersect": len(factors) > 1,
            "target": experiment.target,
            "k": experiment.k,
            "method": self.system.method,
            "seed": self.seed,
            **self.system.settings,
        }

    def context(self, experiment: Experiment) -> Context:
        """Return the context that searches have."""
        return Context.of(**self.settings(experiment))


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
    experiment = _with_retrievers(experiment)
    notes: list[str] = []
    schema = collection.corpus.schema
    named = [TIMES.join(factors_of(name)) for name in experiment.attributes]
    attributes = tuple(dict.fromkeys(named)) or tuple(schema.attributes)
    judge = experiment.judge or collection.about.target
    for attribute in attributes:
        dimension = Dimension.named(schema, attribute)
        if experiment.target is not None:
            Target.parse(experiment.target).check([dimension.attribute])
    if any(not system.retriever.startswith(("bm25", "dense")) for system in experiment.systems):
        notes.append(f"Estimates of relevance were fitted on: {held_out(collection.name)}.")
    longest = max(len(topic.keywords) for topic in collection.topics)
    forms = [form for form in experiment.query_forms() if not form.keywords or longest]
    if len(forms) < len(experiment.query_forms()):
        notes.append("The topics have no keywords, so only their titles are searched for.")
    if not forms:
        raise InputError(
            f"The topics of '{collection.name}' have no keywords; add 'title' to the queries."
        )
    topics = tuple(topic for topic in collection.topics if collection.relevant(topic.id))
    if missing := len(collection.topics) - len(topics):
        notes.append(f"Left out are topics without a relevant document: {missing}.")
    topics = topics[: experiment.topics]
    notes += _on_training(experiment, len(topics))
    notes += _on_cutoffs(experiment)
    cells = tuple(_cells(experiment, attributes, forms))
    for cell in cells:
        cell.context(experiment)
    manifest = Manifest(
        experiment=experiment,
        collection=collection.name,
        collection_title=collection.title,
        collection_note=collection.about.note,
        fingerprints=collection.fingerprints(),
        attributes=attributes,
        query_forms=tuple(map(str, forms)),
        topics=tuple(topic.id for topic in topics),
        judge=judge,
        prompts=_prompts(experiment, cells, prompts),
        notes=tuple(notes),
    )
    return Plan(manifest, topics, cells)


def _with_retrievers(experiment: Experiment) -> Experiment:
    """Say what ``auto`` stands for, which changes once an encoder is pulled.

    A corpus that is named may be an engine with a ranking of its own.
    """

    def named(system: System) -> str:
        by_method = METHODS[system.method].searched_by(system.retriever)
        is_ours = by_method == AUTO and experiment.corpus_of(system) is None
        return automatic() if is_ours else by_method

    systems = [
        system.model_copy(update={"retriever": named(system)}) for system in experiment.systems
    ]
    return experiment.model_copy(update={"systems": tuple(systems)})


def _cells(
    experiment: Experiment, attributes: Sequence[str], forms: Sequence[QueryForm]
) -> Iterator[Cell]:
    for attribute in attributes:
        for form in forms:
            for system in experiment.all_systems():
                # Only a model has anything to do with the seed.
                seeds = experiment.seeds if system.asks_a_model else experiment.seeds[:1]
                for seed in seeds:
                    yield Cell(attribute, form, system, seed)


def _on_training(experiment: Experiment, topics: int) -> Iterator[str]:
    """Yield a sentence for each system that gets fewer folds than it asks for.

    Raises:
        InputError: There is one topic only, so nothing to train on for it.
    """
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


def _on_cutoffs(experiment: Experiment) -> Iterator[str]:
    """Yield a sentence where measures look deeper than systems rank."""
    measures = parse_measures(experiment.measures)
    deepest = max(factor.k or 0 for measure in measures for factor in measure.factors)
    if deepest > experiment.k:
        yield (
            f"Systems return {experiment.k} documents, and measures look at up to {deepest}: what "
            "is not returned counts as not there."
        )


def _prompts(
    experiment: Experiment, cells: Sequence[Cell], prompts: PromptLibrary
) -> dict[str, str]:
    """Return the hash of each prompt that a system may use, which must exist."""
    used: dict[str, str] = {}
    for cell in cells:
        kinds = ["refine"] if cell.system.asks_a_model else []
        kinds += [cell.system.ranker] if cell.system.ranker in ASKED else []
        for kind in kinds:
            template = prompts.get(kind, cell.context(experiment).prompts.get(kind))
            used[f"{kind}={template.version}"] = template.sha256
    return used


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
        context: The values of the context that are not the default ones.
        weights: The content of the file of weights that the final step reads, if any.
    """

    key: Key
    query: str
    context: Mapping[str, Any]
    weights: bytes | None


async def check_needs(tools: Tools, plan: Plan, cells: Sequence[Cell]) -> None:
    """Start the models and encoders of these cells, before anything is written.

    Raises:
        ModelUnavailableError: A model or an encoder is not there.
        ModelError: An encoder fails.
    """
    experiment = plan.manifest.experiment
    systems = [cell.system for cell in cells]
    asking = {s.model or experiment.model for s in systems if s.asks_a_model}
    for name in sorted(asking - {FeedbackRefiner.name}):
        await open_model(name, cache=False).start()
    rankers = {cell.system.name: cell for cell in cells if cell.system.ranker is not None}
    for cell in rankers.values():
        model = None
        if cell.system.ranker in ASKED:
            model = open_language_model(cell.system.model or experiment.model, cache=False)
        ranker = Rankers(None, model, tools.prompts).ranker_for(cell.context(experiment))
        if ranker is not None:
            await ranker.start()
    # A corpus that is named has vectors of its own, and says what encodes queries.
    encoded = {s.retriever for s in systems if experiment.corpus_of(s) is None}
    for retriever in sorted(encoded):
        encoder = Retriever.of(retriever).encoder
        if encoder is not None:
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
        FairqrError: The search cannot be done.
    """
    graph = await tools.keep(f"graph {place}", place, lambda: _open_graph(tools, place))
    context = dict(task.context)
    with tempfile.TemporaryDirectory(prefix="fairqr-") as folder:
        if task.weights is not None:
            path = Path(folder) / "weights.json"
            path.write_bytes(task.weights)
            context["options"] = {**context.get("options", {}), "weights": str(path)}
        return await search_by(
            graph, task.key, task.query, Context.of(**context), at_once=place.at_once
        )


async def search_by(
    graph: Any, key: Key, query: str, context: Context, *, at_once: int = 1
) -> Done[SearchRecord]:
    """Search by a graph; see :func:`search`.

    Args:
        graph: The search graph.
        key: The key of the record.
        query: The text to search for.
        context: The options of the search.
        at_once: How many searches run at the same time, for the record.

    Raises:
        ModelError: The model was away for a part of it.
    """
    parts = dict(zip(SearchRecord.keys, key, strict=True))
    try:
        state = await graph.ainvoke({"query": query}, context=context)
    except QueryError as error:
        return Done((SearchRecord.model_validate({**parts, "error": str(error)}),))
    result = SearchResult.model_validate(state["result"])
    usage = usage_of(state["result"])
    refusal = _refusal(result, usage)
    record = SearchRecord.model_validate(
        {**parts, **_kept(result), **spent(usage), "at_once": at_once}
    )
    return Done((record,), refusal=refusal)


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
        kept = f"{name} {place.corpus} {place.retriever}" if name == "feedback" else name
        model = await tools.started(
            f"model {kept}", name, lambda: open_model(name, engine=engine, cache=tools.replies)
        )
    return build_search_graph(engine, model, prompts=tools.prompts)


def _refusal(result: SearchResult, usage: Usage) -> FairqrError | None:
    """Check that the model was there whenever it was asked, and return why it refused everything.

    Raises:
        ModelError: It was not.
    """
    asked = [it for round_ in result.iterations for it in round_.refinements]
    statuses = [group.status for group in (*asked, *result.unused_refinements)]
    if (by_model := result.reranking) is not None:
        answers = by_model.asked - sum(by_model.failures.values())
        statuses += [*by_model.failures, *["ok"] * answers]
    if result.stop_reason == "budget":  # the search's own limit cuts questions off, too
        statuses = [status for status in statuses if status != "timeout"]
    message = next(iter(result.warnings), "")
    for status in statuses:
        check_answered(status, message, usage)
    return refusal_of((status, message) for status in statuses)


def _kept(result: SearchResult) -> Mapping[str, Any]:
    """Return the values of a result that a record keeps."""
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
        "milliseconds": round(usage.milliseconds + usage.cached_milliseconds, 1),
        "warnings": result.warnings,
    }


async def run_searches(
    plan: Plan, collection: Collection, store: Store, pool: Pool, *, watcher: StageWatcher
) -> None:
    """Do all searches of a plan that have no record yet.

    A system whose corpus is not here is left out, and the watcher gets the reason.

    Args:
        plan: What to do.
        collection: The collection that the plan was made for.
        store: Where results go; locked while this runs.
        pool: Does the searches.
        watcher: Receives each search.

    Raises:
        FairqrError: A search cannot be done for a reason that concerns more than its topic; the
            results so far are kept.
    """
    store.check(plan.manifest)
    async with contextlib.aclosing(pool.tools):
        run = _Run(plan, collection, store, watcher, pool)
        cells = await run.cells_to_do()
        await pool.do(check_needs, plan, cells)
        with store.locked():
            store.begin(plan.manifest)
            await run.search_all(cells)


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
            self.pool.tools,
            self.collection.name,
            corpus,
            retriever,
            lambda name: self.watcher.count(f"preparing {name}"),
        )

    async def search_all(self, cells: Sequence[Cell]) -> None:
        """Do the searches of these cells, one cell after the other."""
        experiment = self.plan.manifest.experiment
        prepared: dict[int, tuple[Place, Mapping[Path, Sequence[str]], dict[str, Any]]] = {}
        corpora = [experiment.corpus_of(it.system) or self.collection.corpus_name for it in cells]

        def model(number: int) -> str | None:
            system = cells[number].system
            asks = system.asks_a_model or system.ranker in ASKED
            return (system.model or experiment.model) if asks else None

        async def start(number: int) -> None:
            cell, corpus = cells[number], corpora[number]
            retriever = cell.system.retriever
            engine = await self._engine(corpus, retriever)
            print_ = (await engine.info()).fingerprint
            name, at_once = self.collection.name, self.pool.at_once
            place = Place(name, corpus, print_, retriever, model(number), at_once)
            folds, context = self._folds(cell), cell.context(experiment)
            await self._train(cell, folds, engine)
            prepared[number] = place, folds, context.model_dump(exclude_unset=True)

        async def do(task: tuple[int, Topic]) -> Done[SearchRecord]:
            cell, topic = cells[task[0]], task[1]
            place, folds, context = prepared[task[0]]
            path = next((it for it, fold in folds.items() if topic.id in fold), None)
            asked = Search(
                cell.key(topic),
                topic.text(cell.form.keywords),
                context,
                weights=path.read_bytes() if path else None,
            )
            return await self.pool.do(search, place, asked)

        undone = await run_tasks(
            [(number, topic) for number in range(len(cells)) for topic in self.plan.topics],
            do,
            self.store.lines,
            title="searches",
            keys=lambda task: [cells[task[0]].key(task[1])],
            place=lambda task: task[0],
            start=start,
            model=lambda number: model(number) or cells[number].system.name,
            watcher=self.watcher,
            at_once=self.pool.at_once,
        )
        if undone is not None:
            raise undone

    def _folds(self, cell: Cell) -> dict[Path, list[str]]:
        """Return the topics of each fold, by the file of the weights that rank them."""
        if cell.system.train is None:
            return {}
        names = [topic.id for topic in self.plan.topics]
        folds = folds_of(names, min(cell.system.train.folds, len(names)))
        parts = (cell.system.name, cell.attribute, cell.form)
        return {self.store.weights(*parts, number): fold for number, fold in enumerate(folds)}

    async def _train(self, cell: Cell, folds: dict[Path, list[str]], engine: SearchEngine) -> None:
        """Train the missing weights of each fold on the topics of the other folds."""
        training = cell.system.train
        missing = {path: fold for path, fold in folds.items() if not path.exists()}
        if training is None or not missing:
            return
        progress = self.watcher.count(f"training {cell.system.name}")
        context = cell.context(self.plan.manifest.experiment)
        examples = await gather(
            engine,
            {topic.id: topic.text(cell.form.keywords) for topic in self.plan.topics},
            self.collection.qrels,
            context,
            depth=training.depth,
        )
        for number, (path, fold) in enumerate(missing.items(), 1):
            others = [topic.id for topic in self.plan.topics if topic.id not in fold]
            model = await train(context.strategy.final_step, examples, others, training.options)
            model.save(path)
            progress(number, len(missing))


async def _has_some(engine: SearchEngine, ids: Iterable[str]) -> bool:
    """Return whether an engine has one of the first of these documents, or cannot say."""
    some = tuple(sorted(ids)[:LOOKED_UP])
    (hits,) = await engine.search([Query("", len(some), only=some)])
    # Engines that do not know how many documents they have only look up those they returned.
    return bool(hits.ids) or (await engine.info()).documents is None


async def run(experiment: Experiment, options: RunOptions) -> None:
    """Do all searches that are not done yet, and write the runs and their values."""
    collection = find_collection(experiment.collection, experiment.split)
    plan = make_plan(experiment, collection, options.prompts)
    store = Store(options.folder)
    for sentence in plan.manifest.notes:
        options.watcher.note(sentence)
    async with options.pool(store.replies) as pool:
        await run_searches(plan, collection, store, pool, watcher=options.watcher)
    if not options.report:
        measure_experiment(store, collection).write(store.folder)


def measure(store: Store) -> MeasuredSearches:
    """Measure all searches."""
    experiment = store.manifest().experiment
    return measure_experiment(store, find_collection(experiment.collection, experiment.split))
