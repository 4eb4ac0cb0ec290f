"""The groups of documents that others retrieved: by labels that they bring, else by a source's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from fairqr.base.errors import InputError, one_line
from fairqr.graph.search.context import Context
from fairqr.retrieval.engines.engine import Memberships, Query, SearchEngine, lexical_of
from fairqr.retrieval.fairness.dimension import dimensions_of

WORDS, BEST = 300, 3
"""By how many first characters a text is searched for, and in how many documents."""

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
        self._kept: dict[str, Mapping[str, list[float]]] = {}
        self._since = time.monotonic()

    async def of(
        self, ids: Sequence[str], own: Mapping[str, Sequence[object]]
    ) -> tuple[Memberships, dict[str, int]]:
        """Return the share of each group in each document, and how many have no label.

        Both are by attribute.

        Args:
            ids: The documents' ids in the source; empty for a document without one.
            own: The labels that documents bring, by attribute; None for one that brings none.

        Raises:
            InputError: A label cannot be read, or no document has any.
        """
        if time.monotonic() - self._since > SECONDS_KEPT or len(self._kept) > KEPT:
            self._kept, self._since = {}, time.monotonic()
        kept = self._kept  # others may begin a new one while we look labels up
        wanted = {
            id_ for its in own.values() for id_, it in zip(ids, its, strict=True) if it is None
        }
        if missing := tuple(wanted - kept.keys() - {""}):
            (found,) = await self._engine.search([Query("", len(missing), only=missing)])
            kept |= {id_: {} for id_ in missing}
            for place, id_ in enumerate(found.ids):
                kept[id_] = {it: rows[place].tolist() for it, rows in found.memberships.items()}

        def row(name: str, place: int, label: object) -> Sequence[float]:
            if label is None and name in (known := kept.get(ids[place], {})):
                return known[name]
            try:
                return self.attributes[name].membership(label, strict=self._strict)
            except ValueError as error:
                raise InputError(
                    f"The {name} of document {place} cannot be read: {one_line(error)}."
                ) from None

        rows = {it: np.array([row(it, *one) for one in enumerate(own[it])]) for it in own}
        unlabelled = {
            it: int((~rows[it][:, : len(how.groups)].any(axis=1)).sum())
            for it, how in self.attributes.items()
        }
        if min(unlabelled.values()) == len(ids):
            named = " or ".join(rows)
            raise InputError(
                f"No document has a label of {named}; send labels or fields, or ids of the source."
            )
        return rows, unlabelled


async def ids_of(engine: SearchEngine, texts: Sequence[str]) -> list[str]:
    """Return the id of a document of the source that has each text; empty if none is found."""
    found = await lexical_of(engine).search([Query(text[:WORDS], BEST) for text in texts])
    documents = await engine.documents([*{id_ for hits in found for id_ in hits.ids}])
    whole = {it.id: " ".join(f"{it.title} {it.text}".split()) for it in documents}

    def has(id_: str, text: str) -> bool:
        return bool(words := " ".join(text.split())) and words in whole.get(id_, "")

    every = zip(texts, found, strict=True)
    return [next((id_ for id_ in hits.ids if has(id_, text)), "") for text, hits in every]
