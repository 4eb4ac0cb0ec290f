"""The embedded engine: BM25 by tantivy over title and text, in process, in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import tantivy

from fairqr.retrieval.engines.engine import Capability, EngineInfo, Hits, Query, require_groups
from fairqr.retrieval.engines.tantivy.analysis import english_analyzer
from fairqr.retrieval.engines.tantivy.folder import (
    columns_of,
    open_text,
    read_manifest,
    refuse_damaged,
)
from fairqr.retrieval.engines.tantivy.ids import IdReader
from fairqr.retrieval.engines.tantivy.snapshot import Snapshot
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.texts.sendable import sendable
from fairqr.retrieval.texts.words import composed


class TantivyEngine:
    """An embedded index, opened for reading; :class:`SearchEngine` documents its methods.

    Any number of processes may read at once. A search sees everything that any process wrote before
    it. All files are opened immediately, so the index stays readable while it is rebuilt.
    """

    retriever = "bm25"
    in_process = True
    capabilities: frozenset[Capability] = frozenset(
        {
            "new_queries",
            "read_by_id",
            "rescore",
            "document_frequencies",
            "corpus_shares",
            "within_group",
        }
    )

    def __init__(self, folder: Path, name: str) -> None:
        """Open the index in a folder.

        Raises:
            IndexVersionError: The folder has no index that this version can read.
        """
        self.folder = folder
        self.name = name
        self.manifest = read_manifest(folder)
        self.schema = self.manifest.corpus_schema
        self.filterable = frozenset(
            (name, group)
            for name, attribute in self.schema.attributes.items()
            for group in attribute.universe
        )
        self._columns = columns_of(self.schema)
        self._analyzer = english_analyzer()
        self._lock = threading.Lock()
        self._stamp = self.stamp()
        self._snapshot: Snapshot | None = None
        self._shares: tuple[tuple[int, int] | None, Mapping[str, FloatArray]] | None = None
        self._index = open_text(folder)
        try:
            self._ids = IdReader(folder)
        except (OSError, ValueError) as error:
            refuse_damaged(folder, error)

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
        return await asyncio.to_thread(self._corpus_shares)

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
                    self._stamp, self._snapshot = stamp, None
            if self._snapshot is None:
                self._snapshot = Snapshot(
                    self.folder,
                    self._index.schema,
                    self._index.searcher(),
                    self._ids,
                    self._columns,
                )
            return self._snapshot

    def _corpus_shares(self) -> Mapping[str, FloatArray]:
        # Counted once for each state of the index, since it reads all documents.
        stamp = self.stamp()
        if self._shares is None or self._shares[0] != stamp:
            self._shares = stamp, self.snapshot().shares()
        return self._shares[1]

    def _search(self, queries: Sequence[Query]) -> list[Hits]:
        now = self.snapshot()
        return [self.answer(now, query) for query in queries]

    def answer(self, now: Snapshot, query: Query) -> Hits:
        """Answer one query from a snapshot of the index; this blocks."""
        if query.n >= 1:
            return now.best(self.parsed(now, query), query.n, query.attributes)
        anything = query.text or query.only is not None or query.within is not None
        total = now.count(self.parsed(now, query)) if anything else len(now)
        return Hits([], [], now.memberships([]), total)

    def parsed(self, now: Snapshot, query: Query) -> tantivy.Query:
        """Return a query in tantivy's own form."""
        occur, counts = tantivy.Occur, query.n < 1
        parts: list[tuple[tantivy.Occur, tantivy.Query]] = []
        if query.only is not None:
            parts.append((occur.Must, now.with_ids(query.only)))
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
        share, kind = self._columns[attribute][place], tantivy.FieldType.Float
        above_zero = tantivy.Query.range_query(
            self._index.schema, share, kind, 0.0, None, include_lower=False
        )
        return tantivy.Query.const_score_query(above_zero, 0.0)

    def _matching(self, query: Query) -> tantivy.Query:
        """Return the query for documents that match the words."""
        text = self._terms(query.text, tantivy.Occur.Must if query.every_word else None)
        if not query.boost:
            return text
        boost = self._terms(query.boost)
        return tantivy.Query.boolean_query(
            [(tantivy.Occur.Must, text), (tantivy.Occur.Should, boost)]
        )

    def _terms(self, text: str, occur: tantivy.Occur | None = None) -> tantivy.Query:
        """Return the disjunction of the text's terms, or their conjunction."""
        # tantivy does not accept a lone surrogate, which a query can contain.
        terms = self._analyzer.analyze(composed(sendable(text)))
        schema = self._index.schema
        return tantivy.Query.boolean_query(
            [
                (occur or tantivy.Occur.Should, tantivy.Query.term_query(schema, "body", term))
                for term in terms
            ]
        )
