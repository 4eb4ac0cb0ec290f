"""What an experiment has to do: one cell for each table entry, one search for each topic of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairqr.base.errors import InputError
from fairqr.base.files import sha256_of
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.topics import Topic
from fairqr.evaluation.experiments.specification import Experiment, QueryForm, System
from fairqr.evaluation.experiments.store import Manifest
from fairqr.evaluation.measures.product import Product
from fairqr.evaluation.measures.text import parse_measures
from fairqr.graph.search.context import Context, make_context
from fairqr.graph.search.rankers import ASKED
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.target import Target

__all__ = ["Cell", "Plan", "fingerprints_of", "make_plan"]


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
        return make_context(**self.settings(experiment))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done.

    Attributes:
        manifest: What it is done with.
        topics: Those that are searched for.
        cells: In the order in which they are done.
        left_out: Sentences about what the experiment names and the collection lacks.
    """

    manifest: Manifest
    topics: tuple[Topic, ...]
    cells: tuple[Cell, ...]
    left_out: tuple[str, ...]


def make_plan(experiment: Experiment, collection: Collection, prompts: PromptLibrary) -> Plan:
    """Hold an experiment against a collection.

    Raises:
        InputError: The collection lacks an attribute or all forms of query, or a target or a
            context does not fit it.
    """
    left_out: list[str] = []
    schema = collection.corpus.schema
    named = [TIMES.join(factors_of(name)) for name in experiment.attributes]
    attributes = tuple(dict.fromkeys(named)) or tuple(schema.attributes)
    judge = experiment.judge or collection.about.target
    for attribute in attributes:
        dimension = Dimension.named(schema, attribute)
        Target.parse(experiment.target).check([dimension.attribute])
    longest = max(len(topic.keywords) for topic in collection.topics)
    forms = [form for form in experiment.query_forms() if not form.keywords or longest]
    if len(forms) < len(experiment.query_forms()):
        left_out.append("The topics have no keywords, so only their titles are searched for.")
    if not forms:
        raise InputError(
            f"The topics of '{collection.name}' have no keywords; add 'title' to the queries."
        )
    topics = tuple(topic for topic in collection.topics if collection.relevant(topic.id))
    if missing := len(collection.topics) - len(topics):
        left_out.append(f"{missing} topics have no relevant document and are left out.")
    topics = topics[: experiment.topics]
    left_out += _on_training(experiment, len(topics))
    left_out += _on_cutoffs(experiment)
    cells = tuple(_cells(experiment, attributes, forms))
    for cell in cells:
        cell.context(experiment)
    manifest = Manifest(
        experiment=experiment,
        collection=collection.name,
        collection_title=collection.title,
        collection_note=collection.about.note,
        fingerprints=fingerprints_of(collection),
        attributes=attributes,
        query_forms=tuple(map(str, forms)),
        topics=tuple(topic.id for topic in topics),
        judge=judge,
        prompts=_prompts(experiment, cells, prompts),
        notes=tuple(left_out),
    )
    return Plan(manifest, topics, cells, tuple(left_out))


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
    factors = [f for m in measures for f in (m.factors if isinstance(m, Product) else (m,))]
    deepest = max(factor.k or 0 for factor in factors)
    if deepest > experiment.k:
        yield (
            f"Systems return {experiment.k} documents, and measures look at up to {deepest}: what "
            "is not returned counts as not there."
        )


def fingerprints_of(collection: Collection) -> dict[str, str]:
    """Return the hashes of the corpus, the topics and the judgements of a collection."""
    found = [*collection.folder.glob("topics*.jsonl"), *collection.folder.glob("qrels*.txt")]
    return {
        "documents": collection.corpus.sha256(),
        **{path.name: sha256_of(path) for path in sorted(found)},
    }


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
