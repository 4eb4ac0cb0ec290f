"""The embedded engine: BM25 by tantivy over title and text, in process, in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import cast, get_args

import numpy as np
import tantivy
from numpy.typing import NDArray

from fairqr.retrieval.engines.engine import (
    Capability,
    EngineInfo,
    Hits,
    Memberships,
    Query,
    require_groups,
)
from fairqr.retrieval.engines.tantivy.analysis import english_analyzer
from fairqr.retrieval.engines.tantivy.folder import (
    ID_COLUMNS,
    columns_of,
    from_stored,
    open_index,
    read_manifest,
    with_ids,
)
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import best_positions
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Schema
from fairqr.retrieval.texts.sendable import sendable
from fairqr.retrieval.texts.words import composed

Addresses = list[tantivy.DocAddress]
Attributes = Sequence[str] | None
Numbers = NDArray[np.int64]

SEGMENT = 2**32
"""More than the documents of a segment, which tantivy numbers with 32 bits."""


class Snapshot:
    """An embedded index as it is at one moment; later writes do not show.

    Each document has a unique number that is never reused; a replaced document gets a new, higher
    one. All methods block.
    """

    def __init__(self, index: tantivy.Index, schema: Schema) -> None:
        """Take the state that the index loaded last."""
        self.searcher = index.searcher()
        self.text_schema = index.schema
        self.columns = columns_of(schema)

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self.searcher.num_docs)

    def ranked(self, query: tantivy.Query, n: int) -> tuple[Addresses, list[float]]:
        """Return where the best n documents of a query are, with their scores; ties by id."""
        n = min(n, len(self))
        if n < 1:
            return [], []
        # A segment is sorted by id; ties come in the order of segments, then of documents. So one
        # segment breaks ties by id; with several, we take all documents tied with the last one.
        limit = n if self.searcher.num_segments == 1 else n + 1
        found = self.searcher.search(query, limit, count=False).hits
        while len(found) == limit > n and found[n - 1][0] == found[-1][0]:
            limit *= 2
            found = self.searcher.search(query, limit, count=False).hits
        scores, addresses = [score for score, _ in found], [address for _, address in found]
        if limit > n:
            best = best_positions(self.ids_at(addresses), scores)[:n].tolist()
            scores = [scores[place] for place in best]
            addresses = [addresses[place] for place in best]
        return addresses, scores

    def hits(
        self, numbers: Numbers, scores: FloatArray, n: int, attributes: Attributes = None
    ) -> Hits:
        """Return the best n of the documents with these numbers; ties in order of id.

        Args:
            numbers: The numbers of documents that exist.
            scores: One score for each document.
            n: How many to return, at least 1.
            attributes: The attributes whose groups are needed; all by default.
        """
        if n < len(numbers):
            last = np.partition(scores, -n)[-n]
            numbers, scores = numbers[scores >= last], scores[scores >= last]
        segments, places = np.divmod(self._packed[numbers], SEGMENT)
        addresses = list(map(tantivy.DocAddress, segments.tolist(), places.tolist()))
        ids = self.ids_at(addresses)
        best = best_positions(ids, scores)[:n]
        rows = best.tolist()
        groups = self.memberships([addresses[row] for row in rows], attributes)
        return Hits([ids[row] for row in rows], scores[best].tolist(), groups)

    def count(self, query: tantivy.Query) -> int:
        """Return how many documents match, not counting deleted ones."""
        count: int = self.searcher.search(query, 1).count  # type: ignore[attr-defined]
        return count

    def are_matching(self, query: tantivy.Query, numbers: int) -> NDArray[np.bool_]:
        """Return which documents match, by number, at least for the first of these numbers."""
        matching = np.zeros(max(numbers, len(self._packed)), dtype=np.bool_)
        matching[self.numbers(self._all_matching(query))] = True
        return matching

    def are_live(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return which of these numbers are of documents that were not deleted or replaced."""
        known = numbers < len(self._packed)
        known[known] = self._packed[numbers[known]] >= 0
        return known

    @cached_property
    def _packed(self) -> Numbers:
        """The address of each document as one value, by number; −1 where there is none."""
        every = self._all_matching(tantivy.Query.all_query())
        numbers = self.numbers(every)
        packed = np.full(max(numbers, default=-1) + 1, -1, dtype=np.int64)
        packed[numbers] = [SEGMENT * address.segment_ord + address.doc for address in every]
        return packed

    def _all_matching(self, query: tantivy.Query) -> Addresses:
        found = self.searcher.search(query, max(1, len(self)), count=False).hits
        return [address for _, address in found]

    def addresses(self, ids: Sequence[str]) -> dict[str, tantivy.DocAddress]:
        """Return the addresses of those documents that exist."""
        query = with_ids(self.text_schema, ids)
        found = self.searcher.search(query, len(ids) or 1, count=False).hits
        addresses = [address for _, address in found]
        return dict(zip(self.ids_at(addresses), addresses, strict=True))

    def ids_at(self, addresses: Addresses) -> list[str]:
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

    def numbers(self, addresses: Addresses) -> list[int]:
        """Return the numbers of the documents at these addresses."""
        return cast("list[int]", self.searcher.fast_field_values("number", addresses))

    def memberships(self, addresses: Addresses, attributes: Attributes = None) -> Memberships:
        """Return the groups of the documents at these addresses, in some attributes or all."""
        read = self.searcher.fast_field_values
        return {
            name: np.array([read(it, addresses) for it in self.columns[name]], dtype=np.float64).T
            for name in attributes or self.columns
        }

    def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        addresses = self.addresses(ids)
        return [self._document(addresses[id_]) for id_ in ids if id_ in addresses]

    @cached_property
    def shares(self) -> dict[str, FloatArray]:
        """For each attribute the mean membership over all documents; 0 if there are none."""
        columns = [column for columns in self.columns.values() for column in columns]
        wanted = {column: {"sum": {"field": column}} for column in columns}
        sums = self.searcher.aggregate(tantivy.Query.all_query(), wanted)
        return {
            name: np.array([sums[c]["value"] or 0.0 for c in columns]) / max(1, len(self))
            for name, columns in self.columns.items()
        }

    def last_number(self) -> int:
        """Return the highest number of a document, or −1 if there are no documents."""
        return len(self._packed) - 1

    def numbered_documents(self, after: int) -> Iterator[tuple[int, Document]]:
        """Yield the documents with higher numbers than this, in order of number."""
        for number, packed in enumerate(self._packed[after + 1 :].tolist(), start=after + 1):
            if packed >= 0:
                yield number, self._document(tantivy.DocAddress(*divmod(packed, SEGMENT)))

    def _document(self, address: tantivy.DocAddress) -> Document:
        return from_stored(self.searcher.doc(address)["source"][0])


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
        self.manifest = read_manifest(folder)
        self.schema = self.manifest.corpus_schema
        self.filterable = frozenset(
            (name, group)
            for name, attribute in self.schema.attributes.items()
            for group in attribute.universe
        )
        self._analyzer = english_analyzer()
        self._lock = threading.Lock()
        self._stamp = self.stamp()
        self._index = open_index(folder)
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
        return await asyncio.to_thread(self._search, queries)

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

    def _search(self, queries: Sequence[Query]) -> list[Hits]:
        now = self.snapshot()
        return [self.answer(now, query) for query in queries]

    def answer(self, now: Snapshot, query: Query) -> Hits:
        """Answer one query from a snapshot of the index; this blocks."""
        if query.n >= 1:
            addresses, scores = now.ranked(self.parsed(now, query), query.n)
            groups = now.memberships(addresses, query.attributes)
            return Hits(now.ids_at(addresses), scores, groups)
        anything = query.text or query.only is not None or query.within is not None
        total = now.count(self.parsed(now, query)) if anything else len(now)
        return Hits([], [], now.memberships([]), total)

    def parsed(self, now: Snapshot, query: Query) -> tantivy.Query:
        """Return a query in tantivy's own form."""
        occur, counts = tantivy.Occur, query.n < 1
        parts: list[tuple[tantivy.Occur, tantivy.Query]] = []
        if query.only is not None:
            given = with_ids(now.text_schema, query.only)
            parts.append((occur.Must, tantivy.Query.const_score_query(given, 0.0)))
        if query.within is not None:
            parts.append((occur.Must, self.in_group(query.within)))
        if query.text or (query.only is None and not counts):
            # Given documents that do not match are hits of a ranking too, but are not counted.
            among = occur.Must if query.only is None or counts else occur.Should
            parts.append((among, self._matching(query)))
        return parts[0][1] if len(parts) == 1 else tantivy.Query.boolean_query(parts)

    def in_group(self, within: tuple[str, str]) -> tantivy.Query:
        """Return the query for documents with a share of a group, each with score 0."""
        attribute, group = within
        place = self.schema.attribute(attribute).universe.index(group)
        column, kind = columns_of(self.schema)[attribute][place], tantivy.FieldType.Float
        above_zero = tantivy.Query.range_query(
            self._index.schema, column, kind, 0.0, None, include_lower=False
        )
        return tantivy.Query.const_score_query(above_zero, 0.0)

    def _matching(self, query: Query) -> tantivy.Query:
        """Return the query for documents that match the words."""
        occur = tantivy.Occur
        text = self._terms(query.text, occur.Must if query.every_word else occur.Should)
        if not query.boost:
            return text
        boost = self._terms(query.boost, occur.Should)
        return tantivy.Query.boolean_query([(occur.Must, text), (occur.Should, boost)])

    def _terms(self, text: str, occur: tantivy.Occur) -> tantivy.Query:
        """Return the combination of the text's terms."""
        # tantivy does not accept a lone surrogate, which a query can contain.
        terms = self._analyzer.analyze(composed(sendable(text)))
        schema = self._index.schema
        return tantivy.Query.boolean_query(
            [(occur, tantivy.Query.term_query(schema, "body", term)) for term in terms]
        )
