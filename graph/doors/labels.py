"""The groups of documents that others retrieved: by labels that they bring, else by a source's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fairqr.base.errors import InputError, one_line
from fairqr.graph.search.context import Context
from fairqr.retrieval.engines.engine import Memberships, Query, SearchEngine, lexical_of
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import Attribute

WORDS, BEST = 300, 3
"""By how many first characters a text is searched for, and in how many documents."""


class Given(NamedTuple):
    """A document that somebody else retrieved.

    Attributes:
        place: Its place in what was sent, for complaints.
        id: Its id in the source; empty if it has none.
        text: What it says.
        label: Returns the label for an attribute that it brings; None if it brings none.
    """

    place: int
    id: str
    text: str
    label: Callable[[Attribute], object]


async def labels_of(
    engine: SearchEngine, context: Context, documents: Sequence[Given], *, strict: bool
) -> tuple[Memberships, dict[str, int]]:
    """Return the share of each group in each document, and how many have no label.

    Both are by attribute.

    Args:
        engine: Looks up the labels that documents do not bring.
        context: Says which attributes count.
        documents: The documents.
        strict: Whether a label that is no group's is refused; otherwise it counts as unknown.

    Raises:
        InputError: An attribute does not exist, a label cannot be read, or no document has any.
    """
    dimensions = dimensions_of(engine.schema, context.attributes, intersect=context.intersect)
    attributes = [it for dimension in dimensions for it in dimension.factors]
    own = [[one.label(it) for it in attributes] for one in documents]
    every = zip(documents, own, strict=True)
    missing = tuple({one.id for one, labels in every if None in labels and one.id})
    known = dict[str, Memberships]()
    if missing:
        (found,) = await engine.search([Query("", len(missing), only=missing)])
        for place, id_ in enumerate(found.ids):
            known[id_] = {it: rows[place] for it, rows in found.memberships.items()}

    def row(attribute: Attribute, one: Given, label: object) -> Sequence[float] | FloatArray:
        kept = known.get(one.id, {})
        if label is None and attribute.name in kept:
            return kept[attribute.name]
        try:
            return attribute.membership(label, strict=strict)
        except ValueError as error:
            raise InputError(
                f"The {attribute.name} of document {one.place} cannot be read: {one_line(error)}."
            ) from None

    members, unlabelled = dict[str, FloatArray](), dict[str, int]()
    for it, labels in zip(attributes, zip(*own, strict=True), strict=True):
        pairs = zip(documents, labels, strict=True)
        rows = members[it.name] = np.array([row(it, *pair) for pair in pairs])
        unlabelled[it.name] = int((~rows[:, : len(it.groups)].any(axis=1)).sum())
    if min(unlabelled.values()) == len(documents):
        named = " or ".join(members)
        raise InputError(
            f"No document has a label of {named}; send labels or fields, or ids of the source."
        )
    return members, unlabelled


async def ids_of(engine: SearchEngine, texts: Sequence[str]) -> list[str]:
    """Return the id of the document of the source that has each text; empty if several have it."""
    found = await lexical_of(engine).search([Query(text[:WORDS], BEST) for text in texts])
    documents = await engine.documents([*{id_ for hits in found for id_ in hits.ids}])
    whole = {it.id: " ".join(f"{it.title} {it.text}".split()) for it in documents}

    def one(text: str, ids: Sequence[str]) -> str:
        words = " ".join(text.split())
        inside = [id_ for id_ in ids if words and words in whole.get(id_, "")]
        return inside[0] if len(inside) == 1 else next((i for i in inside if words == whole[i]), "")

    return [one(text, hits.ids) for text, hits in zip(texts, found, strict=True)]
