"""The folder of an experiment: its settings, and one line for each search that was done.

A line is written when a search is done, so that a run that was killed goes on where it stopped. The
last line may then be half written; it is left out, and the search is done again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import string
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fairqr.errors import InputError, first_problem, one_line
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.retrieval.files import write_beside

__all__ = ["Manifest", "Record", "Round", "Store", "file_name"]

FORMAT = 1
LONGEST = 120
_PLAIN = frozenset(string.ascii_letters + string.digits + "+._")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Manifest(_Part):
    """What an experiment was run with.

    Attributes:
        format: Of the folder.
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
        versions: Of fairqr, Python and the libraries that results depend on; several, in order,
            where a run was resumed with others.
        started: When, in ISO 8601.
    """

    format: int = FORMAT
    experiment: Experiment
    collection: str
    collection_title: str
    collection_note: str = ""
    fingerprints: dict[str, str]
    attributes: tuple[str, ...]
    query_forms: tuple[str, ...]
    topics: tuple[str, ...]
    judge: str
    prompts: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    versions: dict[str, str]
    started: str


class Round(_Part):
    """A round of a search; see :class:`fairqr.graph.result.Iteration`."""

    ids: list[str]
    exposure: dict[str, float]
    divergence: float | None


class Record(_Part):
    """One search.

    Attributes:
        attribute, queries, system, seed, topic: Which one.
        ids: The ranking.
        rounds: What each round had before any re-ranking; 0 is the original query's.
        best_round: The one that the ranking comes from.
        target: ε* as the search estimated it.
        divergence: Of the ranking from it, in nats.
        stop_reason: Why the loop ended.
        model_calls: Requests to models, those that the cache answered included.
        tokens: What they cost when they were first asked for.
        milliseconds: How long the search took, the models' time for cached replies included.
        at_once: How many searches were under way at the same time.
        warnings: Sentences for people.
        error: Why there is no ranking; empty if there is one.
    """

    attribute: str
    queries: str
    system: str
    seed: int
    topic: str
    ids: list[str] = []
    rounds: list[Round] = []
    best_round: int = 0
    target: dict[str, float] = {}
    divergence: float | None = None
    stop_reason: str = ""
    model_calls: int = 0
    tokens: int = 0
    milliseconds: float = 0.0
    at_once: int = 1
    warnings: list[str] = []
    error: str = ""

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What tells it from the others."""
        return self.attribute, self.queries, self.system, self.seed, self.topic


class Store:
    """The folder of an experiment.

    Args:
        folder: It is made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replies = folder / "replies.sqlite"
        self._lines: IO[str] | None = None

    @property
    def _manifest(self) -> Path:
        return self.folder / "experiment.json"

    @property
    def _results(self) -> Path:
        return self.folder / "results.jsonl"

    def exists(self) -> bool:
        """Return whether an experiment was begun here."""
        return self._manifest.is_file()

    def manifest(self) -> Manifest:
        """Return what it was run with.

        Raises:
            InputError: There is no experiment, or one of another version.
        """
        try:
            return Manifest.model_validate_json(self._manifest.read_bytes())
        except OSError as error:
            raise InputError(
                f"{self.folder} holds no experiment ({error.strerror}); "
                "make one with 'fairqr experiment run'."
            ) from None
        except ValidationError as error:
            where, _ = first_problem(error)
            raise InputError(
                f"{self._manifest} is damaged or of another version (at {one_line(where)}); "
                "run the experiment into another folder."
            ) from None

    def begin(self, manifest: Manifest) -> Manifest:
        """Write what it is run with, or check that it is what the folder was begun with.

        Returns:
            The manifest of the folder.

        Raises:
            InputError: The folder holds another experiment.
        """
        if not self.exists():
            # A kill may have left the lock and a file that was to become the manifest.
            own = (".lock", f".{self._manifest.name}.")
            if self.folder.is_dir() and any(
                not path.name.startswith(own) for path in self.folder.iterdir()
            ):
                raise InputError(
                    f"The folder {self.folder} is not empty and has no experiment; choose another."
                )
            write_beside(self._manifest, manifest.model_dump_json(indent=1) + "\n")
            return manifest
        begun = self.manifest()
        for name in ("experiment", "collection", "fingerprints", "topics", "judge", "prompts"):
            # As text, since a file of settings may hold what compares otherwise once it was read.
            if begun.model_dump_json(include={name}) != manifest.model_dump_json(include={name}):
                raise InputError(
                    f"The folder {self.folder} holds a run with another {name}"
                    f"{_differing(getattr(begun, name), getattr(manifest, name))}; "
                    "choose another folder, or remove this one."
                )
        return self._resumed(begun, manifest)

    def _resumed(self, begun: Manifest, manifest: Manifest) -> Manifest:
        """Note the versions that a run goes on with, where they are others."""
        versions = dict(begun.versions)
        for name, version in manifest.versions.items():
            told = versions.get(name, version)
            if told.split(", then ")[-1] != version:
                versions[name] = f"{told}, then {version}"
        if versions != begun.versions:
            begun = begun.model_copy(update={"versions": versions})
            write_beside(self._manifest, begun.model_dump_json(indent=1) + "\n")
        return begun

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running the same experiment.

        Raises:
            InputError: One does.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"Another process runs the experiment in {self.folder}; wait for it to end."
                ) from None
            yield

    def records(self) -> list[Record]:
        """Return the searches that were done, a later one of the same key in place of an earlier.

        Raises:
            InputError: A line is damaged that is not the last, half written one.
        """
        found: dict[tuple[str, str, str, int, str], Record] = {}
        for number, line in self._whole_lines():
            try:
                record = Record.model_validate_json(line)
            except ValidationError:
                raise InputError(
                    f"{self._results}, line {number}, is damaged; remove the line, and the search "
                    "is done again."
                ) from None
            found[record.key] = record
        return list(found.values())

    def _whole_lines(self) -> Iterable[tuple[int, bytes]]:
        try:
            lines = self._results.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        # What stands behind the last line feed is nothing, or the half line that a kill left.
        return [(number, line + b"\n") for number, line in enumerate(lines[:-1], start=1)]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file of results for :meth:`add`; what a kill left half written is cut off."""
        kept = b"".join(line for _, line in self._whole_lines())
        if self._results.exists() and self._results.stat().st_size != len(kept):
            write_beside(self._results, kept)
        with self._results.open("a", encoding="utf-8") as self._lines:
            yield
        self._lines = None

    def add(self, record: Record) -> None:
        """Write a search; it survives the death of this process."""
        if self._lines is None:
            raise ValueError("the store is not open for writing")
        self._lines.write(json.dumps(record.model_dump(), ensure_ascii=False) + "\n")
        self._lines.flush()

    def write(self, name: str, content: str) -> Path:
        """Write a file of the folder, whole or not at all."""
        path = self.folder / name
        write_beside(path, content)
        return path

    def weights(self, *parts: Any) -> Path:
        """Return where the weights of a system are kept."""
        return self.folder / "weights" / f"{file_name(*parts)}.json"


def file_name(*parts: Any) -> str:
    """Return a name for a file from names that may hold anything; other names give another.

    What a file name cannot hold is replaced, and a hash then tells it from its likes.
    """
    names = [str(part) for part in parts]
    safe = "-".join("".join(c if c in _PLAIN else "_" for c in name) for name in names)[:LONGEST]
    if safe == "-".join(names) and not any("-" in name for name in names):
        return safe
    return f"{safe}-{hashlib.sha256(chr(0).join(names).encode()).hexdigest()[:8]}"


def _differing(one: object, other: object) -> str:
    """Name what differs between two mappings or two experiments, in parentheses."""
    if isinstance(one, BaseModel) and isinstance(other, BaseModel):
        one, other = one.model_dump(mode="json"), other.model_dump(mode="json")
    if not isinstance(one, dict) or not isinstance(other, dict):
        return ""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return f" ({', '.join(map(str, names))})" if names else ""
