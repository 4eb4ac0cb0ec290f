"""A snapshot of an embedded index at one moment, for reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import tantivy

from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import Hits, Memberships
from fairqr.retrieval.engines.tantivy_folder import from_stored, refuse_damaged
from fairqr.retrieval.engines.tantivy_ids import IdReader
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.ranking import best_positions
from fairqr.retrieval.sendable import sendable

Addresses = list[tantivy.DocAddress]

NUMBERS_AT_ONCE = 10_000
FEW = 100
"""Up to this many ids, finding them one by one is faster than as a set."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An embedded index as it is at one moment; later writes do not show.

    Each document has a unique number that is never reused; a replaced document gets a new, higher
    one. All methods block.

    Attributes:
        folder: The folder of the index.
        text_schema: The schema of tantivy's fields.
        searcher: Reads tantivy's files.
        id_reader: Reads ids by number.
        columns: For each attribute, the columns of its groups.
    """

    folder: Path
    text_schema: tantivy.Schema
    searcher: tantivy.Searcher
    id_reader: IdReader
    columns: Mapping[str, list[str]]

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self.searcher.num_docs)

    def with_ids(self, ids: Sequence[str]) -> tantivy.Query:
        """Return the query for these documents, each with score 0."""
        clean = [sendable(id_) for id_ in ids]
        if len(clean) > FEW:
            query = tantivy.Query.term_set_query(self.text_schema, "id", clean)
        else:
            each = [tantivy.Query.term_query(self.text_schema, "id", i, "basic") for i in clean]
            query = tantivy.Query.boolean_query([(tantivy.Occur.Should, one) for one in each])
        return tantivy.Query.const_score_query(query, 0.0)

    def best(self, query: tantivy.Query, n: int) -> Hits:
        """Return the best n documents of a query; ties in order of id."""
        n = min(n, len(self))
        if n < 1:
            return Hits([], [], self.memberships([]))
        # A segment is sorted by id; ties come in the order of segments, then of documents. So one
        # segment breaks ties by id; with several, we take all documents tied with the last one.
        limit = n if self.searcher.num_segments == 1 else n + 1
        found = self.searcher.search(query, limit, count=False).hits
        while len(found) == limit > n and found[n - 1][0] == found[-1][0]:
            limit *= 2
            found = self.searcher.search(query, limit, count=False).hits
        scores, addresses = [score for score, _ in found], [address for _, address in found]
        return self.hits(addresses, scores, n, in_order=limit == n)

    def hits(
        self, addresses: Addresses, scores: Sequence[float], n: int, *, in_order: bool = False
    ) -> Hits:
        """Return the best n of these documents with their groups.

        Args:
            addresses: The documents.
            scores: One score for each document.
            n: How many to return.
            in_order: Whether they are already the best n, best first, with ties in order of id.
        """
        ids = self.ids_at(addresses)
        if not in_order:
            best = best_positions(ids, scores)[:n].tolist()
            ids, scores = [ids[place] for place in best], [scores[place] for place in best]
            addresses = [addresses[place] for place in best]
        return Hits(ids, list(scores), self.memberships(addresses))

    def count(self, query: tantivy.Query) -> int:
        """Return how many documents match, not counting deleted ones."""
        count: int = self.searcher.search(query, 1).count  # type: ignore[attr-defined]
        return count

    def numbers_matching(self, query: tantivy.Query) -> list[int]:
        """Return the numbers of all matching documents, unordered."""
        found = self.searcher.search(query, max(1, len(self)), count=False).hits
        return self.numbers([address for _, address in found])

    def addresses(self, ids: Sequence[str]) -> dict[str, tantivy.DocAddress]:
        """Return the addresses of those documents that exist."""
        if not ids:
            return {}
        found = self.searcher.search(self.with_ids(ids), len(set(ids)), count=False).hits
        addresses = [address for _, address in found]
        return dict(zip(self.ids_at(addresses), addresses, strict=True))

    def ids_at(self, addresses: Addresses) -> list[str]:
        """Return the ids of the documents at these addresses."""
        return self.ids_of(self.numbers(addresses))

    def numbers(self, addresses: Addresses) -> list[int]:
        """Return the numbers of the documents at these addresses."""
        return cast("list[int]", self.searcher.fast_field_values("number", addresses))

    def ids_of(self, numbers: Sequence[int]) -> list[str]:
        """Return the ids of the documents that have, or had, these numbers."""
        try:
            return self.id_reader[numbers]
        except (OSError, ValueError) as error:
            refuse_damaged(self.folder, error)

    def memberships(self, addresses: Addresses) -> Memberships:
        """Return the groups of the documents at these addresses."""
        if not addresses:
            return {name: np.zeros((0, len(columns))) for name, columns in self.columns.items()}
        read = self.searcher.fast_field_values
        return {
            name: np.array([read(column, addresses) for column in columns], dtype=np.float64).T
            for name, columns in self.columns.items()
        }

    def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; ids that the index lacks are left out."""
        addresses = self.addresses(ids)
        return [self._document(addresses[id_]) for id_ in ids if id_ in addresses]

    def shares(self) -> dict[str, FloatArray]:
        """Return for each attribute the mean membership over all documents; 0 if empty."""
        wanted = {
            column: {"sum": {"field": column}}
            for columns in self.columns.values()
            for column in columns
        }
        sums = self.searcher.aggregate(tantivy.Query.all_query(), wanted)
        return {
            name: np.array([sums[c]["value"] or 0.0 for c in columns]) / max(1, len(self))
            for name, columns in self.columns.items()
        }

    def last_number(self) -> int:
        """Return the highest number of a document, or −1 if there are no documents."""
        if not len(self):
            return -1
        every, highest = tantivy.Query.all_query(), {"last": {"max": {"field": "number"}}}
        return int(self.searcher.aggregate(every, highest)["last"]["value"])

    def numbered_documents(self, after: int) -> Iterator[tuple[int, Document]]:
        """Yield the documents with higher numbers than this, in order of number."""
        for first in range(after + 1, self.last_number() + 1, NUMBERS_AT_ONCE):
            some = tantivy.Query.range_query(
                self.text_schema,
                "number",
                tantivy.FieldType.Unsigned,
                first,
                first + NUMBERS_AT_ONCE - 1,
            )
            found = self.searcher.search(
                some,
                NUMBERS_AT_ONCE,
                count=False,
                order_by_field="number",
                order=tantivy.Order.Asc,
            ).hits
            for number, address in found:
                yield number, self._document(address)

    def _document(self, address: tantivy.DocAddress) -> Document:
        return from_stored(self.searcher.doc(address)["source"][0])
