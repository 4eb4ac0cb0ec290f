"""A folder that a long run is kept in: its settings, and one line for each thing that was done.

A line is written when something is done, so that a run that was killed goes on where it stopped.
The last line may then be half written; it is left out, and that one thing is done again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Collection, Hashable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, OtherRunError, first_problem, one_line
from fairqr.base.files import is_small_file, open_beside, sha256_of, write_beside

LIBRARIES = (
    "fairqr elasticsearch gguf langchain langgraph matplotlib numpy onnxruntime openai peft "
    "rouge-score scipy tantivy tokenizers torch transformers xllamacpp"
)
"""Results may depend on these; some come with an extra."""

LOCK = ".lock"
"""The file in a folder that is held by the process which works on it."""

HASHED = 2**32
"""The most bytes of a file that a run writes."""
UNREAD = "not read"
"""What stands for the hash of a file that is not read."""
LARGEST = 2**26
"""The most bytes of a file that is read at once, such as a manifest."""

LONGEST = 120
THEN = ", then "
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9+._]")


class Record(BaseModel, frozen=True, extra="forbid", ser_json_inf_nan="constants"):
    """A line of a run; numbers that are undefined or infinite stay what they are.

    Attributes:
        keys: The values that identify a record in its file.
    """

    keys: ClassVar[tuple[str, ...]]

    @property
    def key(self) -> tuple[Any, ...]:
        """The values that identify it."""
        return tuple(getattr(self, name) for name in self.keys)

    @property
    def is_final(self) -> bool:
        """Whether repeating it would be of no use."""
        return True


R = TypeVar("R", bound=Record)


def spent(usage: Usage) -> dict[str, int]:
    """Return the cost for a record; cached replies count as when they were made."""
    return {
        "model_calls": usage.model_calls + usage.cached_calls,
        "tokens": usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    by_name = {"python": platform.python_version()}
    for name in LIBRARIES.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            by_name[name] = importlib.metadata.version(name)
    return by_name


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class FolderManifest(BaseModel, frozen=True, extra="forbid"):
    """The settings that a run started with; each kind adds its own.

    Attributes:
        free: More values that may differ when a run is resumed, besides those of this class.
        versions: The versions of fairqr, Python and the libraries that results depend on, and of a
            ``server`` that was audited; several, the last one last, if a run was resumed with
            others.
        started: The time, in ISO 8601.
    """

    free: ClassVar[frozenset[str]] = frozenset({"notes"})

    format: Literal[2] = 2
    versions: dict[str, str] = Field(default_factory=versions)
    started: str = Field(default_factory=_now)

    @classmethod
    def identity(cls) -> list[str]:
        """Return the names of the values that must be the same when a run goes on."""
        free = FolderManifest.model_fields.keys() | cls.free
        return [name for name in cls.model_fields if name not in free]

    @property
    def text(self) -> str:
        """The content of its file."""
        return self.model_dump_json(indent=1) + "\n"


class SealedManifest(FolderManifest):
    """The settings of a run whose files have hashes once it is finished.

    Attributes:
        finished: When, in ISO 8601; empty while it runs.
        files: The SHA-256 of each file of the folder but this one, by its path in the folder.
    """

    free: ClassVar[frozenset[str]] = FolderManifest.free | {"finished", "files"}

    finished: str = ""
    files: dict[str, str] = Field({})

    @property
    def digest(self) -> str:
        """The SHA-256 of its file; whoever knows it can check the whole folder."""
        return hashlib.sha256(self.text.encode()).hexdigest()


T = TypeVar("T")
M = TypeVar("M", bound=FolderManifest)


class Lines(Generic[R]):
    """A file with one record a line.

    Args:
        path: The file; we make it with the first record.
        record: The class of the records; of two with the same key, the later one counts.
        mode: Who may read and write the file, less the user's umask.
    """

    def __init__(self, path: Path, record: type[R], mode: int = 0o666) -> None:
        self.path = path
        self._record = record
        self._mode = mode
        self._open: Any = None

    def read(self) -> list[R]:
        """Return the records; a later one replaces an earlier one of the same key.

        Raises:
            InputError: A line is damaged that is not the last, half written one.
        """
        return list({record.key: record for _, record in self._records()}.values())

    def in_order(self, keys: Iterable[Hashable]) -> Iterator[R]:
        """Yield the records of these keys, as :meth:`read` has them, one at a time in memory."""
        starts: dict[Hashable, int] = {record.key: start for start, record in self._records()}
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as stream:
            for key in keys:
                if key in starts:
                    stream.seek(starts[key])
                    yield self._record.model_validate_json(stream.readline())

    def rewrite(self, records: Iterable[R]) -> None:
        """Replace the file by one of these records; they may come from :meth:`in_order`.

        A kill leaves the file as it was.
        """
        with open_beside(self.path, self._mode) as stream:
            for record in records:
                stream.write(record.model_dump_json().encode() + b"\n")

    def done(self) -> set[Hashable]:
        """Return the keys of the records that need not be made again."""
        final = {record.key: record.is_final for _, record in self._records()}
        return {key for key, is_final in final.items() if is_final}

    def _records(self) -> Iterator[tuple[int, R]]:
        """Yield where each whole line starts, and the record in it."""
        start = 0
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                # A kill left half a line behind the last line feed.
                if not line.endswith(b"\n"):
                    return
                try:
                    yield start, self._record.model_validate_json(line)
                except ValidationError:
                    raise InputError(
                        f"{self.path}, line {number}, is damaged or of another version; remove it, "
                        "and it is done again."
                    ) from None
                start += len(line)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file for :meth:`add`; half a line that a kill left is cut off."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, self._mode)
        with os.fdopen(handle, "rb+") as self._open:
            whole = [line for line in self._open if line.endswith(b"\n")]
            self._open.truncate(sum(map(len, whole)))
            yield

    def add(self, record: R) -> None:
        """Write a record; it survives the death of this process."""
        self._open.write(record.model_dump_json().encode() + b"\n")
        self._open.flush()


class Folder(Generic[M]):
    """A folder with the settings of a run.

    Args:
        folder: We make it if it is missing.

    Attributes:
        manifest_type: The class of the settings; a sealed folder has a :class:`SealedManifest`.
        name: The name of the file of settings.
        what: The word for a run.
        evidence: The files of a sealed folder that do not follow from others.
        replies: The file that keeps the replies of models.
    """

    manifest_type: type[M]
    name = "experiment.json"
    what = "experiment"
    evidence: frozenset[str] = frozenset()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replies = folder / "replies.sqlite"
        self._manifest = folder / self.name

    def exists(self) -> bool:
        """Return whether the folder has a run."""
        return self._manifest.is_file()

    def manifest(self) -> M:
        """Return the settings of the run.

        Raises:
            InputError: There is no run, or a damaged one, or one of another version.
        """
        return self.read(self.name, self.manifest_type)

    def require_file(self, name: str) -> None:
        """Check that a file of the folder can be read at once.

        Raises:
            InputError: It is a link or a device, or very large.
            OSError: It does not exist.
        """
        if not is_small_file(self.folder / name, LARGEST):
            raise InputError(
                f"{self.folder / name} is no file, or larger than {LARGEST // 2**20} MB; choose "
                "another folder."
            )

    def read(self, name: str, kind: type[T]) -> T:
        """Return what a file of the folder holds.

        Args:
            name: The name of the file.
            kind: The class of its content.

        Raises:
            InputError: It does not exist, or is damaged or of another version.
        """
        path = self.folder / name
        try:
            self.require_file(name)
            return TypeAdapter(kind).validate_json(path.read_bytes())
        except OSError as error:
            raise InputError(f"{self.folder} holds no {self.what} ({error.strerror}).") from None
        except ValidationError as error:
            place = one_line(first_problem(error)[0]) or "its first line"
            raise InputError(
                f"{path} is damaged or of another version (at {place}); choose another folder."
            ) from None

    def begin(self, manifest: M) -> M:
        """Write the settings, or check that the folder has the same.

        Returns:
            The manifest of the folder, with the versions that the run goes on with.

        Raises:
            InputError: The folder holds another run.
        """
        self.check(manifest)
        begun = self.manifest() if self.exists() else manifest
        versions = dict(begun.versions)
        for name, version in manifest.versions.items():
            earlier = versions.get(name, version).split(THEN)
            others = [other for other in earlier if other != version]
            versions[name] = THEN.join([*others, version])
        begun = begun.model_copy(update={"versions": versions})
        write_beside(self._manifest, begun.text)
        return begun

    def check(self, manifest: M) -> None:
        """Check that a run can start or resume here; nothing is written.

        Raises:
            OtherRunError: The folder holds another run.
            InputError: The folder holds something else.
        """
        if not self.exists():
            # A kill leaves the lock and a file that was to become the manifest. Replies of another
            # run may have been brought.
            harmless = (".", self.replies.name)
            if any(not path.name.startswith(harmless) for path in self.folder.glob("*")):
                raise InputError(
                    f"The folder {self.folder} is not empty and has no {self.what}; choose another."
                )
            return
        # As JSON, since a file of settings may hold what compares otherwise once it was read.
        begun = self.manifest().model_dump(mode="json")
        new = manifest.model_dump(mode="json")
        for name in manifest.identity():
            if begun[name] != new[name]:
                details = _differing(begun[name], new[name])
                raise OtherRunError(
                    f"The folder {self.folder} holds a run with another {name}{details}; choose "
                    "another folder."
                )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running in the same folder.

        Raises:
            InputError: Another process does.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(self.folder / LOCK).acquire(0)
        except Timeout:
            raise InputError(
                f"Another process runs the {self.what} in {self.folder}; wait for it to end."
            ) from None
        with lock:
            yield

    def seal(self, **changes: Any) -> M:
        """Note the hashes of all files in the manifest, and return it; half-written files go.

        Args:
            changes: More values of the manifest.
        """
        for half_written in self.folder.rglob(".*." + "[0-9a-f]" * 16):  # a kill left it
            half_written.unlink()
        hashes = hashes_of(self.folder)
        del hashes[self.name]
        values = self.manifest().model_dump() | changes
        values |= {"files": hashes, "finished": _now()}
        sealed = self.manifest_type.model_validate(values)
        write_beside(self._manifest, sealed.text)
        return sealed

    def damage(self) -> Iterator[str]:
        """Yield a sentence on each file of a sealed folder that is not as the manifest lists it.

        A signature of the manifest is made after it.
        """
        manifest: Any = self.manifest()
        listed = manifest.files
        present = hashes_of(self.folder, only=listed)
        not_listed = {self.name, f"{self.name}.sig"}
        for name in sorted(listed.keys() | present.keys() - not_listed):
            if present.get(name) == "":
                yield f"The file {shown_name(name)} is a link or a device, and no file."
            elif name not in present:
                yield f"The file {shown_name(name)} is missing."
            elif name not in listed:
                yield f"The file {shown_name(name)} was added: the manifest does not list it."
            elif present[name] == UNREAD or present[name] != listed[name]:
                yield f"The file {shown_name(name)} was changed."


def hashes_of(folder: Path, only: Collection[str] | None = None) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder, by its path in it; empty if it is no file.

    The empty file that keeps other processes out is left out. No link is followed.

    Args:
        folder: The folder.
        only: Read these files alone, and only where a run may have written as much, since somebody
            may have put large ones there; others are :data:`UNREAD`.
    """
    hashes = {}
    for path in sorted(folder.rglob("*"), key=str):
        name = path.relative_to(folder).as_posix()
        is_link = path.is_symlink()
        is_folder = path.is_dir() and not is_link
        is_lock = name == LOCK and not path.lstat().st_size
        if is_folder or is_lock:
            continue
        if is_link or not path.is_file():
            hashes[name] = ""
        elif only is None or (name in only and path.stat().st_size <= HASHED):
            hashes[name] = sha256_of(path)
        else:
            hashes[name] = UNREAD
    return hashes


def shown_name(name: str) -> str:
    """Return a name that somebody else chose for a sentence, on one line and without controls."""
    printable = [
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name
    ]
    return one_line("".join(printable))


def file_name(*parts: Any) -> str:
    """Return a name for a file from any names; different names give different ones.

    We replace what a file name cannot hold, and then add a hash, so that names stay distinct.
    """
    names = [str(part) for part in parts]
    safe = "-".join(_NOT_PLAIN.sub("_", name) for name in names)[:LONGEST]
    has_hyphen = any("-" in name for name in names)
    if safe == "-".join(names) and not has_hyphen:
        return safe
    digest = hashlib.sha256(chr(0).join(names).encode()).hexdigest()
    return f"{safe}-{digest[:8]}"


def _differing(first: object, second: object) -> str:
    """Name what differs between two mappings, in parentheses."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return ""
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return f" ({', '.join(map(str, names))})" if names else ""
