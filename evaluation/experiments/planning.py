"""What an experiment with searches is run with: checks, and the cells of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fairqr.evaluation.collections.collection import Collection, Topic
from fairqr.evaluation.collections.query_targets import as_target, check_target
from fairqr.evaluation.experiments.specification import (
    MEASURES,
    OF_THE_TRACK,
    Experiment,
    Manifest,
    System,
)
from fairqr.graph.search.context import METHODS, Context
from fairqr.graph.search.rankers import ASKED
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.encoders.opening import AUTO, automatic
from fairqr.retrieval.fairness.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.fairness.relevance import held_out
from fairqr.retrieval.fairness.target import Target
from fairqr.retrieval.rerankers.protection import named_groups

NO_GROUPS = (None, "all")
"""What ``protected`` says if it names no groups."""


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
    system: System
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


def manifest_of(experiment: Experiment, collection: Collection, prompts: PromptLibrary) -> Manifest:
    """Return what an experiment is run with, once it is known to fit a collection.

    Raises:
        InputError: The collection lacks an attribute, or a target or a context does not fit it.
    """
    judge = experiment.judge or collection.about.target
    dimensions = _dimensions(experiment, collection)
    _check_targets(experiment, dimensions, judge)
    measures = experiment.measures
    if as_target(judge) == "trec2022" and measures == MEASURES:
        measures = OF_THE_TRACK
    systems = tuple(_with_retriever(system) for system in experiment.systems)
    topics = [topic.id for topic in collection.topics if collection.relevant(topic.id)]
    has_keywords = any(topic.keywords for topic in collection.topics)
    forms = experiment.queries if has_keywords else ("title",)
    return Manifest(
        experiment=experiment.model_copy(update={"systems": systems, "measures": measures}),
        collection=collection.name,
        collection_title=collection.title,
        collection_note=collection.about.note,
        fingerprints=collection.fingerprints(),
        attributes=tuple(dimension.name for dimension in dimensions),
        query_forms=tuple(dict.fromkeys(forms)),
        topics=tuple(topics[: experiment.topics]),
        judge=judge,
        prompts=_used_prompts(experiment, prompts),
        notes=tuple(_notes(experiment, collection)),
    )


def _dimensions(experiment: Experiment, collection: Collection) -> list[Dimension]:
    """Return what is measured: the attributes that are named, or all."""
    schema = collection.corpus.schema
    named = [TIMES.join(factors_of(name)) for name in experiment.attributes]
    names = list(dict.fromkeys(named)) or list(schema.attributes)
    dimensions = [Dimension.named(schema, name) for name in names]
    protected = experiment.protected
    if protected is None or protected in NO_GROUPS or experiment.attributes:
        return dimensions
    # The groups say which attribute is meant.
    groups = [dimension.groups for dimension in dimensions]
    position, _ = named_groups(protected, [dimension.name for dimension in dimensions], groups)
    return [dimensions[position]]


def _check_targets(experiment: Experiment, dimensions: Sequence[Dimension], judge: str) -> None:
    """Check that all targets and all groups to protect fit what is measured.

    Raises:
        InputError: One does not.
    """
    targets = [experiment.target]
    protected = []
    for system in experiment.systems:
        targets.append(system.settings.get("target"))
        protected.append(system.settings.get("options", {}).get("protected"))
        if system.train:
            protected.append(system.train.options.get("protected"))
    for dimension in dimensions:
        check_target(as_target(judge), [dimension])
        for target in filter(None, targets):
            Target.parse(target).check([dimension.attribute])
        for groups in protected:
            if groups not in NO_GROUPS:
                named_groups(str(groups), [dimension.name], [dimension.groups])


def _with_retriever(system: System) -> System:
    """Return a system with what it searches by.

    What auto stands for changes once an encoder is pulled. A corpus that is named may be an engine
    with a ranking of its own.
    """
    retriever = METHODS[system.method].searched_by(system.retriever or AUTO)
    if retriever == AUTO and system.corpus is None:
        retriever = automatic()
    return system.model_copy(update={"retriever": retriever})


def _used_prompts(experiment: Experiment, prompts: PromptLibrary) -> dict[str, str]:
    """Return the SHA-256 of each prompt that systems ask with, by ``id=version``."""
    used = {}
    for system in experiment.systems:
        context = system.context(k=experiment.k)
        kinds = ["refine"] if system.asks_a_model else []
        if context.strategy.ranker in ASKED:
            kinds.append(context.strategy.ranker)
        for kind in kinds:
            template = prompts.get(kind, context.prompts.get(kind))
            used[f"{kind}={template.version}"] = template.sha256
    return used


def _notes(experiment: Experiment, collection: Collection) -> Iterable[str]:
    """Yield what a reader of the results should know."""
    yield f"Estimates of relevance, if any, were fitted on: {held_out(collection.name)}."
    if experiment.documents:
        yield (
            f"At most {experiment.documents:,} documents were searched: those judged for the "
            "topics, and others by chance. A corpus that a system names was searched whole."
        )


def cells_of(manifest: Manifest, collection: Collection, corpus: str) -> list[Cell]:
    """Return the cells of an experiment, in the order in which they are done.

    Args:
        manifest: What is run.
        collection: What is searched.
        corpus: What the systems search that name no corpus, as :class:`Cell` has it.
    """
    experiment = manifest.experiment
    cells = []
    each = product(manifest.attributes, manifest.query_forms, experiment.systems)
    for attribute, form, named_system in each:
        system = named_system.for_collection(collection.name)
        factors = factors_of(attribute)
        values: dict[str, Any] = {
            "target": experiment.target,
            "k": experiment.k,
            "attributes": factors,
            "intersect": len(factors) > 1,
        }
        for seed in experiment.seeds_of(system):
            cell = Cell(
                attribute,
                form,
                system,
                seed,
                collection=collection.name,
                corpus=system.corpus or corpus,
                context=system.context(**values, seed=seed),
            )
            cells.append(cell)
    return cells
