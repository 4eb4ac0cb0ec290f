"""The embedded index: BM25 by tantivy, in process, in one folder.

:mod:`fairqr.retrieval.tantivy_layout` says what lies in the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import tantivy

from fairqr.errors import CorpusError
from fairqr.retrieval.analysis import ANALYZER_NAME, english_analyzer
from fairqr.retrieval.documents import Document
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.files import write_beside
from fairqr.retrieval.id_store import IdReader
from fairqr.retrieval.index import IndexInfo, Progress
from fairqr.retrieval.known_numbers import KnownNumbers
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.tantivy_layout import (
    Manifest,
    from_source,
    pattern_field,
    pattern_tables,
    read_manifest,
    refuse_damaged,
    text_schema,
)
from fairqr.retrieval.tantivy_writing import open_writer, refuse_duplicates, write_documents

__all__ = ["TantivyIndex"]

NUMBERS_AT_ONCE = 10_000
AGGREGATED_AT_ONCE = 50_000
"""Distinct values in one aggregation; tantivy refuses more than 65,000."""


class TantivyIndex:
    """An index in a folder; see :class:`fairqr.retrieval.index.Index` for what its methods promise.

    Any number of processes may read at once, and see what is written; one may write at a time. All
    files are opened at once, so that an index that is built anew meanwhile can still be read.
    """

    def __init__(self, folder: Path) -> None:
        """Open the index in a folder.

        Raises:
            IndexVersionError: The folder holds no index that this version can read.
        """
        self.folder = folder
        self.manifest = read_manifest(folder)
        try:
            self._index = tantivy.Index.open(str(folder / "text"))
        except ValueError as error:
            refuse_damaged(folder, self.manifest, error)
        self._index.register_tokenizer(ANALYZER_NAME, english_analyzer())
        self._analyzer = english_analyzer()
        try:
            self._ids = IdReader(folder)
        except (OSError, ValueError) as error:
            refuse_damaged(folder, self.manifest, error)
        self._patterns = pattern_tables(folder, self.manifest)
        self._lock = threading.Lock()
        self._known = KnownNumbers()

    @classmethod
    def build(
        cls,
        folder: Path,
        manifest: Manifest,
        documents: Iterable[Document],
        progress: Progress | None = None,
    ) -> None:
        """Write a new index into an empty folder.

        Raises:
            CorpusError: There are no documents, or two have the same id.
        """
        (folder / "text").mkdir(parents=True)
        write_beside(folder / "manifest.json", manifest.model_dump_json(indent=1))
        write_beside(folder / "patterns.json", "{}")
        index = tantivy.Index(
            text_schema(manifest.corpus_schema), str(folder / "text"), sort_by_field="id"
        )
        index.register_tokenizer(ANALYZER_NAME, english_analyzer())
        count = write_documents(index, folder, manifest, documents, progress, replace=False)
        if count == 0:
            raise CorpusError(f"The corpus {manifest.source} is empty; it needs a document.")
        refuse_duplicates(folder, manifest.source)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def schema(self) -> Schema:
        return self.manifest.corpus_schema

    @property
    def retriever(self) -> str:
        return "bm25"

    @property
    def lexical(self) -> TantivyIndex:
        return self

    async def info(self) -> IndexInfo:
        return IndexInfo(
            name=self.name,
            backend="tantivy",
            documents=self._index.searcher().num_docs,
            location=str(self.folder),
            source=self.manifest.source,
            source_sha256=self.manifest.source_sha256,
        )

    async def search(self, query: str, n: int, *, boost: str = "") -> Ranking:
        wanted = self._query(query)
        if boost:
            wanted = _boosted(wanted, self._query(boost))
        return await asyncio.to_thread(self._search, wanted, n)

    async def rescore(self, query: str, ids: Sequence[str]) -> Ranking:
        return await asyncio.to_thread(self._rescore, query, ids)

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        return await asyncio.to_thread(self._documents, ids)

    async def memberships(self, attribute: str, ids: Sequence[str]) -> FloatArray:
        return await asyncio.to_thread(self._memberships, attribute, ids)

    async def corpus_shares(self, attribute: str) -> FloatArray:
        return await asyncio.to_thread(self._corpus_shares, attribute)

    async def document_frequencies(self, words: Sequence[str]) -> list[int]:
        return await asyncio.to_thread(self._document_frequencies, words)

    async def upsert(self, documents: Iterable[Document], progress: Progress | None = None) -> int:
        return await asyncio.to_thread(self._upsert, documents, progress)

    async def delete(self, ids: Sequence[str]) -> int:
        return await asyncio.to_thread(self._delete, ids)

    async def close(self) -> None:
        """Do nothing: the files are closed when the object goes."""

    # What follows is for those who keep something for each document beside the index. A document
    # has a number that no other has had; one that is replaced gets a new one, larger than all.
    # All of these block.

    def stamp(self) -> tuple[int, int] | None:
        """Return what changes with each write by any process, or None where the folder is gone."""
        try:
            state = (self.folder / "text" / "meta.json").stat()
        except OSError:
            return None
        return state.st_ino, state.st_mtime_ns

    def build_stamp(self) -> str:
        """Return what no other build of the index has.

        Raises:
            IndexVersionError: The folder is gone.
        """
        try:
            # It is written once, by the build.
            state = (self.folder / "manifest.json").stat()
        except OSError as error:
            refuse_damaged(self.folder, self.manifest, error)
        return f"{state.st_mtime_ns:x}-{state.st_ino:x}"

    def reload(self) -> None:
        """See at once what other processes have written."""
        self._index.reload()

    def count(self) -> int:
        """Return how many documents there are."""
        return int(self._index.searcher().num_docs)

    def last_number(self) -> int:
        """Return the largest number that a document has, -1 where there is none."""
        return _last_number(self._index.searcher())

    def numbered_documents(self, after: int) -> Iterator[tuple[int, Document]]:
        """Yield the documents with numbers above this one, in order of number, as they are now."""
        searcher = self._index.searcher()
        last = _last_number(searcher)
        for first in range(after + 1, last + 1, NUMBERS_AT_ONCE):
            some = tantivy.Query.range_query(
                self._index.schema,
                "number",
                tantivy.FieldType.Unsigned,
                first,
                first + NUMBERS_AT_ONCE - 1,
            )
            hits = searcher.search(
                some,
                NUMBERS_AT_ONCE,
                count=False,
                order_by_field="number",
                order=tantivy.Order.Asc,
            ).hits
            for number, address in hits:
                yield number, from_source(searcher.doc(address)["source"][0])

    def numbers_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of these documents, of those that are there."""
        searcher = self._index.searcher()
        addresses = self._addresses(searcher, ids)
        numbers = _numbers(searcher, "number", list(addresses.values()))
        return dict(zip(addresses, numbers, strict=True))

    def ids_of(self, numbers: Sequence[int]) -> list[str]:
        """Return the ids of the documents that have, or had, these numbers."""
        try:
            return self._ids[numbers]
        except (OSError, ValueError) as error:
            refuse_damaged(self.folder, self.manifest, error)

    # The methods below block, and run in threads.

    def _query(self, text: str) -> tantivy.Query:
        """Return the disjunction of the text's terms."""
        schema = self._index.schema
        return tantivy.Query.boolean_query(
            [
                (tantivy.Occur.Should, tantivy.Query.term_query(schema, "body", term))
                for term in self._analyzer.analyze(text)
            ]
        )

    def _search(self, query: tantivy.Query, n: int) -> Ranking:
        if n < 1:
            return Ranking([], [])
        searcher = self._index.searcher()
        # A segment is sorted by id, and ties come in the order of segments and then of documents.
        # So one segment breaks ties by id; with several, take in all that tie with the last one.
        limit = n if searcher.num_segments == 1 else n + 1
        hits = searcher.search(query, limit, count=False).hits
        while len(hits) == limit > n and hits[n - 1][0] == hits[-1][0]:
            limit *= 2
            hits = searcher.search(query, limit, count=False).hits
        ids = self._ids_at(searcher, [address for _, address in hits])
        scores = [score for score, _ in hits]
        if limit == n:
            return Ranking(ids, scores)
        return Ranking.of(zip(ids, scores, strict=True)).top(n)

    def _ids_at(self, searcher: tantivy.Searcher, addresses: list[tantivy.DocAddress]) -> list[str]:
        return self.ids_of(_numbers(searcher, "number", addresses))

    def _with_ids(self, ids: Sequence[str]) -> tantivy.Query:
        """Return the query for these documents, each with score 0."""
        query = tantivy.Query.term_set_query(self._index.schema, "id", list(ids))
        return tantivy.Query.const_score_query(query, 0.0)

    def _rescore(self, query: str, ids: Sequence[str]) -> Ranking:
        wanted = _boosted(self._with_ids(ids), self._query(query))
        return self._search(wanted, len(set(ids)))

    def _addresses(
        self, searcher: tantivy.Searcher, ids: Sequence[str]
    ) -> dict[str, tantivy.DocAddress]:
        if not ids:
            return {}
        hits = searcher.search(self._with_ids(ids), len(set(ids)), count=False).hits
        addresses = [address for _, address in hits]
        found = self._ids_at(searcher, addresses)
        return dict(zip(found, addresses, strict=True))

    def _documents(self, ids: Sequence[str]) -> list[Document]:
        searcher = self._index.searcher()
        addresses = self._addresses(searcher, ids)
        return [
            from_source(searcher.doc(addresses[id_])["source"][0])
            for id_ in ids
            if id_ in addresses
        ]

    def _memberships(self, attribute: str, ids: Sequence[str]) -> FloatArray:
        field = pattern_field(self.schema, attribute)
        numbers = self._numbers_by_id(field, ids)
        patterns = self._pattern_table(attribute, max(numbers.values(), default=-1))
        rows = np.zeros((len(ids), len(self.schema.attribute(attribute).universe)))
        present = [row for row, id_ in enumerate(ids) if id_ in numbers]
        if present:
            rows[present] = patterns[[numbers[ids[row]] for row in present]]
        return rows

    def _numbers_by_id(self, field: str, ids: Sequence[str]) -> dict[str, int]:
        """Return an integer field of those of these documents that there are."""
        stamp = self.stamp()
        self._known.renew(stamp, self._reload)
        numbers = self._known.get(field, ids)
        if missing := [id_ for id_ in ids if id_ not in numbers]:
            searcher = self._index.searcher()
            addresses = self._addresses(searcher, missing)
            values = _numbers(searcher, field, list(addresses.values()))
            found = dict(zip(addresses, values, strict=True))
            self._known.put(stamp, field, found)
            numbers.update(found)
        return numbers

    def _reload(self) -> None:
        # An index that is replaced just now cannot be loaded anew; what is open of it is read on.
        with contextlib.suppress(ValueError):
            self._index.reload()

    def _pattern_table(self, attribute: str, number: int) -> FloatArray:
        """Return the patterns of an attribute, read anew where this number is not among them."""
        with self._lock:
            if number >= len(self._patterns.get(attribute, ())):
                self._patterns = pattern_tables(self.folder, self.manifest)
            table = self._patterns.get(attribute, np.zeros((0, 0)))
        if number >= len(table):
            refuse_damaged(self.folder, self.manifest, "patterns.json breaks off")
        return table

    def _corpus_shares(self, attribute: str) -> FloatArray:
        field = pattern_field(self.schema, attribute)
        searcher = self._index.searcher()
        totals = np.zeros(len(self.schema.attribute(attribute).universe))
        if not searcher.num_docs:
            return totals
        every = tantivy.Query.all_query()
        last = int(searcher.aggregate(every, {"last": {"max": {"field": field}}})["last"]["value"])
        patterns = self._pattern_table(attribute, last)
        for first in range(0, last + 1, AGGREGATED_AT_ONCE):
            some = tantivy.Query.range_query(
                self._index.schema,
                field,
                tantivy.FieldType.Unsigned,
                first,
                first + AGGREGATED_AT_ONCE - 1,
            )
            terms = {"terms": {"field": field, "size": AGGREGATED_AT_ONCE}}
            buckets = searcher.aggregate(some, {"patterns": terms})["patterns"]["buckets"]
            numbers = [int(bucket["key"]) for bucket in buckets]
            counts = np.array([bucket["doc_count"] for bucket in buckets], dtype=np.float64)
            totals += counts @ patterns[numbers]
        return totals / searcher.num_docs

    def _document_frequencies(self, words: Sequence[str]) -> list[int]:
        searcher = self._index.searcher()
        return [self._document_frequency(searcher, word) for word in words]

    def _document_frequency(self, searcher: tantivy.Searcher, word: str) -> int:
        terms = list(dict.fromkeys(self._analyzer.analyze(word)))
        if len(terms) <= 1:
            return sum(searcher.doc_freq("body", term) for term in terms)
        schema = self._index.schema
        every = [
            (tantivy.Occur.Must, tantivy.Query.term_query(schema, "body", term)) for term in terms
        ]
        count: int = searcher.search(tantivy.Query.boolean_query(every), 1).count  # type: ignore[attr-defined]
        return count

    def _upsert(self, documents: Iterable[Document], progress: Progress | None) -> int:
        return write_documents(
            self._index, self.folder, self.manifest, documents, progress, replace=True
        )

    def _delete(self, ids: Sequence[str]) -> int:
        if not self.folder.exists():
            refuse_damaged(self.folder, self.manifest, "it is gone")
        with open_writer(self._index, self.name) as writer:
            before = self._index.searcher().num_docs
            for id_ in ids:
                writer.delete_documents_by_term("id", id_)
            writer.commit()
        self._index.reload()
        return before - self._index.searcher().num_docs


def _numbers(
    searcher: tantivy.Searcher, field: str, addresses: list[tantivy.DocAddress]
) -> list[int]:
    """Return an integer field of these documents; every document has it."""
    return cast("list[int]", searcher.fast_field_values(field, addresses))


def _last_number(searcher: tantivy.Searcher) -> int:
    if not searcher.num_docs:
        return -1
    every, largest = tantivy.Query.all_query(), {"last": {"max": {"field": "number"}}}
    return int(searcher.aggregate(every, largest)["last"]["value"])


def _boosted(query: tantivy.Query, boost: tantivy.Query) -> tantivy.Query:
    """Return the query for what the first one finds, with the scores of both added."""
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Should, boost)])
