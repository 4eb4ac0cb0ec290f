"""The folders of probes and tunings: settings, probe collections, and what models said."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairqr.agents.ranking.rankers import Asker
from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.folder import (
    Folder,
    FolderManifest,
    Lines,
    Record,
    file_name,
)
from fairqr.evaluation.probes.collection import (
    ProbeCollection,
    ProbeManifest,
    read_probe_collection,
    write_probe_collection,
)
from fairqr.evaluation.probes.specification import (
    ListwiseExperiment,
    LoraExperiment,
    PairwiseExperiment,
)

When = Literal["before", "after"]


class Spent(BaseModel):
    """What asking cost; what the cache answered counts as when it was first asked.

    Attributes:
        model_calls: Requests.
        tokens: Read and written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_calls: int = 0
    tokens: int = 0


class RankingRecord(Record):
    """How a ranker put the items of a query.

    Attributes:
        collection: The name of the probe collection.
        ranker: As the experiment names it.
        window: ``size/step`` for listwise rankers; empty for others.
        asker: For whom.
        order: Positions in the query's items, best first; each once.
        asked: Questions that the order rests on; see
            :class:`fairqr.agents.ranking.rankers.ItemRanking`.
        failures: By status.
        repairs: By kind, in items.
        warnings: What a reader should know, whole sentences.
        spent: What it cost.
    """

    keys = ("collection", "ranker", "window", "asker", "query")

    collection: str
    ranker: str
    window: str = ""
    asker: Asker = "neutral"
    query: str
    order: tuple[int, ...]
    asked: int = 0
    failures: dict[str, int] = Field({})
    repairs: dict[str, int] = Field({})
    warnings: tuple[str, ...] = ()
    spent: Spent = Spent()

    @property
    def failed(self) -> bool:
        """Whether no question was answered; such a ranking counts in no measure."""
        return self.asked > 0 and sum(self.failures.values()) >= self.asked


class PairRecord(Record):
    """What a model said of a pair, asked once with each item first.

    Attributes:
        collection: The name of the probe collection.
        model: As the experiment names it.
        kind: Whether both items are relevant or both are not; ``relevance`` for a relevant item
            (which then stands as ``protected``) and an irrelevant one of the same group.
        protected: The id of the protected item.
        unprotected: The id of the other.
        protected_first: The preferred item when the protected one came first: ``protected``,
            ``unprotected``, or the status of a failure.
        unprotected_first: The same when the other one came first.
        log_odds: For both orders ln P(first label) − ln P(second label); None if the model was
            asked for a reply or failed.
        spent: The cost.
    """

    keys = ("collection", "model", "query", "kind", "protected", "unprotected")

    collection: str
    model: str
    query: str
    kind: Literal["relevant", "irrelevant", "relevance"]
    protected: str
    unprotected: str
    protected_first: str
    unprotected_first: str
    log_odds: tuple[float | None, float | None] = (None, None)
    spent: Spent = Spent()


class CollectionEntry(BaseModel):
    """A probe collection of a run.

    Attributes:
        built: How it was built; its name is what results call it.
        sha256: Over how it was built and all its items.
        items: How many the queries have together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    built: ProbeManifest
    sha256: str
    items: int

    @property
    def name(self) -> str:
        """What results call it."""
        return self.built.name

    @classmethod
    def of(cls, collection: ProbeCollection) -> CollectionEntry:
        """Describe a collection."""
        return cls(
            built=collection.manifest,
            sha256=collection_sha256(collection),
            items=sum(len(query.items) for query in collection.queries),
        )


class PromptEntry(BaseModel):
    """A prompt of a run.

    Attributes:
        prompt: As ``id=version``.
        sha256: Of its file.
        asked: The models or rankers that it asks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str
    sha256: str
    asked: tuple[str, ...]


class ProbeRunManifest(FolderManifest):
    """What a probe was run with.

    Attributes:
        experiment: The file, with what the command changed.
        collections: In the order in which the experiment names them.
        base_url: Where an OpenAI-compatible server listened; None for the providers' own.
        notes: Sentences about how the run was made, for the report.
    """

    experiment: Annotated[ListwiseExperiment | PairwiseExperiment, Field(discriminator="kind")]
    collections: tuple[CollectionEntry, ...]
    prompts: tuple[PromptEntry, ...] = ()
    base_url: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def rankings(self) -> ListwiseExperiment:
        """The experiment, which has to be one on rankings.

        Raises:
            InputError: It is one on pairs.
        """
        if not isinstance(self.experiment, ListwiseExperiment):
            raise InputError("The run asked about pairs, and has no rankings.")
        return self.experiment

    @property
    def pairs(self) -> PairwiseExperiment:
        """The experiment, which has to be one on pairs.

        Raises:
            InputError: It is one on rankings.
        """
        if not isinstance(self.experiment, PairwiseExperiment):
            raise InputError("The run made rankings, and asked about no pairs.")
        return self.experiment


class ProbeStore(Folder[ProbeRunManifest]):
    """``experiment.json``, ``rankings.jsonl`` or ``pairs.jsonl``, and ``collections/``.

    The probe collections are kept beside the results, so that a report needs nothing else.

    Args:
        folder: It is made where it is missing.
    """

    manifest_type = ProbeRunManifest

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rankings = Lines(folder / "rankings.jsonl", RankingRecord, "the ranking")
        self.pairs = Lines(folder / "pairs.jsonl", PairRecord, "the pair")
        self._written: set[str] = set()

    def lines(self, experiment: ListwiseExperiment | PairwiseExperiment) -> Lines[Any]:
        """Return where the records of such an experiment go."""
        return self.pairs if isinstance(experiment, PairwiseExperiment) else self.rankings

    def start(self, manifest: ProbeRunManifest, collections: Sequence[ProbeCollection]) -> None:
        """Write the settings of a run, or check that they are those that the folder has.

        Args:
            manifest: The run's manifest.
            collections: The run's collections, which are kept beside it.

        Raises:
            InputError: The folder holds another run.
        """
        self.begin(manifest)
        for collection in collections:
            name = collection.manifest.name
            # What stands there may be incomplete; to write the same again mends that.
            if name not in self._written:
                write_probe_collection(collection, self._place(name))
                self._written.add(name)

    def collections(self) -> list[ProbeCollection]:
        """Return the probe collections of the run, in its order.

        Raises:
            InputError: One is missing or damaged.
        """
        found = []
        for entry in self.manifest().collections:
            collection = read_probe_collection(self._place(entry.name))
            if collection_sha256(collection) != entry.sha256:
                raise InputError(
                    f"The probe collection in {self._place(entry.name)} is not the one of the "
                    "run; bring the old one back, or run it again into another folder."
                )
            found.append(collection)
        return found

    def _place(self, name: str) -> Path:
        return self.folder / "collections" / file_name(name)


def collection_sha256(collection: ProbeCollection) -> str:
    """Return a hash over how a collection was built and all its items."""
    digest = hashlib.sha256(collection.manifest.model_dump_json().encode())
    for query in collection.queries:
        digest.update(b"\n" + query.model_dump_json().encode())
    return digest.hexdigest()


class StepRecord(Record):
    """A step of the training; see :func:`fairqr.agents.tuning.train`."""

    keys = ("step",)

    step: int
    loss: float
    learning_rate: float
    norm: float
    examples: int
    tokens: int


class SplitEntry(BaseModel):
    """What is trained on and what is probed with, in one probe collection.

    Attributes:
        collection: Its name.
        train: The ids of the queries that are trained on.
        held_out: Those of the others.
        training_pairs: How many pairs are trained on, by kind.
        held_out_pairs: How many are probed with, by kind.
        left_out: How many items of queries to train on were left out since they are probed with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    collection: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    training_pairs: dict[str, int]
    held_out_pairs: dict[str, int]
    left_out: int


class LoraManifest(FolderManifest):
    """What a tuning was run with.

    Attributes:
        experiment: The file, with what the command changed.
        collections: In the order in which the experiment names them.
        splits: One for each collection.
        base: The model as it stands behind ``causal:``.
        base_sha256: Of a GGUF file; empty for other models.
        prompt: The prompt, as ``id=version``.
        prompt_sha256: Of its file.
        training: A hash over the examples and their order.
        notes: Sentences about how the run was made, for the report.
    """

    experiment: LoraExperiment
    collections: tuple[CollectionEntry, ...]
    splits: tuple[SplitEntry, ...]
    base: str
    base_sha256: str
    prompt: str
    prompt_sha256: str
    training: str
    steps: int
    notes: tuple[str, ...] = ()


class LoraStore(Folder[LoraManifest]):
    """``experiment.json``, ``before.jsonl``, ``after.jsonl``, ``losses.jsonl`` and ``adapter/``.

    Args:
        folder: It is made where it is missing.
    """

    manifest_type = LoraManifest
    what = "tuning"
    made_with = "fairqr experiment run lora"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.losses = Lines(folder / "losses.jsonl", StepRecord, "the step")
        self.adapter = folder / "adapter"
        self.checkpoints = folder / "checkpoints"

    def pairs(self, when: When) -> Lines[PairRecord]:
        """Return what the model said of the held-out pairs."""
        return Lines(self.folder / f"{when}.jsonl", PairRecord, "the pair")

    @property
    def is_tuned(self) -> bool:
        """Whether the adapter is there; it is written last, and whole."""
        return self.adapter.is_dir()

    def curve(self) -> Sequence[StepRecord]:
        """Return the steps in order.

        Raises:
            InputError: A line is damaged that is not the last, half written one.
        """
        return sorted(self.losses.read(), key=lambda record: record.step)
