"""Names that a model gave: which documents hold one whole, and which have one as their title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairqr.graph.search.state import LookupRecord, QueryRecord
from fairqr.retrieval.engines.engine import Hits, rows_of
from fairqr.retrieval.fairness.relevance import NAMED
from fairqr.retrieval.texts.words import holders_of


class NamedText(NamedTuple):
    """The title and the text of a document; the text may begin with the title."""

    title: str
    text: str


class Holders(NamedTuple):
    """What names found.

    Attributes:
        answers: The hits of all queries; of names, only the documents that hold one of them whole.
        named: The documents whose title holds a name, in order of their ids.
    """

    answers: list[Hits]
    named: list[str]


def only_holders(
    queries: Sequence[QueryRecord],
    answers: Sequence[Hits],
    documents: Mapping[str, NamedText],
) -> Holders:
    """Keep of what names found only the documents that hold one of the names whole.

    Args:
        queries: The queries, some of which are names.
        answers: Their hits.
        documents: The documents that queries of names found, by id. One that could not be read
            holds no name.
    """
    kept = []
    named: set[str] = set()
    for query, hits in zip(queries, answers, strict=True):
        if query["names"]:
            found = {id_: documents[id_] for id_ in hits.ids if id_ in documents}
            texts = {id_: f"{document.title}\n{document.text}" for id_, document in found.items()}
            holders = holders_of(query["names"], texts)
            titles = {id_: document.title for id_, document in found.items()}
            named |= holders_of(query["names"], titles)
            hits = rows_of(hits, [row for row, id_ in enumerate(hits.ids) if id_ in holders])
        kept.append(hits)
    return Holders(kept, sorted(named))


def lookup_of_named(iteration: int, named: Sequence[str]) -> list[LookupRecord]:
    """Return the evidence that a title is a name; none if there are no such documents."""
    if not named:
        return []
    relevance = dict.fromkeys(named, NAMED)
    return [LookupRecord(iteration=iteration, kind="named", scores={}, relevance=relevance)]
