"""The folder of a tuning: its settings, the probes before and after, losses and the adapter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fairqr.evaluation.experiments.folder import Folder, FolderManifest, Lines
from fairqr.evaluation.probes.records import PairRecord
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.store import CollectionEntry

__all__ = [
    "LoraManifest",
    "LoraStore",
    "SplitEntry",
    "StepRecord",
    "When",
]

When = Literal["before", "after"]


class StepRecord(BaseModel):
    """A step of the training; see :class:`fairqr.agents.tuning.lora.Step`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        prompt: Which asks, as ``id=version``.
        prompt_sha256: Of its file.
        training: A hash over the examples and their order.
        steps: Of the training.
        notes: Sentences about how the run was made, for the report.
    """

    identity = (
        "experiment",
        "collections",
        "base",
        "base_sha256",
        "prompt",
        "prompt_sha256",
        "training",
        "steps",
    )

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
    made_with = "fairqr tune"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.losses = Lines(
            folder / "losses.jsonl", StepRecord, lambda record: record.step, "the step"
        )
        self.adapter = folder / "adapter"
        self.checkpoint = folder / "checkpoint.pt"

    def pairs(self, when: When) -> Lines[PairRecord]:
        """Return what the model said of the held-out pairs."""
        return Lines(
            self.folder / f"{when}.jsonl", PairRecord, lambda record: record.key, "the pair"
        )

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
