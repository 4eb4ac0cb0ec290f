"""The folder of a probe or a tuning: settings, probe collections, and what models said."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fairqr.agents.ranking.rankers import Persona
from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.evaluation.experiments.folder import Folder, FolderManifest, Lines, Record
from fairqr.evaluation.probes.collection import CollectionEntry, Kind, PlainData, ProbeCollection
from fairqr.evaluation.probes.specification import (
    LISTWISE_KIND,
    LORA_KIND,
    PAIRWISE_KIND,
    ListwiseExperiment,
    LoraExperiment,
    PairwiseExperiment,
)

AnyProbe = ListwiseExperiment | PairwiseExperiment | LoraExperiment

STAGES: Mapping[str, Mapping[str, str]] = {
    LISTWISE_KIND: {"rankings": "lists"},
    PAIRWISE_KIND: {"pairs": "pairs"},
    LORA_KIND: {"before": "pairs before tuning", "after": "pairs after tuning"},
}
"""For each kind of experiment, its files of records (without ending) and what they record."""


class _Reply(Record):
    """What a model or a ranker said.

    Attributes:
        collection: The name of the probe collection.
        spent: What it cost, as :func:`fairqr.evaluation.experiments.folder.spent` has it; what
            the cache answered counts as when it was first asked.
    """

    collection: str
    query: str
    spent: dict[str, int] = Field({"model_calls": 0, "tokens": 0})


class RankedList(_Reply):
    """How a ranker put the items of a query.

    Attributes:
        ranker: As the experiment names it.
        window: ``size/step`` for listwise rankers; empty for others.
        persona: For whom.
        order: Positions in the query's items, best first; each once.
        asked: Questions that the order rests on; see
            :class:`fairqr.agents.ranking.rankers.ItemRanking`.
        failures: By status.
        repairs: By kind, in items.
        warnings: What a reader should know, whole sentences.
    """

    keys = ("collection", "ranker", "window", "persona", "query")

    ranker: str
    window: str = ""
    persona: Persona = "neutral"
    order: tuple[int, ...]
    asked: int = 0
    failures: dict[str, int] = Field({})
    repairs: dict[str, int] = Field({})
    warnings: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether no question was answered; such a ranking counts in no measure."""
        return self.asked > 0 and sum(self.failures.values()) >= self.asked


class PairRecord(_Reply):
    """What a model said of a pair, asked once with each item first.

    Attributes:
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
    """

    keys = ("collection", "model", "query", "kind", "protected", "unprotected")

    model: str
    kind: Kind
    protected: str
    unprotected: str
    protected_first: str
    unprotected_first: str
    log_odds: tuple[float | None, float | None] = (None, None)


class StepRecord(Record):
    """A step of the training; see :func:`fairqr.agents.tuning.train`."""

    keys = ("step",)

    step: int
    loss: float
    learning_rate: float
    norm: float
    examples: int
    tokens: int


class TuningEntry(PlainData):
    """What a tuning trains, and on what.

    Attributes:
        train: The ids of the queries that are trained on, in any collection.
        held_out: Those of the queries that are probed with.
        pairs: How many pairs are trained on, by collection and kind.
        left_out: How many items of queries to train on were left out since they are probed with.
        base: The model as it stands behind ``causal:``.
        base_sha256: The SHA-256 of a GGUF file; empty for other models.
        training: A hash over the examples and their order.
    """

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    pairs: dict[str, int]
    left_out: int
    base: str
    base_sha256: str
    training: str
    steps: int


class ProbeRunManifest(FolderManifest):
    """What a probe was run with.

    Attributes:
        experiment: The file, with what the command changed.
        collections: In the order in which the experiment names them.
        prompts: The SHA-256 of each prompt that is used, by ``id=version``.
        base_url: Where an OpenAI-compatible server listened; None for the providers' own.
        tuning: None for a probe without one.
    """

    experiment: Annotated[AnyProbe, Field(discriminator="kind")]
    collections: tuple[CollectionEntry, ...]
    prompts: dict[str, str] = Field({})
    base_url: str | None = None
    tuning: TuningEntry | None = None


class ProbeStore(Folder[ProbeRunManifest]):
    """``experiment.json``, a file of records for each stage, and ``collections.jsonl``.

    The probe collections are kept beside the results, so that a report needs nothing else. A tuning
    also has ``losses.jsonl`` and ``adapter/``.

    Args:
        folder: It is made where it is missing.
    """

    manifest_type = ProbeRunManifest

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.losses = Lines(folder / "losses.jsonl", StepRecord)
        self.adapter = folder / "adapter"
        self.checkpoints = folder / "checkpoints"
        self._collections = folder / "collections.jsonl"

    def lines(self, stage: str) -> Lines[Any]:
        """Return the records of a stage of :data:`STAGES`."""
        path = self.folder / f"{stage}.jsonl"
        return Lines(path, RankedList if stage == "rankings" else PairRecord)

    def start(self, manifest: ProbeRunManifest, collections: Sequence[ProbeCollection]) -> None:
        """Write the settings of a run and its collections, or check that they are the folder's.

        Raises:
            InputError: The folder holds another run.
        """
        self.begin(manifest)
        if not self._collections.exists():
            write_beside(self._collections, "".join(collection.text for collection in collections))

    def collections(self) -> list[ProbeCollection]:
        """Return the probe collections of the run, in its order.

        Raises:
            InputError: They are missing or damaged, or not those of the run.
        """
        collections: list[ProbeCollection] = []
        with contextlib.suppress(OSError, ValueError):
            for line in self._collections.read_bytes().splitlines():
                collections.append(ProbeCollection.model_validate_json(line))
        entries = tuple(collection.entry for collection in collections)
        if entries != self.manifest().collections:
            raise InputError(
                f"The file {self._collections} is not the one of the run; bring the old one back, "
                "or run it again into another folder."
            )
        return collections
