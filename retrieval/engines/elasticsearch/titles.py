"""The titles of an attached index: asked for with the hits where that is cheap, and kept a while.

A title in a column costs a search nothing. To return any other, the server reads the whole
document, which takes .02 ms for one of 5 kB and .3 ms for one of 80 kB. So the first search asks
for one document too, and if that is large, titles are read only of what is shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairqr.retrieval.engines.elasticsearch.client import Body
from fairqr.retrieval.engines.elasticsearch.mapping import Hit, IndexMapping

LARGE = 10_000
"""A document of this many characters is large: 500 titles of such documents take 15 ms."""

SECONDS_KEPT = 600.0
"""How long we keep titles."""

MOST_KEPT = 100_000
"""With more titles than that, we forget all."""


class Titles:
    """Reads titles from hits, and knows those of the last ten minutes. Threads may share it.

    Args:
        name: The field of titles, if there is one.
        mapping: The mapping of the index.
    """

    def __init__(self, name: str | None, mapping: IndexMapping) -> None:
        self._column = mapping.column_of(name) if name else None
        is_readable = name is not None and (self._column or mapping.keeps(name))
        self._name = name if is_readable else None
        # None until the answer to the probe is there.
        self._is_cheap: bool | None = True
        if self._name and not self._column:
            self._is_cheap = None
        self._known: dict[str, str] = {}
        self._since = time.monotonic()

    def probe(self, query: Body) -> list[Body]:
        """Return the search that says whether titles are cheap, unless that is known.

        Args:
            query: Matches all documents that the source has.
        """
        if self._is_cheap is not None:
            return []
        return [{"query": query, "size": 1, "_source": True, "track_total_hits": False}]

    def learn(self, answer: Mapping[str, Any]) -> None:
        """Take the answer to the probe."""
        hits = answer.get("hits", {}).get("hits", ())
        if hits:
            self._is_cheap = len(json.dumps(hits[0].get("_source", {}))) < LARGE

    def with_hits(self, request: Mapping[str, Any]) -> Body:
        """Return what is requested of each hit, and its title where that is cheap."""
        if self._column:
            columns = [*request["docvalue_fields"], {"field": self._column}]
            return {**request, "docvalue_fields": columns}
        if self._is_cheap is False:
            return dict(request)
        return self.in_documents(request)

    def in_documents(self, request: Mapping[str, Any]) -> Body:
        """Return what is requested of each hit, and its title as the document has it."""
        fields = [*request["fields"]]
        if self._name:
            fields.append(self._name)
        return {**request, "fields": fields}

    def keep(self, ids: Sequence[str], hits: Sequence[Hit]) -> None:
        """Keep the titles in hits that were requested by :meth:`with_hits`."""
        titles: dict[str, str] = {}
        for id_, hit in zip(ids, hits, strict=True):
            title = self._title_in_column(hit) if self._column else self._title_in_document(hit)
            if title is not None:
                titles[id_] = title
        self.keep_all(titles)

    def keep_all(self, titles: Mapping[str, str]) -> None:
        """Keep titles by id."""
        if time.monotonic() - self._since >= SECONDS_KEPT or len(self._known) > MOST_KEPT:
            self._known = {}
            self._since = time.monotonic()
        self._known.update(titles)

    def known(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the titles that are known, by id."""
        titles = self._known
        return {id_: titles[id_] for id_ in ids if id_ in titles}

    def _title_in_column(self, hit: Hit) -> str | None:
        """Return the title in a hit's column; None for one that only the document says."""
        values = hit.get("fields", {}).get(self._column, ())
        if self._column == self._name and not values:
            return ""
        # A column has several values in another order, and none that is too long for it.
        is_whole = len(values) == 1 and self._column not in hit.get("_ignored", ())
        return str(values[0]) if is_whole else None

    def _title_in_document(self, hit: Hit) -> str | None:
        """Return the title in a hit; None if it may not have been requested."""
        values = hit.get("fields", {}).get(self._name)
        if values is None and self._is_cheap is False:
            return None
        return joined(values or ())


def joined(values: Iterable[object]) -> str:
    """Return the values of a field as one text."""
    return " ".join(map(str, values))
