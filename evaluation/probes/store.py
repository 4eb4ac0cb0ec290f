"""The folder of a probe's run: its settings, the probe collections, and what models said."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.folder import Folder, FolderManifest, Lines, file_name
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeManifest
from fairqr.evaluation.probes.files import read_probe_collection, write_probe_collection
from fairqr.evaluation.probes.records import PairRecord, RankingRecord
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment

__all__ = [
    "CollectionEntry",
    "ProbeRunManifest",
    "ProbeStore",
    "PromptEntry",
    "collection_sha256",
]


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
        prompts: That models are asked with.
        base_url: Where an OpenAI-compatible server listened; None for the providers' own.
        notes: Sentences about how the run was made, for the report.
    """

    identity = ("experiment", "collections", "prompts", "base_url")

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
        self.rankings = Lines(
            folder / "rankings.jsonl", RankingRecord, lambda record: record.key, "the ranking"
        )
        self.pairs = Lines(
            folder / "pairs.jsonl", PairRecord, lambda record: record.key, "the pair"
        )
        self._written: set[str] = set()

    def start(self, manifest: ProbeRunManifest, collections: Sequence[ProbeCollection]) -> None:
        """Write what a run is made with, or check that it is what the folder was begun with.

        Args:
            manifest: Of the run.
            collections: Of the run, to be kept beside it.

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
