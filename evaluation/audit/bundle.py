"""The folder of an audit: evidence that somebody else can check without the engine.

``raw/`` holds what the engine answered as plain lines, one record a query, so that a run that was
killed goes on where it was: a record that failed is made again, and all others stay. Once all is
asked, :meth:`AuditFolder.settle` puts them into the order of the queries, and the figures are
computed from that. In the end ``manifest.json`` has the hashes of all files. The digest of an audit
is the SHA-256 of that file.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, JsonValue, model_validator
from pydantic_core import to_json

from fairqr.base import errors
from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.base.files import open_beside, write_beside
from fairqr.base.secrets import WITHHELD
from fairqr.evaluation.audit.lists import SEEN
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.experiments.folder import Folder, Lines, Record, SealedManifest
from fairqr.evaluation.experiments.tasks import Done
from fairqr.evaluation.user_clicks import CLICKS
from fairqr.retrieval.fairness.table import CodedMemberships
from fairqr.retrieval.sources.schema import Attribute

QUERIES = "raw/queries.json"
TITLES = "raw/titles.json"
OBSERVATIONS = "raw/observations.jsonl"
PAIRS = "raw/pairs.jsonl"

PRIVATE = 0o600
PRIVATE_FOLDER = 0o700

REDACTED: Mapping[str, Any] = {
    "redacted": True,
    "queries": "",
    "inputs": {},
    "command": (WITHHELD,),
}
"""What the manifest of a redacted audit says in place of values that may quote a query, or that
somebody who guesses one could compare."""

A = TypeVar("A", bound="AuditRecord")

Relevance = Literal["judged", "estimated", "unknown"]
"""What says which documents are relevant: judgements, their texts, or nothing."""


class AuditRecord(Record, allow_inf_nan=False):
    """What became of one query in a part of an audit.

    Attributes:
        query: The id of the query.
        status: ``failed`` if nothing is known.
        message: Why it failed.
    """

    keys = ("query",)

    query: str | int
    status: str
    message: str = ""

    @property
    def is_final(self) -> bool:
        """Whether asking again would be no use."""
        return self.status != "failed"

    @classmethod
    def failed(cls, query: str | int, error: FairqrError) -> Done[Self]:
        """Return what is kept of a query for which an engine failed; that it refuses it is known.

        Raises:
            ModelError: The error says nothing of one query, so the run decides what it means.
            ModelUnavailableError: So does this.
        """
        if isinstance(error, errors.ModelError | errors.ModelUnavailableError):
            raise error
        record = cls(query=query, status="failed", message=one_line(error))
        is_away = isinstance(error, errors.IndexUnavailableError)
        return Done((record,), away=error if is_away else None)


class Observation(AuditRecord):
    """What the engine answered to a query, and what is known of that.

    Attributes:
        query: The id of the query.
        status: ``ok``, ``empty`` if the engine found nothing, or ``failed``.
        ids: What the engine answered, best first.
        others: Further documents that may be relevant: judged, or found by wider searches.
        relevance: For each document of the pool, how likely it is relevant: judged (0 or 1), or
            estimated from texts alone; None if neither is known.
        by_words: The same by the words alone that query and text share, where it is estimated.
        by_similarity: The same by the similarity of query and text alone.
        groups: For each attribute, the memberships of the pool.
        levels: For each attribute, the estimate from which the pool has what there is of each group
            alike (:func:`fairqr.retrieval.engines.hybrid.texts.end_of`); 0 where
            missing.
        judged: For each attribute, the memberships of the documents that were judged relevant,
            where relevance is estimated all the same.
        absent: How many judged relevant documents the engine does not hold.
        hidden: How many judged relevant documents are left out, since the engine gives only what it
            answers, so that their groups are not known.
    """

    query: str = Field(min_length=1)
    status: Literal["ok", "empty", "failed"]
    ids: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    relevance: tuple[float, ...] | None = None
    by_words: tuple[float, ...] | None = None
    by_similarity: tuple[float, ...] | None = None
    groups: dict[str, CodedMemberships] = Field({})
    levels: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field({})
    judged: dict[str, CodedMemberships] = Field({})
    absent: int = Field(0, ge=0)
    hidden: int = Field(0, ge=0)

    @property
    def pool(self) -> tuple[str, ...]:
        """All documents that are looked at: ``ids`` first, then ``others``."""
        return self.ids + self.others

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.status == "ok") != bool(self.ids):
            raise ValueError(f"the status is '{self.status}' with {len(self.ids)} ids")
        size = len(self.pool)
        if len(set(self.pool)) != size:
            raise ValueError("the pool has an id twice")
        for estimates in filter(None, (self.relevance, self.by_words, self.by_similarity)):
            if len(estimates) != size or not _are_shares(estimates):
                raise ValueError("'relevance' is not one number from 0 to 1 for each of the pool")
        for name, coded in self.groups.items():
            _check_groups(name, coded, size)
        for name, coded in self.judged.items():
            _check_groups(name, coded, len(coded["rows"]))
        return self


class VersionScores(BaseModel, frozen=True, extra="forbid"):
    """The scores of a document in several versions.

    Attributes:
        segment: What the pair is about; may be empty.
        scores: By version; None if the engine does not have it.
    """

    segment: str = ""
    scores: dict[str, FiniteFloat | None]


class PairScores(AuditRecord):
    """The scores of a query's documents; it names neither the query nor the documents.

    Attributes:
        query: The number of the query in the file of pairs.
        status: ``ok`` or ``failed``.
        pairs: The scores of each pair.
    """

    query: int = Field(ge=1)
    status: Literal["ok", "failed"]
    pairs: tuple[VersionScores, ...] = ()


def _check_groups(name: str, coded: CodedMemberships, size: int) -> None:
    """Check the memberships of so many documents in an attribute.

    Raises:
        ValueError: They do not fit.
    """
    patterns = coded["patterns"]
    rows = coded["rows"]
    has_patterns = set(range(len(patterns))).issuperset(rows)
    if len(rows) != size or not has_patterns:
        raise ValueError(f"the groups of '{name}' are not those of the pool")
    if not _are_memberships(patterns):
        raise ValueError(f"the memberships in '{name}' are not shares from 0 to 1")


def _are_memberships(patterns: Sequence[Sequence[float] | Mapping[str, float]]) -> bool:
    """Return whether patterns are shares of groups in one order, or by the names of groups."""
    sizes = set()
    for pattern in patterns:
        if isinstance(pattern, Mapping):
            are_shares = _are_shares(pattern.values())
        else:
            are_shares = _are_shares(pattern)
            sizes.add(len(pattern))
        if not are_shares:
            return False
    return len(sizes) <= 1


def _are_shares(numbers: Iterable[float]) -> bool:
    return all(0 <= number <= 1 for number in set(numbers))


class AuditManifest(SealedManifest):
    """What an audit was made with.

    Attributes:
        spec: What the figures depend on; it quotes no query.
        source: The source of the engine, without secrets.
        inputs: The SHA-256 of each file that was read, but not of the queries, by name.
        queries: The fingerprint of the queries; empty if they are redacted, since it could be
            guessed.
        command: The command, without secrets.
        engine: The audited one: its ``name`` in commands; its kind as ``engine``, such as
            ``elasticsearch``; its ``location``, a folder or the address of a server and the index
            on it, without credentials; its ``retriever``; and its ``state``, the fingerprint of its
            documents, if these cannot change while it is audited.
        documents: How many documents it held when the audit began; None if it does not say.
        attributes: The attributes, with their groups, as the engine has them.
        relevance: What says which documents are relevant.
        encoder: What read the texts, if these were used.
        pairs_by: What scored versions of documents; empty without any.
        corpus_shares: The shares of the groups in the whole corpus, if the target names them.
        redacted: Whether pseudonyms stand in place of the queries.
        layout: The layout of the report.
    """

    free = SealedManifest.free | {
        "command",
        "documents",
        "corpus_shares",
        "redacted",
        "layout",
    }

    spec: dict[str, JsonValue]
    source: dict[str, JsonValue] = Field({})
    inputs: dict[str, str] = Field({})
    queries: str
    command: tuple[str, ...] = ()
    engine: dict[str, str]
    documents: int | None = None
    attributes: dict[str, Attribute]
    relevance: Relevance
    encoder: str = ""
    pairs_by: str = ""
    corpus_shares: dict[str, tuple[float, ...]] = Field({})
    redacted: bool = False
    layout: str = "plain"


def pseudonymous(queries: Queries) -> tuple[Queries, list[str]]:
    """Return queries under pseudonyms, in random order, and the ids that they had.

    A pseudonym is a number in an order that nobody can compute again. A hash of a query would not
    do, since whoever guesses the query can check the guess. Whoever may ask the engine can still
    guess a query from the documents that it found.
    """
    shuffled = list(queries.queries)
    # The seed of the audit is no secret, and would give the order.
    secrets.SystemRandom().shuffle(shuffled)
    width = len(str(len(shuffled)))
    # A pseudonym is never the id of another query.
    prefix = "q"
    while any(query.id.startswith(prefix) for query in shuffled):
        prefix += "q"
    named = tuple(
        replace(query, id=f"{prefix}{number:0{width}}", text=f"query {number}")
        for number, query in enumerate(shuffled, start=1)
    )
    return replace(queries, queries=named), [query.id for query in shuffled]


class AuditFolder(Folder[AuditManifest]):
    """The folder of an audit: ``manifest.json``, ``raw/``, the figures and the report.

    Args:
        folder: It is made where it is missing.

    Attributes:
        observations: What the engine answered.
        pairs: The scores of versions of documents.
    """

    manifest_type = AuditManifest
    name = "manifest.json"
    what = "audit"
    evidence = frozenset((QUERIES, TITLES, OBSERVATIONS, PAIRS, SEEN, CLICKS))

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.observations = Lines(folder / OBSERVATIONS, Observation, PRIVATE)
        self.pairs = Lines(folder / PAIRS, PairScores, PRIVATE)

    def begin(self, manifest: AuditManifest) -> AuditManifest:
        """Write what the audit is made with, or check that it is what the folder was begun with.

        A finished audit is unfinished from then on.

        Raises:
            InputError: The folder holds another audit, or a finished one with redacted queries.
        """
        begun = super().begin(manifest).model_copy(update={"finished": "", "files": {}})
        write_beside(self._manifest, begun.text)
        # Nobody but the owner may read what the engine answered.
        (self.folder / "raw").mkdir(PRIVATE_FOLDER, exist_ok=True)
        return begun

    def is_pseudonymous(self, queries: Queries) -> bool:
        """Return whether all was asked, and a kill left the observations under pseudonyms."""
        done = self.observations.done()
        ids = {(query.id,) for query in queries.queries}
        return bool(done) and done.isdisjoint(ids)

    def settle(self, queries: Queries, *, redact: bool = False) -> None:
        """Keep the queries, and put what was observed of them into their order.

        Args:
            queries: All queries of the audit.
            redact: Put pseudonyms in place of queries, in another order.

        Raises:
            InputError: A query has no observation, or a line is damaged.
        """
        settled = queries
        ids = [query.id for query in queries.queries]
        if redact:
            settled, ids = pseudonymous(queries)
        new_ids = [query.id for query in settled.queries]
        names: dict[str | int, str] = dict(zip(ids, new_ids, strict=True))

        def renamed(record: A) -> A:
            message = record.message
            if redact and message:
                message = f"{WITHHELD}, as it may quote the query"
            # The queries of pairs are numbers, and stay.
            query = names.get(record.query, record.query)
            return record.model_copy(update={"query": query, "message": message})

        self.write(QUERIES, settled)
        self.write(TITLES, {})
        pairs = sorted(self.pairs.read(), key=lambda record: record.key)
        if pairs:
            self.pairs.rewrite(map(renamed, pairs))
        # This comes last: once no observation has the id of a query, pseudonyms stand everywhere.
        self.observations.rewrite(map(renamed, self.observed(ids)))

    def observed(self, ids: Sequence[str]) -> Iterator[Observation]:
        """Yield what was observed of queries, in this order, one at a time in memory.

        Raises:
            InputError: A query has no observation, or a line is damaged.
        """
        count = 0
        for observation in self.observations.in_order((id_,) for id_ in ids):
            count += 1
            yield observation
        if count < len(ids):
            raise InputError(
                f"The audit in {self.folder} has observed {count:,} of {len(ids):,} queries; run "
                "it again to go on with it."
            )

    def write(self, name: str, content: object) -> None:
        """Write a file of ``raw/``."""
        with open_beside(self.folder / name, PRIVATE) as stream:
            stream.write(to_json(content))
