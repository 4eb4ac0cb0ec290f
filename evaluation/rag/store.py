"""The folders of Fair RAG: labels of utility, and experiments, each with its settings.

An experiment keeps its labels in folders of the same form as ``fairqr lamp label`` makes them, one
for each collection and generator, so that either may be given to another experiment.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fairqr.evaluation.experiments.folder import Folder, FolderManifest, Lines, file_name
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.records import LabelRecord, PolicyRecord
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.prompts.template import PromptTemplate

__all__ = ["CollectionEntry", "LabelManifest", "LabelStore", "RagManifest", "RagStore"]


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
        prompt: Which asks for answers, as ``id=version``.
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
        fingerprint: Of the files that the collection was read from.
        pool: At most so many documents of each query were looked at; all where None.
        generator: As it is named in results; labels are those of one generator.
        prompt: Which asked for answers, as ``id=version``.
        prompt_sha256: Of its file.
    """

    identity = (
        "collection",
        "task",
        "utility",
        "fingerprint",
        "pool",
        "generator",
        "prompt",
        "prompt_sha256",
    )

    collection: str
    title: str
    task: str
    utility: str
    fingerprint: str
    pool: int | None
    generator: str
    prompt: str
    prompt_sha256: str


class LabelStore(Folder[LabelManifest]):
    """The labels of one collection and generator: ``labels.json`` and ``labels.jsonl``.

    Args:
        folder: It is made where it is missing.
    """

    manifest_type = LabelManifest
    name = "labels.json"
    what = "labelling"
    made_with = "fairqr lamp label"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines = Lines(
            folder / "labels.jsonl", LabelRecord, lambda record: record.query, "the query"
        )


class RagManifest(FolderManifest):
    """What an experiment was run with.

    Attributes:
        experiment: The file, with what the command changed.
        collections: In the order in which the experiment names them.
        attributor: What judged, as it names itself; empty where nothing did.
        notes: Sentences about how the run was made, for the report.
    """

    identity = ("experiment", "collections", "attributor")

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
        self.lines = Lines(
            folder / "records.jsonl", PolicyRecord, lambda record: record.key, "that part"
        )

    def labels(self, collection: str, generator: str) -> LabelStore:
        """Return where the labels of a collection and a generator are."""
        return LabelStore(self.folder / "labels" / file_name(collection, generator))

    def all_labels(self) -> dict[tuple[str, str], list[LabelRecord]]:
        """Return all labels by the names of the collection and the generator.

        Raises:
            InputError: A line is damaged that is not the last, half written one.
        """
        manifest = self.manifest()
        return {
            (entry.name, generator): self.labels(entry.name, generator).lines.read()
            for entry in manifest.collections
            for generator in manifest.experiment.generators
        }

    def records(self) -> list[PolicyRecord]:
        """Return what was done.

        Raises:
            InputError: A line is damaged that is not the last, half written one.
        """
        return self.lines.read()
