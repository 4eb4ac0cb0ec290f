"""A snapshot of an embedded index at one moment, for reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import tantivy
from numpy.typing import NDArray

from fairqr.retrieval.engines.engine import Hits, Memberships
from fairqr.retrieval.engines.tantivy.folder import from_stored, refuse_damaged
from fairqr.retrieval.engines.tantivy.ids import IdReader
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import best_positions
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.texts.sendable import sendable

Addresses = list[tantivy.DocAddress]
Attributes = Sequence[str] | None
Numbers = NDArray[np.int64]

SEGMENT = 2**32
"""More than the documents of a segment, which tantivy numbers with 32 bits."""
FEW = 100
"""Up to this many ids, finding them one by one is faster than as a set."""


@dataclass(frozen=True)
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

    def best(self, query: tantivy.Query, n: int, attributes: Attributes = None) -> Hits:
        """Return the best n documents of a query; ties in order of id."""
        addresses, scores = self.ranked(query, n)
        return Hits(self.ids_at(addresses), scores, self.memberships(addresses, attributes))

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
        ids = self.ids_of(numbers.tolist())
        best = best_positions(ids, scores)[:n]
        groups = self.memberships(self.at(numbers[best]), attributes)
        return Hits([ids[place] for place in best.tolist()], scores[best].tolist(), groups)

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

    def at(self, numbers: Numbers) -> Addresses:
        """Return where the documents with these numbers are; all must exist."""
        segments, places = np.divmod(self._packed[numbers], SEGMENT)
        return list(map(tantivy.DocAddress, segments.tolist(), places.tolist()))

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

    def memberships(self, addresses: Addresses, attributes: Attributes = None) -> Memberships:
        """Return the groups of the documents at these addresses, in some attributes or all."""
        wanted = {name: self.columns[name] for name in attributes or self.columns}
        if not addresses:
            return {name: np.zeros((0, len(columns))) for name, columns in wanted.items()}
        read = self.searcher.fast_field_values
        return {
            name: np.array([read(column, addresses) for column in columns], dtype=np.float64).T
            for name, columns in wanted.items()
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
        return len(self._packed) - 1

    def numbered_documents(self, after: int) -> Iterator[tuple[int, Document]]:
        """Yield the documents with higher numbers than this, in order of number."""
        for number, packed in enumerate(self._packed[after + 1 :].tolist(), start=after + 1):
            if packed >= 0:
                yield number, self._document(tantivy.DocAddress(*divmod(packed, SEGMENT)))

    def _document(self, address: tantivy.DocAddress) -> Document:
        return from_stored(self.searcher.doc(address)["source"][0])
