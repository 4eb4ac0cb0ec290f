"""The folder of an experiment with searches: its settings, and one line for each search."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field

from fairqr.evaluation.experiments.folder import Folder, FolderManifest, Lines, Record
from fairqr.evaluation.experiments.specification import Experiment


class Manifest(FolderManifest):
    """What an experiment was run with.

    Attributes:
        experiment: The file, with what the command changed.
        collection: The name of the collection, and its title.
        collection_title: What a report calls it.
        collection_note: What a reader of its numbers should know.
        fingerprints: Hashes of the corpus, the topics and the judgements.
        attributes: Those measured.
        query_forms: Those that the collection has.
        topics: The ids of the topics.
        judge: The target that rankings are measured against.
        prompts: The sha256 of each prompt by ``id=version``.
        notes: Sentences about what the experiment names and the collection lacks.
    """

    free = frozenset({"collection_title", "collection_note", "notes"})

    experiment: Experiment
    collection: str
    collection_title: str
    collection_note: str = ""
    fingerprints: dict[str, str]
    attributes: tuple[str, ...]
    query_forms: tuple[str, ...]
    topics: tuple[str, ...]
    judge: str
    prompts: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Round(BaseModel, frozen=True, extra="forbid"):
    """A round of a search; see :class:`fairqr.graph.search.result.Iteration`."""

    ids: list[str]
    exposure: dict[str, float]
    divergence: float | None


class SearchRecord(Record):
    """One search.

    Attributes:
        ids: The ranking.
        rounds: What each round had before any re-ranking; 0 is the original query's.
        best_round: The one that the ranking comes from.
        target: ε* as the search estimated it.
        divergence: How far the ranking is from the target, in nats.
        stop_reason: Why the loop ended.
        model_calls: Requests to models, those that the cache answered included.
        tokens: What they cost when they were first asked for.
        milliseconds: How long the search took, the models' time for cached replies included.
        at_once: How many searches were under way at the same time.
        error: Why there is no ranking; empty if there is one.
    """

    keys = ("attribute", "queries", "system", "seed", "topic")

    attribute: str
    queries: str
    system: str
    seed: int
    topic: str
    ids: list[str] = Field([])
    rounds: list[Round] = Field([])
    best_round: int = 0
    target: dict[str, float] = Field({})
    divergence: float | None = None
    stop_reason: str = ""
    model_calls: int = 0
    tokens: int = 0
    milliseconds: float = 0.0
    at_once: int = 1
    warnings: list[str] = Field([])
    error: str = ""


class Store(Folder[Manifest]):
    """The folder of an experiment.

    Args:
        folder: It is made where it is missing.
    """

    manifest_type = Manifest

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines = Lines(folder / "results.jsonl", SearchRecord)
