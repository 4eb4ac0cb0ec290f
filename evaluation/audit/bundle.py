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
import json
import math
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from fairqr.base.errors import FairqrError, InputError, first_problem, one_line
from fairqr.base.files import open_beside, sha256_of
from fairqr.base.kept_file import KeptFile
from fairqr.evaluation.audit.answers import AnsweredQuery
from fairqr.evaluation.audit.observations import Observation
from fairqr.evaluation.audit.pairs import PairScores
from fairqr.evaluation.audit.probing import ProbedQuery
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.experiments.folder import Folder, FolderManifest, Lines, Record
from fairqr.retrieval.schema import Attribute

__all__ = [
    "AuditFolder",
    "AuditManifest",
    "AuditedEngine",
    "Redaction",
    "Relevance",
    "Verification",
    "verify",
    "without_secrets",
]

FIGURES = "audit.json"
MANIFEST = "manifest.json"
LOCK = ".lock"
QUERIES = "raw/queries.json.gz"
OBSERVATIONS = "raw/observations.jsonl.gz"
PAIRS = "raw/pairs.jsonl.gz"
ANSWERS = "raw/answers.jsonl.gz"
PROBES = "raw/probes.jsonl.gz"
REPLIES = "raw/replies.jsonl.gz"
NEEDED = (FIGURES, QUERIES, OBSERVATIONS)
"""What every audit has."""

QUOTING = ("inputs", "command", "notes")
"""The values of a manifest that may quote a query."""

SHORT = 4
"""Shorter queries are only looked for as a whole text, since any text may contain them."""

PRIVATE = 0o600
PRIVATE_FOLDER = 0o700
ROUNDING = 1e-10
"""Figures have 12 digits; where two machines round otherwise, the last digit may differ by one."""

DIFFERENCES_SHOWN = 5
COMPRESSION = 6
REPLIES_AT_ONCE = 500
MOST_REPLIES = 1 << 40
"""Bytes; replies are read here, and none is dropped."""

WITHHELD = "withheld"
_SECRET = r"(?:pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|access[-_]?key|authorization)"  # noqa: S105
_SECRET_NAME = re.compile(rf".*{_SECRET}", re.IGNORECASE)
_SECRET_VALUE = re.compile(rf"((?:[\w.-]*{_SECRET}|[?&]key|[?&]sig(?:nature)?)=)[^&#\s]+", re.I)
_USER = re.compile(r"(://)[^/?#@\s]*@")
_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{16}")
_HASH = re.compile(r"[0-9a-f]{64}")


Q = TypeVar("Q", AnsweredQuery, ProbedQuery)
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
        server: The server that was asked, with its version.
        notes: Sentences for the report.
        engine: The audited engine.
        documents: How many documents it held when the audit began; None if it does not say.
        attributes: The attributes, with their groups, as the engine has them.
        relevance: What says which documents are relevant.
        encoder: What read the texts, if these were used.
        models: What else was asked than the engine: ``pairs`` scored versions of documents, the
            ``generator`` answered, the ``attributor`` judged answers, the ``ranker`` was probed.
        corpus_shares: The shares of the groups in the whole corpus, if the target names them.
        redacted: Whether pseudonyms stand in place of the queries.
        finished: When, in ISO 8601; empty while the audit runs.
        files: The SHA-256 of each file of the folder but this one, by its path in the folder.
    """

    free = frozenset(
        {
            *("command", "server", "notes", "documents", "corpus_shares"),
            *("redacted", "finished", "files"),
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
    models: dict[str, str] = Field({})
    corpus_shares: dict[str, tuple[float, ...]] = Field({})
    redacted: bool = False
    finished: str = ""
    files: dict[str, str] = Field({})

    @field_validator("files")
    @classmethod
    def _lie_in_the_folder(cls, files: dict[str, str]) -> dict[str, str]:
        for name, digest in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or str(path) != name:
                raise ValueError(f"'{one_line(name)}' is no file of the folder")
            if not _HASH.fullmatch(digest):
                raise ValueError(f"'{one_line(name)}' has no SHA-256")
        return files

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

    def observation(self, observation: Observation) -> Observation:
        """Return an observation under the pseudonym; what the engine said may quote the query."""
        query = self.pseudonyms[observation.query]
        return observation.model_copy(
            update={"query": query, "message": _withheld(observation.message)}
        )

    def pair_scores(self, scores: PairScores) -> PairScores:
        """Return the scores of a query, which they do not name, without what was said of it."""
        return scores.model_copy(update={"message": _withheld(scores.message)})

    def record(self, record: Q) -> Q:
        """Return what models said of a query under its pseudonym."""
        query = self.pseudonyms[record.query]
        return record.model_copy(update={"query": query, "message": _withheld(record.message)})


def _withheld(message: str) -> str:
    return f"{WITHHELD}, as it may quote the query" if message else ""


class AuditFolder(Folder[AuditManifest]):
    """The folder of an audit: ``manifest.json``, ``raw/``, the figures and the report.

    Args:
        folder: It is made where it is missing.

    Attributes:
        raw: What the engine answered. Nobody but the owner may read it.
        lines: The observations while the audit runs.
        pair_lines: The scores of pairs while the audit runs.
        answer_lines: What became of documents in answers while the audit runs.
        probe_lines: What a model that was probed said while the audit runs.
        replies: The replies of models while the audit runs.
    """

    manifest_type = AuditManifest
    name = MANIFEST
    what = "audit"
    made_with = "fairqr audit"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.raw = folder / "raw"
        self.lines = Lines(self.raw / "observations.jsonl", Observation, "the query", PRIVATE)
        self.pair_lines = Lines(self.raw / "pairs.jsonl", PairScores, "the query", PRIVATE)
        self.answer_lines = Lines(
            self.raw / "answers.jsonl", AnsweredQuery, "the question", PRIVATE
        )
        self.probe_lines = Lines(self.raw / "probes.jsonl", ProbedQuery, "the query", PRIVATE)
        self.replies = self.raw / "replies.sqlite"
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
        return begun if begun.finished else super()._resumed(begun, manifest)

    def observed(self, ids: Iterable[str]) -> dict[str, Observation]:
        """Return what was observed of these queries while the audit runs."""
        return {found.query: found for found in self.lines.in_order((id_,) for id_ in ids)}

    def pack(self, queries: Queries, *, redact: bool = False) -> Queries:
        """Compress what ``raw/`` keeps: queries, observations in their order, and replies.

        Args:
            queries: All queries of the audit.
            redact: Put pseudonyms in place of queries, and keep no replies of models, which may
                quote a query.

        Returns:
            The queries as they were packed. What is computed and shown must come from these and
            from :meth:`observations`, so that no redacted query is anywhere.

        Raises:
            InputError: A query has no observation, or a line is damaged.
        """
        self._redaction = Redaction.of(queries) if redact else None
        packed = self._redaction.queries if self._redaction else queries
        ids = self._redaction.ids if self._redaction else [it.id for it in queries.queries]
        with _packing(self.folder / QUERIES) as stream:
            stream.write(TypeAdapter(Queries).dump_json(packed))
        observed = 0
        with _packing(self.folder / OBSERVATIONS) as stream:
            for found in self.lines.in_order((id_,) for id_ in ids):
                shown = self._redaction.observation(found) if self._redaction else found
                stream.write(f"{shown.model_dump_json()}\n".encode())
                observed += 1
        if observed != len(ids):
            raise InputError(
                f"The audit in {self.folder} has observed {observed:,} of {len(ids):,} queries; "
                "run it again to go on with it."
            )
        redaction = self._redaction
        self._pack_lines(
            PAIRS, self.pair_lines.read(), redaction.pair_scores if redaction else None
        )
        self._pack_lines(ANSWERS, self.answer_lines.read(), redaction.record if redaction else None)
        self._pack_lines(PROBES, self.probe_lines.read(), redaction.record if redaction else None)
        self._pack_replies()
        self._packed = queries
        return packed

    def _pack_lines(
        self, name: str, records: Sequence[R], redacted: Callable[[R], R] | None
    ) -> None:
        """Compress records in the order of their keys; no file is made of none."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        shown = sorted(map(redacted, records) if redacted else records, key=lambda it: it.key)
        if not shown:
            return
        with _packing(path) as stream:
            stream.writelines(f"{found.model_dump_json()}\n".encode() for found in shown)

    def _pack_replies(self) -> None:
        path = self.folder / REPLIES
        path.unlink(missing_ok=True)
        if self._redaction or not self.replies.exists():
            return
        kept: KeptFile[str] = KeptFile(self.replies, MOST_REPLIES)
        with _packing(path) as stream:
            after = ""
            while found := kept.after(after, REPLIES_AT_ONCE):
                after = max(found)
                for key, reply in found.items():
                    line = json.dumps({"key": key, "reply": reply}, ensure_ascii=False)
                    stream.write(f"{line}\n".encode())
        kept.close()

    def queries(self) -> Queries:
        """Return the queries that were packed.

        Raises:
            InputError: They are missing or damaged.
        """
        path = self.folder / QUERIES
        with _reading(path), gzip.open(path) as stream:
            return TypeAdapter(Queries).validate_json(stream.read())

    def observations(self) -> Iterator[Observation]:
        """Yield the observations that were packed, in the order of the queries.

        Raises:
            InputError: They are missing or damaged.
        """
        path = self.folder / OBSERVATIONS
        with _reading(path), gzip.open(path) as stream:
            yield from map(Observation.model_validate_json, stream)

    def pair_scores(self) -> list[PairScores]:
        """Return the scores of pairs that were packed, if any were.

        Raises:
            InputError: They are damaged.
        """
        return self._packed_lines(PAIRS, PairScores)

    def answers(self) -> list[AnsweredQuery]:
        """Return what became of documents in answers, if any were asked for.

        Raises:
            InputError: The file is damaged.
        """
        return self._packed_lines(ANSWERS, AnsweredQuery)

    def probes(self) -> list[ProbedQuery]:
        """Return what a model that was probed said, if one was.

        Raises:
            InputError: The file is damaged.
        """
        return self._packed_lines(PROBES, ProbedQuery)

    def _packed_lines(self, name: str, record: type[R]) -> list[R]:
        path = self.folder / name
        if not path.exists():
            return []
        with _reading(path), gzip.open(path) as stream:
            return list(map(record.model_validate_json, stream))

    def seal(self, **facts: Any) -> str:
        """Note the hashes of all files, and remove what only a running audit needs.

        Args:
            facts: What else the manifest should say by now, such as ``server``.

        Returns:
            The digest of the audit.

        Raises:
            InputError: The folder holds what is no file.
        """
        if self._packed is None:
            raise ValueError("the audit was not packed")
        said = {**self.manifest().model_dump(), **facts}
        if self._redaction:
            held = {
                text
                for it in self._packed.queries
                for text in (it.id.casefold(), it.text.casefold())
            }
            said |= {name: _hidden(said[name], held) for name in QUOTING}
            said |= {"queries": "", "redacted": True}
        said["files"] = self._hashes()
        said["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = AuditManifest.model_validate(said)
        self.write(MANIFEST, manifest.text)
        self._remove_working_files()
        return manifest.digest

    def _hashes(self) -> dict[str, str]:
        """Return the hash of each file that is to be kept, by its path in the folder."""
        files, others = _contents(self.folder)
        if others:
            raise InputError(
                f"The folder {self.folder} holds '{_shown(others[0])}', which is no file; remove "
                "it, and run the audit again to go on with it."
            )
        passing = {MANIFEST, *(path.relative_to(self.folder).as_posix() for path in self._working)}
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
        ends = ("", "-wal", "-shm")
        kept = (self.lines, self.pair_lines, self.answer_lines, self.probe_lines)
        return [
            *(lines.path for lines in kept),
            *(self.raw / f"{self.replies.name}{end}" for end in ends),
        ]

    def _remove_working_files(self) -> None:
        if self.replies.exists():
            KeptFile[str](self.replies, MOST_REPLIES).close()
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


@contextlib.contextmanager
def _packing(path: Path) -> Iterator[gzip.GzipFile]:
    """Write a compressed file that is the same whenever and under whatever name it is written."""
    with (
        open_beside(path, PRIVATE) as beside,
        gzip.GzipFile("", "wb", COMPRESSION, beside, mtime=0) as stream,
    ):
        yield stream


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


def _contents(folder: Path) -> tuple[dict[str, Path], list[str]]:
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


@dataclass(frozen=True, slots=True)
class Verification:
    """What checking an audit found.

    Attributes:
        digest: The SHA-256 of its manifest.
        files: How many files have the hash that the manifest says.
        recomputed: Whether the figures were computed again.
        problems: One sentence each; none if the audit is as it was made.
    """

    digest: str
    files: int
    recomputed: bool
    problems: tuple[str, ...]


def verify(
    folder: Path, digest: str | None = None, recompute: Callable[[Path], bytes] | None = None
) -> Verification:
    """Check that an audit is as it was made, without the engine.

    Hashes alone show what was damaged. Who changes a file on purpose can change its hash in the
    manifest, too: then the digest, which the audit printed, or the recomputed figures show it.

    Args:
        folder: The folder of the audit.
        digest: What the audit printed at its end.
        recompute: Returns what ``audit.json`` must hold, from ``raw/`` and the manifest.

    Raises:
        InputError: The folder holds no audit, or the digest is none.
    """
    wanted = None if digest is None else digest.strip().lower().removeprefix("sha256:")
    if wanted is not None and not _HASH.fullmatch(wanted):
        raise InputError(
            f"'{one_line(wanted, 100)}' is no digest; give the 64 hexadecimal digits that the "
            "audit printed."
        )
    try:
        content = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise InputError(
            f"{folder} holds no audit ({error.strerror}); make one with 'fairqr audit'."
        ) from None
    own = hashlib.sha256(content).hexdigest()
    problems: list[str] = []
    if wanted not in (None, own):
        problems.append(
            f"The digest of the audit is {own}, not {wanted}: the manifest was changed, or is that "
            "of another audit."
        )
    try:
        manifest = AuditManifest.model_validate_json(content)
    except ValidationError as error:
        where, why = first_problem(error)
        at = f" at {_shown(where)}" if where else ""
        problems.append(f"The manifest cannot be read{at}: {one_line(why)}.")
        return Verification(own, 0, False, tuple(problems))
    if manifest.text.encode() != content:
        problems.append("The manifest was changed: it is not written as fairqr writes it.")
    if not manifest.finished:
        problems.append("The audit is not finished; run it again to go on with it.")
        return Verification(own, 0, False, tuple(problems))
    intact = _check_files(folder, manifest, problems)
    if recompute is not None:
        _check_figures(folder, recompute, problems)
    return Verification(own, intact, recompute is not None, tuple(problems))


def _check_files(folder: Path, manifest: AuditManifest, problems: list[str]) -> int:
    files, others = _contents(folder)
    for name in NEEDED:
        if name not in manifest.files:
            problems.append(f"The manifest does not list {name}, which every audit has.")
    intact = 0
    for name, wanted in manifest.files.items():
        if name in others:
            problems.append(f"{_shown(name)} is a link or a device, and no file.")
        elif name not in files:
            problems.append(f"The file {_shown(name)} is missing.")
        else:
            try:
                is_intact = sha256_of(files[name]) == wanted
                problem = "was changed"
            except OSError as error:
                is_intact, problem = False, f"cannot be read ({error.strerror})"
            intact += is_intact
            if not is_intact:
                problems.append(f"The file {_shown(name)} {problem}.")
    known = manifest.files.keys() | {MANIFEST}
    problems += [
        f"The file {_shown(name)} was added: the manifest does not list it."
        for name in [*files, *others]
        if name not in known
    ]
    return intact


def _check_figures(folder: Path, recompute: Callable[[Path], bytes], problems: list[str]) -> None:
    try:
        kept = (folder / FIGURES).read_bytes()
    except OSError as error:
        problems.append(f"The figures cannot be compared: {FIGURES}: {error.strerror}.")
        return
    try:
        again = recompute(folder)
        if again == kept:
            return
        # Another machine may round otherwise.
        different = list(_differences(json.loads(kept), json.loads(again)))
    except (
        ArithmeticError,
        FairqrError,
        LookupError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        why = one_line(error).rstrip(".") or type(error).__name__
        problems.append(f"The figures cannot be computed again: {why}.")
        return
    problems += different[:DIFFERENCES_SHOWN]
    if len(different) > DIFFERENCES_SHOWN:
        more = len(different) - DIFFERENCES_SHOWN
        problems.append(f"Further figures that differ from {FIGURES}: {more:,}.")


def _differences(kept: Any, again: Any, where: str = "") -> Iterator[str]:
    """Yield a sentence for each difference of two JSON documents, apart from rounding."""
    if isinstance(kept, dict) and isinstance(again, dict):
        for name in dict.fromkeys([*kept, *again]):
            at = f"{where}.{name}" if where else name
            if name not in again:
                yield f"{FIGURES} has {_shown(at)}, which raw/ does not give."
            elif name not in kept:
                yield f"{FIGURES} lacks {_shown(at)}, which raw/ gives."
            else:
                yield from _differences(kept[name], again[name], at)
    elif isinstance(kept, list) and isinstance(again, list) and len(kept) == len(again):
        for place, (one, other) in enumerate(zip(kept, again, strict=True)):
            yield from _differences(one, other, f"{where}[{place}]")
    elif not _are_equal(kept, again):
        said, given = (one_line(json.dumps(value), 60) for value in (kept, again))
        yield f"{FIGURES} says {said} at {_shown(where)}, and raw/ gives {given}."


def _are_equal(kept: Any, again: Any) -> bool:
    numbers = [
        isinstance(value, int | float) and not isinstance(value, bool) for value in (kept, again)
    ]
    if all(numbers):
        return math.isclose(kept, again, rel_tol=ROUNDING, abs_tol=ROUNDING / 100)
    return type(kept) is type(again) and bool(kept == again)


def _shown(name: str) -> str:
    """Return a name that somebody else chose for a sentence, on one line and without controls."""
    return one_line("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name))
