"""The folders of Fair RAG and what they keep: labels of utility, and a line for each policy.

An experiment keeps its labels in a folder for each collection and generator, which may be given to
another experiment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairqr.evaluation.experiments.folder import (
    Folder,
    FolderManifest,
    Lines,
    Record,
    file_name,
)
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.prompts.template import PromptTemplate

Policy = Literal["deterministic", "plackett-luce", "oracle"]
"""The retriever's one ranking; samples of it at an α; or useful documents first, in random order
otherwise, which no retriever can do."""


class LabelRecord(Record):
    """Which documents of a query's pool help a generator.

    Attributes:
        query: Its id.
        without: The utility of the answer that saw no document; None if the generator failed.
        gains: By the id of a document the utility of the answer that saw it alone, less
            ``without``; None if the generator failed. Documents above 0 are useful.
        failures: How many answers failed, by status.
        model_calls, tokens, milliseconds: What it cost, cached replies as when they were made.
    """

    model_config = ConfigDict(allow_inf_nan=False)
    keys = ("query",)

    query: str
    without: float | None
    gains: dict[str, float | None]
    failures: dict[str, int] = Field({})
    model_calls: int = 0
    tokens: int = 0
    milliseconds: float = 0.0


class AnswerRecord(BaseModel):
    """What was generated from one ranking, and what it used.

    Attributes:
        ranking: The first k, as positions in the pool.
        times: How many of the generated samples had this ranking.
        status: ``ok``, or why there is no answer.
        text: The answer; empty unless ``ok``.
        utility: None unless ``ok`` or ``empty``, which is worth 0.
        used: For each document of the ranking whether the answer used it; None if it could not
            be judged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ranking: tuple[int, ...]
    times: int = Field(ge=1)
    status: str
    text: str = ""
    utility: float | None = None
    used: tuple[bool | None, ...] = ()


class PolicyRecord(Record):
    """A policy on one query.

    Attributes:
        collection, generator, retriever, policy, alpha, seed, query: Which one. The retriever is
            empty for the oracle, and α is there for ``plackett-luce`` alone.
        pool: The ids of the documents; positions below are places in it.
        useful: The positions of those that are useful to this generator.
        k: How many documents the generator reads.
        samples: The rankings that were drawn, each cut at min(k, n); one for ``deterministic``.
        answers: For the distinct rankings among the first samples, those that were generated from.
        model_calls, tokens, milliseconds: What the answers and their attribution cost; a ranking
            that another policy had before costs nothing again.
        failure: Why there is nothing; empty if there is.
    """

    model_config = ConfigDict(allow_inf_nan=False)
    keys = ("collection", "generator", "retriever", "policy", "alpha", "seed", "query")

    collection: str
    generator: str
    retriever: str
    policy: Policy
    alpha: float | None
    seed: int
    query: str
    pool: tuple[str, ...] = ()
    useful: tuple[int, ...] = ()
    k: int = Field(ge=1)
    samples: tuple[tuple[int, ...], ...] = ()
    answers: tuple[AnswerRecord, ...] = ()
    model_calls: int = 0
    tokens: int = 0
    milliseconds: float = 0.0
    failure: str = ""

    @model_validator(mode="after")
    def _fits_its_pool(self) -> PolicyRecord:
        places, length = range(len(self.pool)), min(self.k, len(self.pool))
        if not _are_distinct(self.useful, places):
            raise ValueError("'useful' names a place outside the pool, or one place twice")
        for ranking in self._rankings():
            if len(ranking) != length or not _are_distinct(ranking, places):
                raise ValueError(f"a ranking is not made of {length} places in the pool")
        if any(len(answer.used) not in (0, length) for answer in self.answers):
            raise ValueError("an answer has verdicts of other documents than its ranking's")
        return self

    def _rankings(self) -> Iterator[tuple[int, ...]]:
        yield from self.samples
        yield from (answer.ranking for answer in self.answers)


def _are_distinct(positions: tuple[int, ...], places: range) -> bool:
    return len(set(positions)) == len(positions) and all(place in places for place in positions)


class CollectionEntry(BaseModel):
    """A collection, as results name it.

    Attributes:
        name, title, note, fingerprint, left_out: See
            :class:`fairqr.evaluation.rag.collection.RagCollection`.
        task: The name of its task.
        utility: The name of what answers are judged by.
        greatest: The greatest utility.
        queries: The ids of the queries.
        documents: How many their pools hold together.
        prompt: The prompt that asks for answers, as ``id=version``.
        prompt_sha256: Of its file.
        hypothesis: The template that makes answers into hypotheses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    note: str = ""
    fingerprint: str
    left_out: dict[str, int] = {}
    task: str
    utility: str
    greatest: float
    queries: tuple[str, ...]
    documents: int
    prompt: str
    prompt_sha256: str
    hypothesis: str

    @classmethod
    def of(
        cls, collection: RagCollection, prompt: PromptTemplate, hypothesis: str
    ) -> CollectionEntry:
        """Describe a collection."""
        return cls(
            name=collection.name,
            title=collection.title,
            note=collection.note,
            fingerprint=collection.fingerprint,
            left_out=dict(collection.left_out),
            task=collection.task.name,
            utility=collection.task.utility.name,
            greatest=collection.task.utility.greatest,
            queries=tuple(query.id for query in collection.queries),
            documents=sum(len(query.pool) for query in collection.queries),
            prompt=f"{prompt.id}={prompt.version}",
            prompt_sha256=prompt.sha256,
            hypothesis=hypothesis,
        )


class LabelManifest(FolderManifest):
    """What labels were made with.

    Attributes:
        collection: The name of the collection.
        title: For people.
        task: The name of its task.
        utility: The name of what answers are judged by.
        fingerprint: A hash of the files that the collection was read from.
        pool: How many documents of each query were looked at; None for all.
        generator: Its name in results; labels belong to one generator.
        prompt: The prompt that asked for answers, as ``id=version``.
        prompt_sha256: Of its file.
    """

    free = frozenset({"title"})

    collection: str
    title: str
    task: str
    utility: str
    fingerprint: str
    pool: int | None
    generator: str
    prompt: str
    prompt_sha256: str


class GenerationLabels(Folder[LabelManifest]):
    """The labels of one collection and generator: ``labels.json`` and ``labels.jsonl``.

    Args:
        folder: It is made where it is missing.
    """

    manifest_type = LabelManifest
    name = "labels.json"
    what = "labelling"
    made_with = "fairqr experiment run"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines = Lines(folder / "labels.jsonl", LabelRecord, "the query")


class RagManifest(FolderManifest):
    """What an experiment was run with.

    Attributes:
        experiment: The file, with what the command changed.
        collections: In the order in which the experiment names them.
        attributor: What judged, as it names itself; empty where nothing did.
        notes: Sentences about how the run was made, for the report.
    """

    experiment: FairRagExperiment
    collections: tuple[CollectionEntry, ...]
    attributor: str
    notes: tuple[str, ...] = ()


class RagStore(Folder[RagManifest]):
    """The folder of an experiment: ``experiment.json``, ``records.jsonl`` and ``labels/``.

    Args:
        folder: It is made where it is missing.
    """

    manifest_type = RagManifest

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines = Lines(folder / "records.jsonl", PolicyRecord, "that part")

    def labels(self, collection: str, generator: str) -> GenerationLabels:
        """Return where the labels of a collection and a generator are."""
        return GenerationLabels(self.folder / "labels" / file_name(collection, generator))

    def all_labels(self) -> dict[tuple[str, str], list[LabelRecord]]:
        """Return the labels that are done, by the names of the collection and the generator.

        Raises:
            InputError: A line is damaged that is not the last, half written one.
        """
        manifest = self.manifest()
        return {
            (entry.name, generator): self.labels(entry.name, generator).lines.read()
            for entry in manifest.collections
            for generator in manifest.experiment.generators
        }
