"""Notes for the reader of an evaluation: what was left out, is unknown or is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.measures.kinds import GROUPS
from fairqr.evaluation.measures.measure import Measure
from fairqr.evaluation.qrels import Qrels
from fairqr.retrieval.sources.runs import SystemRun

PLURALS = {"query": "queries", "document": "documents", "": ""}


@dataclass(frozen=True, slots=True)
class Note:
    """A note.

    Attributes:
        kind: What it is about, as a fixed word.
        count: The number of queries or documents concerned.
        sentence: The note in words; it says how it was counted.
    """

    kind: str
    count: int
    sentence: str


def notes_on(
    run: SystemRun,
    qrels: Qrels | None,
    queries: Collection[str],
    groups: Groups | None,
    measures: Sequence[Measure],
    missing: str,
) -> tuple[Note, ...]:
    """Return the notes on the evaluation of a run."""
    name, judged, notes = run.name, qrels or {}, list[Note]()
    rankings = {query: [r.ids for r in run.rankings.get(query, ()) if r.ids] for query in queries}

    def note(kind: str, count: int, text: str, what: str = "") -> None:
        if count:
            notes.append(Note(kind, count, f"{_counted(count, what)} {text}"))

    unjudged = len(run.rankings.keys() - rankings.keys())
    note("unjudged_queries", unjudged, f"of {name} without judgements: left out.", "query")
    how = "counted as 0 in measures of relevance" if missing == "zero" else "left out"
    text = f"of {_counted(len(rankings), 'query')} missing from {name}: {how}, and without a value"
    absent = sum(not own for own in rankings.values())
    note("missing_queries", absent, f"{text} in measures of exposure.")
    if groups is not None and any(GROUPS in measure.needs for measure in measures):
        depth = depth_of(measures)
        ranked = {id_ for own in rankings.values() for ids in own for id_ in ids[:depth]}
        known = groups.known(ranked)
        text = f"of {_counted(len(ranked), 'document')} ranked by {name} are not in the corpus:"
        text += " they keep their rank, and give exposure to no group."
        note("unknown_documents", len(ranked) - len(known), text)
        useful = {id_ for q in queries for id_, grade in judged.get(q, {}).items() if grade > 0}
        text = f"of {len(useful)} relevant documents are not in the corpus:"
        text += " they count as relevant, but not for the target."
        note("unknown_relevant", len(useful) - len(groups.known(useful)), text)
        attributes = (factor.attribute for measure in measures for factor in measure.parts)
        for attribute in dict.fromkeys(filter(None, attributes)):
            members = groups.in_dimension(groups.dimension(attribute, "exclude"), known)
            text = (
                f"of {_counted(len(known), 'document')} ranked by {name} have no known {attribute}."
            )
            note("unlabelled_documents", int((members.sum(axis=1) == 0).sum()), text)
    tied = f"of {name} have the same score as their neighbour; their order is by {run.ties}."
    note("ties", run.tied, tied, "document")
    return tuple(notes)


def _counted(count: int, what: str) -> str:
    return f"{count} {what if count == 1 else PLURALS[what]}".strip()


def depth_of(measures: Iterable[Measure]) -> int | None:
    """Return the deepest cut-off of measures of groups; None for the whole list."""
    factors = [factor for measure in measures for factor in measure.parts]
    depths = [factor.k for factor in factors if GROUPS in factor.needs]
    return None if None in depths else max(filter(None, depths), default=None)
