"""The groups of documents that others retrieved: by labels that they bring, else by a source's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.base.errors import InputError, one_line
from fairqr.graph.search.context import Context
from fairqr.retrieval.engines.engine import Memberships, Query, SearchEngine
from fairqr.retrieval.fairness.dimension import dimensions_of

KEPT, SECONDS_KEPT = 100_000, 60.0
"""How many looked-up labels we keep, and for how long: a changed label counts after that."""


class Labels:
    """Finds the groups of documents.

    Args:
        engine: Looks up the labels that documents do not bring.
        context: Says which attributes count.
        strict: Whether a label that is no group's is refused; otherwise it counts as unknown.

    Raises:
        InputError: An attribute does not exist.
    """

    def __init__(self, engine: SearchEngine, context: Context, *, strict: bool) -> None:
        dimensions = dimensions_of(engine.schema, context.attributes, intersect=context.intersect)
        self.attributes = {it.name: it for one in dimensions for it in one.factors}
        self._engine, self._strict = engine, strict
        self._kept: dict[str, Mapping[str, Any]] = {}
        self._since = time.monotonic()

    async def of(self, ids: Sequence[str], own: Mapping[str, Sequence[object]]) -> Memberships:
        """Return the share of each group in each document, an array for each attribute.

        Args:
            ids: The documents' ids in the source; empty where there is none.
            own: The labels that documents bring, by attribute; None where there is none.

        Raises:
            InputError: A label cannot be read, or no document has any.
        """
        if time.monotonic() - self._since > SECONDS_KEPT or len(self._kept) > KEPT:
            self._kept, self._since = {}, time.monotonic()
        wanted = {
            id_ for it in own.values() for id_, one in zip(ids, it, strict=True) if one is None
        }
        if missing := tuple(wanted - self._kept.keys() - {""}):
            (found,) = await self._engine.search([Query("", len(missing), only=missing)])
            for place, id_ in enumerate(found.ids):
                self._kept[id_] = {it: rows[place] for it, rows in found.memberships.items()}
        rows = {name: self._rows(name, ids, labels) for name, labels in own.items()}
        if not any(of.any() for of in rows.values()):
            named = " or ".join(rows)
            raise InputError(
                f"No document has a label of {named}; send labels or fields, or ids of the source."
            )
        return rows

    def _rows(self, name: str, ids: Sequence[str], labels: Sequence[object]) -> Any:
        attribute = self.attributes[name]
        rows = np.empty((len(ids), len(attribute.universe)))
        for place, (id_, label) in enumerate(zip(ids, labels, strict=True)):
            known = self._kept.get(id_, {}).get(name) if label is None else None
            try:
                rows[place] = (
                    attribute.membership(label, strict=self._strict) if known is None else known
                )
            except ValueError as error:
                raise InputError(
                    f"The {name} of document {place} cannot be read: {one_line(error)}."
                ) from None
        return rows
