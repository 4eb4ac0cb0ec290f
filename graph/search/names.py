"""Names that a model gave: which documents hold one whole, and which have one as their title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairqr.graph.search.state import LookupRecord, QueryRecord, Record
from fairqr.retrieval.engines.engine import Hits, rows_of
from fairqr.retrieval.fairness.relevance import NAMED
from fairqr.retrieval.texts.words import holders_by_name, holders_of

HELD_BY_NONE = "is in no document that was found"


class NamedText(NamedTuple):
    """The title and the text of a document; the text may begin with the title."""

    title: str
    text: str


class Holders(NamedTuple):
    """What names found.

    Attributes:
        answers: The hits of all queries; of names, only the documents that hold one of them whole.
        named: The documents whose title holds a name, in order of their ids.
        vain: The names that no document holds, of each query of names by its text.
    """

    answers: list[Hits]
    named: list[str]
    vain: Mapping[str, Sequence[str]] = {}


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
    titled: set[str] = set()
    vain: dict[str, list[str]] = {}
    for query, hits in zip(queries, answers, strict=True):
        names = query["names"]
        if not names:
            kept.append(hits)
            continue

        texts = {}
        titles = {}
        for id_ in hits.ids:
            if id_ in documents:
                title, text = documents[id_]
                texts[id_] = f"{title}\n{text}"
                titles[id_] = title
        holders = holders_by_name(names, texts)
        vain[query["text"]] = [name for name, ids in holders.items() if not ids]
        titled |= holders_of(names, titles)
        holding = set().union(*holders.values())
        rows = [row for row, id_ in enumerate(hits.ids) if id_ in holding]
        kept.append(rows_of(hits, rows))
    return Holders(kept, sorted(titled), vain)


def with_vain_names(
    refinements: Sequence[Record], queries: Sequence[QueryRecord], vain: Mapping[str, Sequence[str]]
) -> list[Record]:
    """Return what was refined for groups, with the names that found nothing as left out."""
    by_group: dict[tuple[object, object], list[str]] = {}
    for query in queries:
        key = (query["attribute"], query["group"])
        by_group.setdefault(key, []).extend(vain.get(query["text"], ()))
    refined = []
    for record in refinements:
        vain_names = by_group.get((record["attribute"], record["group"]), [])
        unused = [{"text": name, "reason": HELD_BY_NONE} for name in vain_names]
        names = [name for name in record["names"] if name not in vain_names]
        update = {"names": names, "left_out": [*record["left_out"], *unused]}
        refined.append({**record, **update})
    return refined


def lookup_of_named(iteration: int, named: Sequence[str]) -> list[LookupRecord]:
    """Return the evidence that a title is a name; none if there are no such documents."""
    if not named:
        return []
    relevance = dict.fromkeys(named, NAMED)
    return [LookupRecord(iteration=iteration, kind="named", scores={}, relevance=relevance)]
