"""The embedded engine: BM25 by tantivy over title and text, in process, in one folder.

In the folder of an index, ``manifest.json`` says what was indexed, ``text/`` has tantivy's own
files, and ``dense/`` the vectors of the documents. tantivy reads stored texts slowly and columns of
numbers fast. So each group's share in a document is a column of numbers, and so are each eight
bytes of the ids. What a search has read of these is kept, since documents come up again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import tantivy
from numpy.typing import NDArray
from pydantic import BaseModel

from fairqr.base.errors import IndexVersionError, one_line
from fairqr.base.files import write_beside
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineInfo,
    Hits,
    Memberships,
    Query,
    require_groups,
)
from fairqr.retrieval.fairness.answerable import inverse_frequency
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import best_positions
from fairqr.retrieval.sources.documents import MAX_ID_BYTES, Document
from fairqr.retrieval.sources.schema import Schema
from fairqr.retrieval.texts.words import ANALYZER_NAME, english_analyzer, query_terms, sendable

Addresses = list[tantivy.DocAddress]
Numbers = NDArray[np.int64]
Eligible = NDArray[np.bool_]
"""Which documents a query may return, by number."""

ID_COLUMNS = [f"id{position}" for position in range(MAX_ID_BYTES // 8 + 1)]
"""The columns of an id, eight bytes each; those behind its end stay empty and take no room."""

SEGMENT = 2**32
"""More than the documents of a segment, which tantivy numbers with 32 bits."""

QUICK = 100_000
QUICK_HITS = 1_000
"""A search for this many hits, among this many documents, takes a millisecond. That is as long as a
thread would need to be woken, so the event loop answers itself."""

USUALLY_TIED = 50
"""How many documents more than requested we take, so that few queries are searched twice."""


class IndexManifest(BaseModel, frozen=True):
    """What was indexed.

    Attributes:
        format: The layout of the folder.
        source: Where the documents come from, for users.
        fingerprint: A hash of the corpus content.
        files: The sizes and times of the corpus files.
        labels_folder: Paths of label files are relative to this.
        corpus_schema: The attributes, with the groups that label files name.
    """

    format: Literal[8] = 8
    source: str
    fingerprint: str
    files: str = ""
    labels_folder: Path = Path()
    corpus_schema: Schema

    def write(self, folder: Path) -> None:
        """Write it into the folder of its index."""
        write_beside(folder / "manifest.json", self.model_dump_json(indent=1))


def open_index(folder: Path) -> tuple[tantivy.Index, IndexManifest]:
    """Open the index in a folder.

    Raises:
        IndexVersionError: It is damaged, or from another version.
    """
    try:
        manifest = IndexManifest.model_validate_json((folder / "manifest.json").read_bytes())
        index = tantivy.Index.open(str(folder / "text"))
        # Readers check for new writes themselves; see TantivyEngine.snapshot.
        index.config_reader("Manual")
    except (OSError, ValueError) as error:
        refuse_damaged(folder, reason=error)
    index.register_tokenizer(ANALYZER_NAME, english_analyzer())
    return index, manifest


def refuse_damaged(folder: Path, reason: object) -> NoReturn:
    """Raise the error for a folder that this version cannot read.

    Raises:
        IndexVersionError: Always.
    """
    if not folder.exists():
        raise IndexVersionError(
            f"The index in {folder} was rebuilt or deleted in the meantime; open it again."
        ) from None
    raise IndexVersionError(
        f"The index in {folder} is damaged or of another version of fairqr ({one_line(reason)}); "
        "delete it with 'fairqr index delete' and create it again."
    ) from None


def columns_of(schema: Schema) -> Mapping[str, list[str]]:
    """Return for each attribute the names of its groups' columns, in order; open ones have none."""
    columns = {}
    for position, (name, attribute) in enumerate(schema.attributes.items()):
        groups = range(len(attribute.listed))
        columns[name] = [f"group{position}_{group}" for group in groups]
    return columns


def with_ids(schema: tantivy.Schema, ids: Sequence[str]) -> tantivy.Query:
    """Return the query for the documents with these ids."""
    return tantivy.Query.term_set_query(schema, "id", [sendable(id_) for id_ in ids])


class Snapshot:
    """An embedded index as it is at one moment; later writes do not show.

    Each document has a unique number that is never reused; a replaced document gets a new, higher
    one. All methods block. The ids and groups of documents that were found once stay in memory.
    """

    def __init__(self, index: tantivy.Index, schema: Schema) -> None:
        """Take the state that the index loaded last."""
        self.searcher = index.searcher()
        self.text_schema = index.schema
        self.schema = schema
        self.columns = columns_of(schema)

        # By number; ids and shares take memory as they are read.
        size = self._highest_number() + 1
        self._is_read = np.zeros(size, dtype=np.bool_)
        self._ids = np.empty(size, dtype=object)
        self._shares: dict[str, NDArray[Any]] = {}
        for name, columns in self.columns.items():
            if columns:
                self._shares[name] = np.empty((size, len(columns)))
            else:
                self._shares[name] = np.empty(size, dtype=object)

    def _highest_number(self) -> int:
        """Return the highest number of a document; 0 if there are no documents."""
        aggregation = {"number": {"max": {"field": "number"}}}
        results = self.searcher.aggregate(tantivy.Query.all_query(), aggregation)
        return int(results["number"]["value"] or 0)

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self.searcher.num_docs)

    def answer(self, query: Query) -> Hits:
        """Answer one query."""
        if query.n >= 1:
            return self.hits(*self.ranked(query))
        return Hits([], [], self._memberships(np.zeros(0, np.int64)), self._count(query))

    def _count(self, query: Query) -> int:
        """Return how many documents match a query."""
        has_conditions = query.only is not None or query.within is not None
        if not query.text and not has_conditions:
            return len(self)
        # This does not count deleted documents.
        result = self.searcher.search(self._parsed(query), 1)
        return int(result.count)  # type: ignore[attr-defined]

    def _parsed(self, query: Query) -> tantivy.Query:
        """Return a query in tantivy's own form."""
        must = tantivy.Occur.Must
        only_counts = query.n < 1
        clauses: list[tuple[tantivy.Occur, tantivy.Query]] = []
        if query.only is not None:
            with_these_ids = with_ids(self.text_schema, query.only)
            clauses.append((must, tantivy.Query.const_score_query(with_these_ids, 0.0)))
        if query.within is not None:
            clauses.append((must, self._in_group(query.within)))
        if query.only is None:
            if query.text or not only_counts:
                clauses.append((must, self._matching(query)))
        elif query.text:
            # Given documents that do not match are hits of a ranking too, but are not counted.
            occur = must if only_counts else tantivy.Occur.Should
            clauses.append((occur, self._matching(query)))
        if len(clauses) == 1:
            return clauses[0][1]
        return tantivy.Query.boolean_query(clauses)

    def _in_group(self, within: tuple[str, str]) -> tantivy.Query:
        """Return the query for documents with a share of a group, each with score 0."""
        attribute, group = within
        position = self.schema.attribute(attribute).universe.index(group)
        above_zero = tantivy.Query.range_query(
            self.text_schema,
            self.columns[attribute][position],
            tantivy.FieldType.Float,
            0.0,
            None,
            include_lower=False,
        )
        return tantivy.Query.const_score_query(above_zero, 0.0)

    def _matching(self, query: Query) -> tantivy.Query:
        """Return the query for documents that match the words."""
        occur = tantivy.Occur.Must if query.every_word else tantivy.Occur.Should
        clauses = []
        for term in query_terms(query.text):
            has_term = tantivy.Query.term_query(self.text_schema, "body", term)
            clauses.append((occur, has_term))
        return tantivy.Query.boolean_query(clauses)

    def ranked(self, query: Query) -> tuple[Numbers, FloatArray]:
        """Return the best documents of a query, best first: numbers and scores; all are read."""
        n = min(query.n, len(self))
        parsed = self._parsed(query)
        if n < 1:
            return np.zeros(0, np.int64), np.zeros(0)

        # A segment is sorted by id; ties come in the order of segments, then of documents. So one
        # segment breaks ties by id; with several, we take all documents tied with the last one.
        is_sorted = self.searcher.num_segments == 1
        limit = n if is_sorted else n + USUALLY_TIED
        hits = self.searcher.search(parsed, limit, count=False).hits
        while len(hits) == limit > n and hits[n - 1][0] == hits[-1][0]:
            limit *= 2
            hits = self.searcher.search(parsed, limit, count=False).hits

        addresses = [address for _, address in hits]
        scores = np.array([score for score, _ in hits])
        numbers = self._numbers(addresses)
        ids = self._read(numbers, addresses)
        if is_sorted:
            return numbers, scores
        best = best_positions(ids, scores)[:n]
        return numbers[best], scores[best]

    def words_held(self, text: str, ids: Sequence[str]) -> float:
        """Return how much of a text some documents hold, each word by its inverse frequency.

        That is the mean over the documents; 0 without documents. See
        :mod:`fairqr.retrieval.fairness.answerable`.
        """
        words = set(query_terms(text))
        if not words or not ids:
            return 0.0

        must = tantivy.Occur.Must
        should = tantivy.Occur.Should
        clauses: list[tuple[tantivy.Occur, tantivy.Query]] = []
        for word in words:
            frequency = self.searcher.doc_freq("body", word)
            weight = inverse_frequency(len(self), frequency)
            has_word = tantivy.Query.term_query(self.text_schema, "body", word)
            clauses.append((should, tantivy.Query.const_score_query(has_word, weight)))
        sum_of_weights = tantivy.Query.boolean_query(clauses)
        with_these_ids = tantivy.Query.const_score_query(with_ids(self.text_schema, ids), 0.0)
        query = tantivy.Query.boolean_query([(must, with_these_ids), (should, sum_of_weights)])
        hits = self.searcher.search(query, len(ids), count=False).hits
        return float(sum(score for score, _ in hits)) / len(ids)

    def best(self, numbers: Numbers, scores: FloatArray, n: int) -> tuple[Numbers, FloatArray]:
        """Return the best n of some documents, ties in order of id, as :meth:`ranked` does.

        Args:
            numbers: The numbers of documents that exist.
            scores: One score for each document.
            n: How many to return, at least 1.
        """
        if n < len(numbers):
            # Also those that are tied with the last one.
            nth_score = np.partition(scores, -n)[-n]
            may_be_best = scores >= nth_score
            numbers = numbers[may_be_best]
            scores = scores[may_be_best]
        segments, documents = np.divmod(self._packed[numbers], SEGMENT)
        addresses = list(map(tantivy.DocAddress, segments.tolist(), documents.tolist()))
        best = best_positions(self._read(numbers, addresses), scores)[:n]
        return numbers[best], scores[best]

    def hits(self, numbers: Numbers, scores: FloatArray) -> Hits:
        """Return documents that were read as hits, in this order."""
        ids = self._ids.take(numbers).tolist()
        return Hits(ids, scores.tolist(), self._memberships(numbers))

    def eligible(self, within: tuple[str, str] | None) -> Eligible:
        """Return which documents exist and have a share of a group, if one is given, by number."""
        if within is None:
            return self.live
        addresses = self._addresses(self._in_group(within), len(self))
        matching = np.zeros(len(self._packed), dtype=np.bool_)
        matching[self._numbers(addresses)] = True
        return matching

    @property
    def live(self) -> Eligible:
        """Which documents exist, by number; the others were deleted or replaced."""
        return self._packed >= 0

    @cached_property
    def _packed(self) -> Numbers:
        """The address of each document as one value, by number; −1 where there is none."""
        addresses = self._addresses(tantivy.Query.all_query(), len(self))
        numbers = self._numbers(addresses)
        packed = np.full(numbers.max(initial=-1) + 1, -1, dtype=np.int64)
        packed[numbers] = [SEGMENT * address.segment_ord + address.doc for address in addresses]
        return packed

    def _addresses(self, query: tantivy.Query, limit: int) -> Addresses:
        """Return the addresses of the documents that match a query."""
        hits = self.searcher.search(query, max(1, limit), count=False).hits
        return [address for _, address in hits]

    def _read(self, numbers: Numbers, addresses: Addresses) -> list[str]:
        """Return the ids of documents; afterwards these and the groups are in memory."""
        unread = np.flatnonzero(~self._is_read.take(numbers))
        if len(unread):
            self._read_new(numbers[unread], [addresses[row] for row in unread.tolist()])
        ids: list[str] = self._ids.take(numbers).tolist()
        return ids

    def _read_new(self, numbers: Numbers, addresses: Addresses) -> None:
        """Read the ids and groups of documents into memory."""
        for name, columns in self.columns.items():
            if columns:
                shares = [self.searcher.fast_field_values(column, addresses) for column in columns]
                self._shares[name][numbers] = np.array(shares).T
        self._read_open(numbers, addresses)
        self._ids[numbers] = np.array(self._ids_at(addresses), dtype=object)
        self._is_read[numbers] = True  # last, for other threads

    def _read_open(self, numbers: Numbers, addresses: Addresses) -> None:
        """Read the groups of documents in open attributes, which stand beside their texts."""
        names = [name for name, columns in self.columns.items() if not columns]
        if not names:
            return
        for number, address in zip(numbers.tolist(), addresses, strict=True):
            *_, shares = self._stored(address)
            for name in names:
                self._shares[name][number] = shares[name]

    def _ids_at(self, addresses: Addresses) -> list[str]:
        """Return the ids of the documents at these addresses."""
        columns = []
        for name in ID_COLUMNS:
            words = self.searcher.fast_field_values(name, addresses)
            number_of_shorter = words.count(None)
            if number_of_shorter == len(words):
                break
            if number_of_shorter:
                words = [word or 0 for word in words]
            columns.append(np.fromiter(words, np.uint64, len(words)))
        if not columns:
            return []

        packed = np.array(columns).T.astype(">u8", order="C").view(f"S{8 * len(columns)}")
        # numpy leaves out the zeros at the end, and before them comes the mark of the end.
        return [id_and_mark[:-1].decode() for id_and_mark in packed.ravel().tolist()]

    def _numbers(self, addresses: Addresses) -> Numbers:
        """Return the numbers of the documents at these addresses."""
        return np.array(self.searcher.fast_field_values("number", addresses), dtype=np.int64)

    def _memberships(self, numbers: Numbers) -> Memberships:
        """Return the groups of documents that were read."""
        return {name: shares.take(numbers, axis=0) for name, shares in self._shares.items()}

    def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        addresses = self._addresses(with_ids(self.text_schema, ids), len(ids))
        address_of = dict(zip(self._ids_at(addresses), addresses, strict=True))
        return [self._document(address_of[id_]) for id_ in ids if id_ in address_of]

    @cached_property
    def shares(self) -> dict[str, FloatArray]:
        """For each attribute the mean membership over all documents; 0 if there are none."""
        aggregations = {}
        for columns in self.columns.values():
            for column in columns:
                aggregations[column] = {"sum": {"field": column}}
        results = self.searcher.aggregate(tantivy.Query.all_query(), aggregations)

        shares = {}
        for name, columns in self.columns.items():
            if columns:
                sums = np.array([results[column]["value"] or 0.0 for column in columns])
                shares[name] = sums / max(1, len(self))
        return shares

    def numbered_documents(self, after: int) -> Iterator[tuple[int, Document]]:
        """Yield the documents with higher numbers than this, in order of number."""
        for number, packed in enumerate(self._packed[after + 1 :].tolist(), start=after + 1):
            if packed >= 0:
                segment, document = divmod(packed, SEGMENT)
                yield number, self._document(tantivy.DocAddress(segment, document))

    def _document(self, address: tantivy.DocAddress) -> Document:
        """Return the document at an address."""
        id_, title, text, fields, _ = self._stored(address)
        return Document(id_, title, text, fields)

    def _stored(self, address: tantivy.DocAddress) -> list[Any]:
        """Return the parts of a document, and its groups in open attributes."""
        parts: list[Any] = json.loads(bytes(self.searcher.doc(address)["source"][0]))
        return parts


class TantivyEngine:
    """An embedded index, opened for reading; :class:`SearchEngine` documents its methods.

    Any number of processes may read at once. A search sees everything that any process wrote before
    it. All files are opened immediately, so the index stays readable while it is rebuilt.
    """

    retriever = "bm25"
    in_process = True
    capabilities: frozenset[Capability] = frozenset(get_args(Capability)) - {"vectors", "relevance"}

    def __init__(self, folder: Path, name: str) -> None:
        """Open the index in a folder.

        Raises:
            IndexVersionError: The folder has no index that this version can read.
        """
        self.folder = folder
        self.name = name
        self._lock = threading.Lock()
        # Taken before the index is opened, so that a write in the meantime shows.
        self._stamp = self.stamp()
        self._index, self.manifest = open_index(folder)
        self.schema = self.manifest.corpus_schema
        self.filterable = frozenset(
            (name, group)
            for name, attribute in self.schema.attributes.items()
            for group in attribute.listed
        )
        self._snapshot = Snapshot(self._index, self.schema)

    async def info(self) -> EngineInfo:
        """Return what we know of the index."""
        return EngineInfo(
            name=self.name,
            engine="tantivy",
            documents=len(await asyncio.to_thread(self.snapshot)),
            location=str(self.folder),
            source=self.manifest.source,
            fingerprint=self.manifest.fingerprint,
            server=f"tantivy {version('tantivy')}",
        )

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Answer all queries, each with at most ``n`` hits."""
        require_groups(self, queries)

        def answer() -> list[Hits]:
            return list(map(self.snapshot().answer, queries))

        asks_little = len(queries) == 1 and queries[0].n <= QUICK_HITS
        if asks_little and len(self._snapshot) <= QUICK:
            return answer()
        return await asyncio.to_thread(answer)

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        return await asyncio.to_thread(lambda: self.snapshot().documents(ids))

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Return for each attribute the mean membership over all documents."""
        return await asyncio.to_thread(lambda: self.snapshot().shares)

    async def aclose(self) -> None:
        """Do nothing: the files are closed with the object."""

    def stamp(self) -> tuple[int, int] | None:
        """Return a value that changes with each write by any process; None without a folder."""
        try:
            state = (self.folder / "text" / "meta.json").stat()
        except OSError:
            return None
        return state.st_ino, state.st_mtime_ns

    def snapshot(self) -> Snapshot:
        """Return the index as it is now; this blocks."""
        stamp = self.stamp()
        with self._lock:
            if stamp not in (self._stamp, None):
                # We cannot load an index while it is being replaced; keep reading the old one.
                with contextlib.suppress(ValueError):
                    self._index.reload()
                    self._snapshot = Snapshot(self._index, self.schema)
                    self._stamp = stamp
            return self._snapshot
