"""The folder of an audit: evidence that somebody else can check without the engine.

While an audit runs, ``raw/`` holds observations as plain lines, so that a run that was killed goes
on where it was. :meth:`AuditFolder.pack` then compresses what is kept, the figures are computed
from that, and :meth:`AuditFolder.seal` notes the hashes of all files in ``manifest.json``. The
digest of an audit is the SHA-256 of that file.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import os
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.base.files import open_beside, sha256_of
from fairqr.evaluation.audit.layouts import DEFAULT
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.records import (
    AuditRecord,
    Observation,
    PairScores,
)
from fairqr.evaluation.experiments.folder import (
    LOCK,
    Folder,
    FolderManifest,
    Lines,
    Record,
    followed,
)
from fairqr.retrieval.schema import Attribute

FIGURES = "audit.json"
MANIFEST = "manifest.json"
SIGNATURE = f"{MANIFEST}.sig"
"""Signs the manifest, so it is made after it and not listed in it."""
QUERIES = "raw/queries.json.gz"
TITLES = "raw/titles.json.gz"
NEEDED = (FIGURES, QUERIES, "raw/observations.jsonl.gz")
"""What every audit has."""

QUOTING = ("inputs", "command", "notes")
"""The values of a manifest that may quote a query."""

SHORT = 4
"""Shorter queries are only looked for as a whole text, since any text may contain them."""

PRIVATE = 0o600
PRIVATE_FOLDER = 0o700
COMPRESSION = 1
"""Of gzip. At level 6 files would be an eighth smaller, and take four times as long to write."""


WITHHELD = "withheld"
_SECRET = r"(?:pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|access[-_]?key|authorization)"  # noqa: S105
_SECRET_NAME = re.compile(rf".*{_SECRET}", re.IGNORECASE)
_SECRET_VALUE = re.compile(rf"((?:[\w.-]*{_SECRET}|[?&]key|[?&]sig(?:nature)?)=)[^&#\s]+", re.I)
_USER = re.compile(r"(://)[^/?#@\s]*@")
_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{16}")
HASH = re.compile(r"[0-9a-f]{64}")


_TITLES = TypeAdapter(dict[str, str])

A = TypeVar("A", bound=AuditRecord)
R = TypeVar("R", bound=Record)

Relevance = Literal["judged", "estimated", "unknown"]
"""What says which documents are relevant: judgements, their texts, or nothing."""


class AuditedEngine(BaseModel):
    """The engine of an audit.

    Attributes:
        name: How commands call it.
        engine: Its kind, such as ``elasticsearch``.
        location: A folder, or the address of a server and the index on it, without credentials.
        retriever: How it ranks.
        state: The fingerprint of its documents, if these cannot change while it is audited.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    engine: str
    location: str
    retriever: str
    state: str = ""


class AuditManifest(FolderManifest):
    """What an audit was made with, and the hashes of its files.

    Attributes:
        spec: What the figures depend on; it quotes no query.
        source: The source of the engine, without secrets.
        inputs: The SHA-256 of each file that was read, but not of the queries, by name.
        queries: The fingerprint of the queries; empty if they are redacted, since it could be
            guessed.
        seeds: Of all random numbers, by what they are for.
        command: The command, without secrets.
        server: The product that searched, with its version; several, in order, if it changed while
            the audit was interrupted. ``not told`` if the account may not see it, and empty if the
            engine has none, such as an HTTP endpoint.
        notes: Sentences for the report.
        engine: The audited engine.
        documents: How many documents it held when the audit began; None if it does not say.
        attributes: The attributes, with their groups, as the engine has them.
        relevance: What says which documents are relevant.
        encoder: What read the texts, if these were used.
        pairs_by: What scored versions of documents; empty without any.
        corpus_shares: The shares of the groups in the whole corpus, if the target names them.
        redacted: Whether pseudonyms stand in place of the queries.
        finished: When, in ISO 8601; empty while the audit runs.
        layout: Of the report.
        files: The SHA-256 of each file of the folder but this one, by its path in the folder.
    """

    free = frozenset(
        {
            *("command", "server", "notes", "documents", "corpus_shares"),
            *("redacted", "finished", "layout", "files"),
        },
    )

    spec: dict[str, JsonValue]
    source: dict[str, JsonValue] = Field({})
    inputs: dict[str, str] = Field({})
    queries: str
    seeds: dict[str, int] = Field({})
    command: tuple[str, ...] = ()
    server: str = ""
    notes: tuple[str, ...] = ()
    engine: AuditedEngine
    documents: int | None = None
    attributes: dict[str, Attribute]
    relevance: Relevance
    encoder: str = ""
    pairs_by: str = ""
    corpus_shares: dict[str, tuple[float, ...]] = Field({})
    redacted: bool = False
    finished: str = ""
    layout: str = DEFAULT
    files: dict[str, str] = Field({})

    @field_validator("files")
    @classmethod
    def _lie_in_the_folder(cls, files: dict[str, str]) -> dict[str, str]:
        for name, digest in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or str(path) != name:
                raise ValueError(f"'{one_line(name)}' is no file of the folder")
            if not HASH.fullmatch(digest):
                raise ValueError(f"'{one_line(name)}' has no SHA-256")
        return files

    def without_place(self) -> Self:
        """Return it without the place and the source of the engine."""
        engine = self.engine.model_copy(update={"location": WITHHELD})
        return self.model_copy(update={"engine": engine, "source": {}})

    @property
    def text(self) -> str:
        """The content of its file, of which there is one form only."""
        return self.model_dump_json(indent=1) + "\n"

    @property
    def digest(self) -> str:
        """The SHA-256 of its file."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def without_secrets(value: Any) -> Any:
    """Return plain data with ``withheld`` in place of passwords, keys and tokens.

    Sources name their credentials and hold none; but an address, a request body or an option of
    the command may.
    """
    if isinstance(value, str):
        return _SECRET_VALUE.sub(rf"\1{WITHHELD}", _USER.sub(r"\1", value))
    if isinstance(value, Mapping):
        return {
            key: WITHHELD
            if isinstance(held, str) and _SECRET_NAME.fullmatch(key)
            else without_secrets(held)
            for key, held in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(map(without_secrets, value))
    return value


@dataclass(frozen=True, slots=True)
class Redaction:
    """Pseudonyms of queries: numbers in an order that nobody can compute again.

    A hash of a query would not do, since whoever guesses the query can check the guess. Whoever may
    ask the engine can still guess a query from the documents that it found.

    Attributes:
        queries: The queries under their pseudonyms, in the order of these.
        ids: The id of each pseudonym's query.
        pseudonyms: The pseudonym of each query by its id.
    """

    queries: Queries
    ids: tuple[str, ...]
    pseudonyms: Mapping[str, str]

    @classmethod
    def of(cls, queries: Queries) -> Self:
        """Number queries in random order."""
        shuffled = list(queries.queries)
        # The seed of the audit is no secret, and would give the order.
        secrets.SystemRandom().shuffle(shuffled)
        width = len(str(len(shuffled)))
        pseudonyms = {
            query.id: f"q{number:0{width}}" for number, query in enumerate(shuffled, start=1)
        }
        named = tuple(
            replace(query, id=pseudonyms[query.id], text=f"query {number}")
            for number, query in enumerate(shuffled, start=1)
        )
        ids = tuple(query.id for query in shuffled)
        return cls(replace(queries, queries=named), ids, pseudonyms)

    def of_record(self, record: A) -> A:
        """Return a record under the pseudonym of its query, without what may quote the query."""
        return record.redacted(self.pseudonyms, f"{WITHHELD}, as it may quote the query")


class Store(Generic[R]):
    """The records of one part of an audit in ``raw/``: lines while it runs, and then packed.

    Args:
        raw: The folder.
        name: Of the files.
        record: The class of the records.

    Attributes:
        lines: The records while the audit runs.
    """

    def __init__(self, raw: Path, name: str, record: type[R]) -> None:
        self.lines: Lines[R] = Lines(raw / f"{name}.jsonl", record, "the query", PRIVATE)
        self._path = raw / f"{name}.jsonl.gz"
        self._record: type[R] = record

    def pack(self, lines: Iterable[bytes]) -> int:
        """Compress lines and return how many there are; no file is made of none."""
        return _pack(self._path, lines)

    def read(self) -> Iterator[R]:
        """Yield the records that were packed.

        Raises:
            InputError: The file is damaged, or every audit has it and it is missing.
        """
        if self._path.exists() or f"raw/{self._path.name}" in NEEDED:
            with _reading(self._path), gzip.open(self._path) as stream:
                yield from map(self._record.model_validate_json, stream)


class AuditFolder(Folder[AuditManifest]):
    """The folder of an audit: ``manifest.json``, ``raw/``, the figures and the report.

    Args:
        folder: It is made where it is missing.

    Attributes:
        raw: What the engine answered. Nobody but the owner may read it.
        observations: What the engine answered.
        pairs: The scores of versions of documents.
    """

    manifest_type = AuditManifest
    name = MANIFEST
    what = "audit"
    made_with = "fairqr audit"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        raw = self.raw = folder / "raw"
        self.observations = Store(raw, "observations", Observation)
        self.pairs = Store(raw, "pairs", PairScores)
        self._packed: Queries | None = None
        self._redaction: Redaction | None = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running in the same folder.

        Raises:
            InputError: One does.
        """
        with super().locked():
            if self.exists() and self.manifest().finished:
                self._remove_working_files()  # a kill at the very end may have left them
            yield

    def begin(self, manifest: AuditManifest) -> AuditManifest:
        """Write what the audit is made with, or check that it is what the folder was begun with.

        Returns:
            The manifest of the folder. If it says when the audit was finished, nothing is left to
            do, and its digest is that of the audit.

        Raises:
            InputError: The folder holds another audit, or one with redacted queries.
        """
        begun = super().begin(manifest)
        self.raw.mkdir(PRIVATE_FOLDER, exist_ok=True)
        return begun

    def check(self, manifest: AuditManifest) -> None:
        """Check that an audit can be begun here, or gone on with; nothing is written.

        Raises:
            InputError: The folder holds another audit, or one with redacted queries.
        """
        if self.exists() and self.manifest().redacted:
            raise InputError(
                f"The folder {self.folder} holds a finished audit with redacted queries; choose "
                "another folder, or remove this one."
            )
        super().check(manifest)

    def _resumed(self, begun: AuditManifest, manifest: AuditManifest) -> AuditManifest:
        if begun.finished:
            return begun
        begun = begun.model_copy(update={"server": followed(begun.server, manifest.server)})
        return super()._resumed(begun, manifest)

    def observed(self, query: str) -> Observation:
        """Return what was observed of a query while the audit runs."""
        return next(self.observations.lines.in_order([(query,)]))

    def pack(self, queries: Queries, *, redact: bool = False) -> Queries:
        """Compress what ``raw/`` keeps: queries, observations in their order, and all else.

        Args:
            queries: All queries of the audit.
            redact: Put pseudonyms in place of queries.

        Returns:
            The queries as they were packed. What is computed and shown must come from these and
            from the stores, so that no redacted query is anywhere.

        Raises:
            InputError: A query has no observation, or a line is damaged.
        """
        redaction = self._redaction = Redaction.of(queries) if redact else None
        packed = redaction.queries if redaction else queries
        ids = redaction.ids if redaction else [it.id for it in queries.queries]
        _pack(self.folder / QUERIES, [TypeAdapter(Queries).dump_json(packed)])
        lines = self.observations.lines.lines_in_order((id_,) for id_ in ids)
        if redaction:
            lines = (
                _line(redaction.of_record(Observation.model_validate_json(it))) for it in lines
            )
        observed = self.observations.pack(lines)
        if observed != len(ids):
            raise InputError(
                f"The audit in {self.folder} has observed {observed:,} of {len(ids):,} queries; "
                "run it again to go on with it."
            )
        found = self.pairs.lines.read()
        shown = map(redaction.of_record, found) if redaction else found
        self.pairs.pack(map(_line, sorted(shown, key=lambda record: record.key)))
        self._packed = queries
        return packed

    def pack_titles(self, titles: Mapping[str, str]) -> None:
        """Compress the titles of documents, by id; no file is made of none."""
        _pack(self.folder / TITLES, [_TITLES.dump_json(dict(titles))] if titles else ())

    def titles(self) -> dict[str, str]:
        """Return the titles of documents that were packed, if any were.

        Raises:
            InputError: The file is damaged.
        """
        path = self.folder / TITLES
        if not path.exists():
            return {}
        with _reading(path), gzip.open(path) as stream:
            return _TITLES.validate_json(stream.read())

    def queries(self) -> Queries:
        """Return the queries that were packed.

        Raises:
            InputError: They are missing or damaged.
        """
        path = self.folder / QUERIES
        with _reading(path), gzip.open(path) as stream:
            return TypeAdapter(Queries).validate_json(stream.read())

    def seal(self, layout: str = DEFAULT) -> str:
        """Note the hashes of all files, and remove what only a running audit needs.

        Args:
            layout: Of the report.

        Returns:
            The digest of the audit.

        Raises:
            InputError: The folder holds what is no file.
        """
        if self._packed is None:
            raise ValueError("the audit was not packed")
        said = self.manifest().model_dump()
        if self._redaction:
            held = {
                text
                for it in self._packed.queries
                for text in (it.id.casefold(), it.text.casefold())
            }
            said |= {name: _hidden(said[name], held) for name in QUOTING}
            said |= {"queries": "", "redacted": True}
        said |= {"files": self._hashes(), "layout": layout}
        said["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = AuditManifest.model_validate(said)
        self.write(MANIFEST, manifest.text)
        self._remove_working_files()
        return manifest.digest

    def _hashes(self) -> dict[str, str]:
        """Return the hash of each file that is to be kept, by its path in the folder."""
        files, others = contents_of(self.folder)
        if others:
            raise InputError(
                f"The folder {self.folder} holds '{shown_name(others[0])}', which is no file; "
                "remove it, and run the audit again to go on with it."
            )
        passing = {
            MANIFEST,
            SIGNATURE,
            *(path.relative_to(self.folder).as_posix() for path in self._working),
        }
        for name, path in files.items():
            if _HALF_WRITTEN.fullmatch(path.name):  # what a kill left of a file
                path.unlink()
                passing.add(name)
        hashes = {name: sha256_of(path) for name, path in files.items() if name not in passing}
        if lacking := [name for name in NEEDED if name not in hashes]:
            raise ValueError(f"the audit has no {lacking[0]}")
        return hashes

    @property
    def _working(self) -> list[Path]:
        """What only a running audit needs."""
        return [self.raw / f"{name}.jsonl" for name in ("observations", "pairs")]

    def _remove_working_files(self) -> None:
        for path in self._working:
            path.unlink(missing_ok=True)


def _hidden(value: Any, queries: set[str]) -> Any:
    """Return plain data with ``withheld`` in place of texts that hold a query or an id."""
    if isinstance(value, str):
        text = " ".join(value.casefold().split())
        quotes = text in queries or any(len(it) >= SHORT and it in text for it in queries)
        return WITHHELD if quotes else value
    if isinstance(value, Mapping):
        return {_hidden(key, queries): _hidden(held, queries) for key, held in value.items()}
    return [_hidden(held, queries) for held in value]


def _line(record: Record) -> bytes:
    return f"{record.model_dump_json()}\n".encode()


def _pack(path: Path, parts: Iterable[bytes]) -> int:
    """Write a compressed file that is the same whenever and under whatever name it is written.

    Returns:
        How many parts there are; without any, there is no file.
    """
    path.unlink(missing_ok=True)
    left = iter(parts)
    first = next(left, None)
    if first is None:
        return 0
    count = 0
    with (
        open_beside(path, PRIVATE) as beside,
        gzip.GzipFile("", "wb", COMPRESSION, beside, mtime=0) as stream,
    ):
        for part in itertools.chain([first], left):
            stream.write(part)
            count += 1
    return count


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a packed file is read into a sentence that names it."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        why = one_line(error)
    except ValidationError as error:
        where, what = first_problem(error)
        why = f"{where}: {one_line(what)}" if where else one_line(what)
    else:
        return
    raise InputError(
        f"{path} is missing, damaged or of another version ({why}); fetch the audit again, or make "
        "it again."
    )


def contents_of(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the files of a folder by their paths in it, and what is neither file nor folder.

    The empty file that keeps other processes out is left out. No link is followed.
    """
    files: dict[str, Path] = {}
    others: list[str] = []
    for place, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(place, name)
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                others.append(relative)
            elif path.is_file() and not (relative == LOCK and not path.stat().st_size):
                files[relative] = path
    return dict(sorted(files.items())), sorted(others)


def shown_name(name: str) -> str:
    """Return a name that somebody else chose for a sentence, on one line and without controls."""
    return one_line("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name))
