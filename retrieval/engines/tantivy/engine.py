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

ID_COLUMNS = [f"id{place}" for place in range(MAX_ID_BYTES // 8 + 1)]
"""The columns of an id, eight bytes each; those behind its end stay empty and take no room."""

SEGMENT = 2**32
"""More than the documents of a segment, which tantivy numbers with 32 bits."""

QUICK, QUICK_HITS = 100_000, 1_000
"""One search for so many hits, among so many documents, takes a millisecond. That is as long as a
thread would need to be woken, so the event loop answers itself."""

USUALLY_TIED = 50
"""We take so many documents more than asked for, so that few queries are searched twice."""


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
        refuse_damaged(folder, error)
    index.register_tokenizer(ANALYZER_NAME, english_analyzer())
    return index, manifest


def refuse_damaged(folder: Path, why: object) -> NoReturn:
    """Raise the error for a folder that this version cannot read.

    Raises:
        IndexVersionError: Always.
    """
    if not folder.exists():
        raise IndexVersionError(
            f"The index in {folder} was rebuilt or deleted in the meantime; open it again."
        ) from None
    raise IndexVersionError(
        f"The index in {folder} is damaged or of another version of fairqr ({one_line(why)}); "
        "delete it with 'fairqr index delete' and create it again."
    ) from None


def columns_of(schema: Schema) -> Mapping[str, list[str]]:
    """Return for each attribute the names of its groups' columns, in order; open ones have none."""
    return {
        name: [f"group{place}_{group}" for group in range(len(attribute.listed))]
        for place, (name, attribute) in enumerate(schema.attributes.items())
    }


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
        self.searcher, self.text_schema = index.searcher(), index.schema
        self.schema, self.columns = schema, columns_of(schema)
        greatest = {"number": {"max": {"field": "number"}}}
        found = self.searcher.aggregate(tantivy.Query.all_query(), greatest)["number"]["value"]
        size = int(found or 0) + 1
        # By number; ids and shares take memory as they are read.
        self._is_read, self._ids = np.zeros(size, dtype=np.bool_), np.empty(size, dtype=object)
        self._shares: dict[str, NDArray[Any]] = {
            name: np.empty((size, len(columns))) if columns else np.empty(size, dtype=object)
            for name, columns in self.columns.items()
        }

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self.searcher.num_docs)

    def answer(self, query: Query) -> Hits:
        """Answer one query."""
        if query.n >= 1:
            return self.hits(*self.ranked(query))
        anything = query.text or query.only is not None or query.within is not None
        # This does not count deleted documents.
        matching = self.searcher.search(self._parsed(query), 1) if anything else None
        total = matching.count if matching else len(self)  # type: ignore[attr-defined]
        return Hits([], [], self._memberships(np.zeros(0, np.int64)), total)

    def _parsed(self, query: Query) -> tantivy.Query:
        """Return a query in tantivy's own form."""
        occur, counts = tantivy.Occur, query.n < 1
        parts: list[tuple[tantivy.Occur, tantivy.Query]] = []
        if query.only is not None:
            given = with_ids(self.text_schema, query.only)
            parts.append((occur.Must, tantivy.Query.const_score_query(given, 0.0)))
        if query.within is not None:
            parts.append((occur.Must, self._in_group(query.within)))
        if query.text or (query.only is None and not counts):
            # Given documents that do not match are hits of a ranking too, but are not counted.
            among = occur.Must if query.only is None or counts else occur.Should
            parts.append((among, self._matching(query)))
        return parts[0][1] if len(parts) == 1 else tantivy.Query.boolean_query(parts)

    def _in_group(self, within: tuple[str, str]) -> tantivy.Query:
        """Return the query for documents with a share of a group, each with score 0."""
        attribute, group = within
        place = self.schema.attribute(attribute).universe.index(group)
        column, kind = self.columns[attribute][place], tantivy.FieldType.Float
        above_zero = tantivy.Query.range_query(
            self.text_schema, column, kind, 0.0, None, include_lower=False
        )
        return tantivy.Query.const_score_query(above_zero, 0.0)

    def _matching(self, query: Query) -> tantivy.Query:
        """Return the query for documents that match the words."""
        occur = tantivy.Occur
        each = occur.Must if query.every_word else occur.Should
        # tantivy does not accept a lone surrogate, which a query can contain.
        terms = query_terms(query.text)
        return tantivy.Query.boolean_query(
            [(each, tantivy.Query.term_query(self.text_schema, "body", term)) for term in terms]
        )

    def ranked(self, query: Query) -> tuple[Numbers, FloatArray]:
        """Return the best documents of a query, best first: numbers and scores; all are read."""
        n, parsed = min(query.n, len(self)), self._parsed(query)
        if n < 1:
            return np.zeros(0, np.int64), np.zeros(0)
        # A segment is sorted by id; ties come in the order of segments, then of documents. So one
        # segment breaks ties by id; with several, we take all documents tied with the last one.
        limit = n if self.searcher.num_segments == 1 else n + USUALLY_TIED
        found = self.searcher.search(parsed, limit, count=False).hits
        while len(found) == limit > n and found[n - 1][0] == found[-1][0]:
            limit *= 2
            found = self.searcher.search(parsed, limit, count=False).hits
        addresses = [address for _, address in found]
        numbers, scores = self._numbers(addresses), np.array([score for score, _ in found])
        ids = self._read(numbers, addresses)
        if limit == n:
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
        occur = tantivy.Occur
        held: list[tuple[tantivy.Occur, tantivy.Query]] = []
        for word in words:
            having = self.searcher.doc_freq("body", word)
            weight = inverse_frequency(len(self), having)
            has_word = tantivy.Query.term_query(self.text_schema, "body", word)
            held.append((occur.Should, tantivy.Query.const_score_query(has_word, weight)))
        given = tantivy.Query.const_score_query(with_ids(self.text_schema, ids), 0.0)
        weighed = tantivy.Query.boolean_query(held)
        query = tantivy.Query.boolean_query([(occur.Must, given), (occur.Should, weighed)])
        found = self.searcher.search(query, len(ids), count=False).hits
        return float(sum(score for score, _ in found)) / len(ids)

    def best(self, numbers: Numbers, scores: FloatArray, n: int) -> tuple[Numbers, FloatArray]:
        """Return the best n of some documents, ties in order of id, as :meth:`ranked` does.

        Args:
            numbers: The numbers of documents that exist.
            scores: One score for each document.
            n: How many to return, at least 1.
        """
        if n < len(numbers):
            last = np.partition(scores, -n)[-n]
            numbers, scores = numbers[scores >= last], scores[scores >= last]
        segments, places = np.divmod(self._packed[numbers], SEGMENT)
        addresses = list(map(tantivy.DocAddress, segments.tolist(), places.tolist()))
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
        matching = np.zeros(len(self._packed), dtype=np.bool_)
        matching[self._numbers(self._found(self._in_group(within), len(self)))] = True
        return matching

    @property
    def live(self) -> Eligible:
        """Which documents exist, by number; the others were deleted or replaced."""
        return self._packed >= 0

    @cached_property
    def _packed(self) -> Numbers:
        """The address of each document as one value, by number; −1 where there is none."""
        every = self._found(tantivy.Query.all_query(), len(self))
        numbers = self._numbers(every)
        packed = np.full(numbers.max(initial=-1) + 1, -1, dtype=np.int64)
        packed[numbers] = [SEGMENT * address.segment_ord + address.doc for address in every]
        return packed

    def _found(self, query: tantivy.Query, most: int) -> Addresses:
        hits = self.searcher.search(query, max(1, most), count=False).hits
        return [address for _, address in hits]

    def _read(self, numbers: Numbers, addresses: Addresses) -> list[str]:
        """Return the ids of documents; afterwards these and the groups are in memory."""
        unread = np.flatnonzero(~self._is_read.take(numbers))
        if len(unread):
            new, places = numbers[unread], [addresses[place] for place in unread.tolist()]
            read = self.searcher.fast_field_values
            for name, columns in self.columns.items():
                if columns:
                    self._shares[name][new] = np.array([read(it, places) for it in columns]).T
            self._read_open(new, places)
            self._ids[new] = np.array(self._ids_at(places), dtype=object)
            self._is_read[new] = True  # last, for other threads
        ids: list[str] = self._ids.take(numbers).tolist()
        return ids

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
            if (shorter := words.count(None)) == len(words):
                break
            words = [word or 0 for word in words] if shorter else words
            columns.append(np.fromiter(words, np.uint64, len(words)))
        if not columns:
            return []
        packed = np.array(columns).T.astype(">u8", order="C").view(f"S{8 * len(columns)}")
        # numpy leaves out the zeros at the end, and before them comes the mark of the end.
        return [held[:-1].decode() for held in packed.ravel().tolist()]

    def _numbers(self, addresses: Addresses) -> Numbers:
        return np.array(self.searcher.fast_field_values("number", addresses), dtype=np.int64)

    def _memberships(self, numbers: Numbers) -> Memberships:
        """Return the groups of documents that were read."""
        return {name: shares.take(numbers, axis=0) for name, shares in self._shares.items()}

    def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        found = self._found(with_ids(self.text_schema, ids), len(ids))
        addresses = dict(zip(self._ids_at(found), found, strict=True))
        return [self._document(addresses[id_]) for id_ in ids if id_ in addresses]

    @cached_property
    def shares(self) -> dict[str, FloatArray]:
        """For each attribute the mean membership over all documents; 0 if there are none."""
        wanted = {c: {"sum": {"field": c}} for columns in self.columns.values() for c in columns}
        sums = self.searcher.aggregate(tantivy.Query.all_query(), wanted)
        return {
            name: np.array([sums[c]["value"] or 0.0 for c in columns]) / max(1, len(self))
            for name, columns in self.columns.items()
            if columns
        }

    def numbered_documents(self, after: int) -> Iterator[tuple[int, Document]]:
        """Yield the documents with higher numbers than this, in order of number."""
        for number, packed in enumerate(self._packed[after + 1 :].tolist(), start=after + 1):
            if packed >= 0:
                yield number, self._document(tantivy.DocAddress(*divmod(packed, SEGMENT)))

    def _document(self, address: tantivy.DocAddress) -> Document:
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
        self.folder, self.name = folder, name
        self._lock, self._stamp = threading.Lock(), self.stamp()
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

        is_quick = len(queries) == 1 and queries[0].n <= QUICK_HITS and len(self._snapshot) <= QUICK
        return answer() if is_quick else await asyncio.to_thread(answer)

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
                    self._stamp, self._snapshot = stamp, Snapshot(self._index, self.schema)
            return self._snapshot
