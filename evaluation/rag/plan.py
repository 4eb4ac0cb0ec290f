"""What a Fair RAG experiment has to do, and what it will cost at most."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fairqr.agents.attribution.verdicts import RAW
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.rag.collection import RagCollection, RagQuery
from fairqr.evaluation.rag.finding import find_rag_collection
from fairqr.evaluation.rag.labelling import labelling_calls
from fairqr.evaluation.rag.policies import Draw, Key, draws_of
from fairqr.evaluation.rag.specification import NO_ATTRIBUTOR, FairRagExperiment
from fairqr.evaluation.rag.store import CollectionEntry, RagManifest
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate

__all__ = [
    "Cost",
    "Part",
    "RagPlan",
    "cost_in_words",
    "cost_of",
    "make_rag_plan",
    "open_collections",
    "unchanged_collections",
]

CHARACTERS_PER_TOKEN = 4
"""An estimate for English text."""


@dataclass(frozen=True, slots=True)
class Part:
    """A collection in an experiment.

    Attributes:
        collection: Which one.
        prompt: Which asks for answers.
        hypothesis: The template that makes answers into hypotheses.
    """

    collection: RagCollection
    prompt: PromptTemplate
    hypothesis: str


@dataclass(frozen=True, slots=True)
class RagPlan:
    """What is to be done.

    Attributes:
        manifest: What it is done with.
        parts: One for each collection.
        draws: The policies of each query.
    """

    manifest: RagManifest
    parts: tuple[Part, ...]
    draws: tuple[Draw, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What is still to be done, at most: queries may be dropped, and rankings be equal.

    Attributes:
        labels: Answers that labels need.
        answers: Those from sampled rankings.
        attributions: Pairs of a document and an answer that are judged.
        tokens: That generators read and write, roughly, before long prompts are cut.
    """

    labels: int = 0
    answers: int = 0
    attributions: int = 0
    tokens: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether all is done."""
        return not (self.labels or self.answers)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.labels + other.labels,
            self.answers + other.answers,
            self.attributions + other.attributions,
            self.tokens + other.tokens,
        )


def open_collections(experiment: FairRagExperiment) -> list[RagCollection]:
    """Read the collections of an experiment.

    Raises:
        InputError: None is named, two are one, or one has no query.
        CorpusError: One cannot be read.
    """
    if not experiment.collections:
        raise InputError(
            "The experiment names no collection; name one with --collection, such as notables or "
            "a folder of LaMP."
        )
    found = [
        find_rag_collection(
            name, task=experiment.task, limit=experiment.queries, pool=experiment.pool
        )
        for name in experiment.collections
    ]
    names = [collection.name for collection in found]
    for collection in found:
        if names.count(collection.name) > 1:
            raise InputError(
                f"Two collections are called '{one_line(collection.name)}'; rename one of them."
            )
        if not collection.queries:
            raise InputError(
                f"The collection '{one_line(collection.name)}' has no query; name another one."
            )
    return found


def unchanged_collections(manifest: RagManifest) -> dict[str, RagCollection]:
    """Read the collections of a run by their names.

    Raises:
        InputError: One has changed since the run.
    """
    found = open_collections(manifest.experiment)
    for before, found_now in zip(manifest.collections, found, strict=True):
        if (before.name, before.fingerprint) != (found_now.name, found_now.fingerprint):
            raise InputError(
                f"The files of '{before.name}' have changed since the experiment was run; "
                "bring the old ones back, or run it again into another folder."
            )
    return {collection.name: collection for collection in found}


def make_rag_plan(
    experiment: FairRagExperiment,
    collections: Sequence[RagCollection],
    prompts: PromptLibrary,
    attributor: str,
    notes: Sequence[str] = (),
) -> RagPlan:
    """Hold an experiment against its collections.

    Args:
        experiment: What is asked.
        collections: Those that it names, in its order.
        prompts: Where prompts come from.
        attributor: As it names itself; empty where nothing judges.
        notes: Sentences for the report.

    Raises:
        PromptError: A prompt does not exist, or there is no such version of it.
    """
    for name, version in experiment.prompts.items():
        # Also of those that these collections do not ask with: a name may be misspelt.
        prompts.get(name, version)
    parts = tuple(
        Part(
            collection,
            prompts.get(collection.task.prompt, experiment.prompts.get(collection.task.prompt)),
            collection.task.hypothesis if experiment.hypothesis == "task" else RAW,
        )
        for collection in collections
    )
    manifest = RagManifest(
        experiment=experiment,
        collections=tuple(
            CollectionEntry.of(part.collection, part.prompt, part.hypothesis) for part in parts
        ),
        attributor=attributor,
        notes=(*notes, *_notes(experiment, collections)),
    )
    return RagPlan(manifest, parts, tuple(draws_of(experiment)))


def cost_in_words(cost: Cost) -> str:
    """Say what a run will cost at most."""
    if cost.is_nothing:
        return "nothing is left to ask"
    return (
        f"at most {cost.labels + cost.answers:,} answers ({cost.labels:,} of them for labels), "
        f"{cost.attributions:,} attributions, about {cost.tokens:,} tokens"
    )


def _notes(experiment: FairRagExperiment, collections: Sequence[RagCollection]) -> list[str]:
    notes: list[str] = []
    for collection in collections:
        small = sum(len(query.pool) < experiment.k for query in collection.queries)
        if small:
            notes.append(
                f"{small} of {len(collection.queries)} queries of '{collection.name}' have fewer "
                f"than {experiment.k} documents; their rankings are as long as the pool."
            )
    if experiment.attributor == NO_ATTRIBUTOR:
        notes.append("Nothing judged what answers used, so nothing is said about attribution.")
    return notes


def cost_of(
    part: Part,
    generator: str,
    experiment: FairRagExperiment,
    *,
    labelled: Collection[str],
    kept: Collection[str] | None,
    done: Collection[Key],
) -> Cost:
    """Estimate what is still to be done for a collection and a generator, at most.

    Args:
        part: The collection.
        generator: Its name.
        experiment: What is asked.
        labelled: The ids of the queries that have labels.
        kept: The ids of those that have enough useful documents; None where it is not known.
        done: The keys of the records that are there.
    """
    name = part.collection.name
    cost = Cost()
    for query in part.collection.queries:
        if query.id not in labelled:
            cost += _of_labels(query, part.prompt)
        if kept is None or query.id not in labelled or query.id in kept:
            todo = [d for d in draws_of(experiment) if d.key(name, generator, query.id) not in done]
            cost += _of_answers(query, part.prompt, todo, experiment)
    return cost


def _of_labels(query: RagQuery, prompt: PromptTemplate) -> Cost:
    calls = labelling_calls([query])
    read = calls * _asked(query, prompt) + sum(_lengths(query))
    return Cost(labels=calls, tokens=_tokens(read) + calls * prompt.defaults.max_tokens)


def _of_answers(
    query: RagQuery, prompt: PromptTemplate, draws: Sequence[Draw], experiment: FairRagExperiment
) -> Cost:
    places = min(experiment.k, len(query.pool))
    # Deterministic rankings are the same under every seed.
    fixed = {draw.retriever for draw in draws if draw.policy == "deterministic"}
    drawn = sum(draw.answered(experiment) for draw in draws if draw.policy != "deterministic")
    answers = min(len(fixed) + drawn, math.perm(len(query.pool), places))
    lengths = _lengths(query)
    documents = places * sum(lengths) / len(lengths)
    read = answers * (_asked(query, prompt) + documents)
    return Cost(
        answers=answers,
        attributions=0 if experiment.attributor == NO_ATTRIBUTOR else answers * places,
        tokens=_tokens(read) + answers * prompt.defaults.max_tokens,
    )


def _asked(query: RagQuery, prompt: PromptTemplate) -> int:
    """Return how many characters a prompt has without documents."""
    return len(query.question) + sum(len(message.content) for message in prompt.messages)


def _lengths(query: RagQuery) -> list[int]:
    return [sum(map(len, document.fields.values())) for document in query.pool]


def _tokens(characters: float) -> int:
    return math.ceil(characters / CHARACTERS_PER_TOKEN)
