"""BM25 over a pool, with a tantivy index in memory.

Analysis and formula are the same as in the embedded index, so a text scores here as in an index of
this pool. We do not compute BM25 in our own code, since it would have to stay equal to tantivy's:
tantivy rounds the lengths of documents as Lucene does, and splits and stems words itself. Building
an index of 20 texts takes 8 ms, and little more for 1,000.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np
import tantivy

from fairqr.retrieval.engines.tantivy.analysis import ANALYZER_NAME, english_analyzer
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.pools.base import scores_of_spoken

WRITER_BYTES = 15 << 20
"""The smallest memory that tantivy accepts, in bytes."""


class MemoryIndex:
    """Texts in memory, scored by BM25 with their own statistics.

    Args:
        texts: The texts, in the order of the scores.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("body", tokenizer_name=ANALYZER_NAME, index_option="freq")
        builder.add_unsigned_field("number", fast=True)
        self._index = tantivy.Index(builder.build())
        self._index.register_tokenizer(ANALYZER_NAME, english_analyzer())
        self._analyzer = english_analyzer()
        writer = self._index.writer(WRITER_BYTES, 1)
        self.size = 0
        for text in texts:
            entry = tantivy.Document()
            entry.add_text("body", text)
            entry.add_unsigned("number", self.size)
            writer.add_document(entry)
            self.size += 1
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()

    def scores(self, query: str) -> FloatArray:
        """Return the score of each text, shape (n,); 0 for texts without a term of the query."""
        scores = np.zeros(self.size)
        if not self.size:
            return scores
        schema = self._index.schema
        terms = [
            (tantivy.Occur.Should, tantivy.Query.term_query(schema, "body", term))
            for term in self._analyzer.analyze(query)
        ]
        searcher = self._index.searcher()
        hits = searcher.search(tantivy.Query.boolean_query(terms), self.size, count=False).hits
        numbers = searcher.fast_field_values("number", [address for _, address in hits])
        scores[np.array(numbers, dtype=np.intp)] = [score for score, _ in hits]
        return scores


class Bm25PoolRetriever:
    """BM25 with the statistics of the pool alone, as in LaMP and the Fair RAG experiments."""

    name = "bm25"

    async def start(self) -> None:
        """Do nothing: BM25 needs no preparation."""

    async def scores(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the scores, shape (n,), 0 or more; 0 for a text without a term of the query."""
        return await scores_of_spoken(query, texts, self._score)

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        return await asyncio.to_thread(lambda: MemoryIndex(texts).scores(query))
