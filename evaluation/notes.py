"""Notes for the reader of an evaluation: what was left out, is unknown or is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.measures.kinds import GROUPS
from fairqr.evaluation.measures.measure import Measure
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.reports.text import counted
from fairqr.retrieval.sources.runs import SystemRun

QUERIES = ("query", "queries")


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

    def note(kind: str, count: int, text: str, *nouns: str) -> None:
        if count:
            said = counted(count, *nouns) if nouns else f"{count:,}"
            notes.append(Note(kind, count, f"{said} {text}"))

    unjudged = len(run.rankings.keys() - rankings.keys())
    note("unjudged_queries", unjudged, f"of {name} without judgements: left out.", *QUERIES)
    how = "counted as 0 in measures of relevance" if missing == "zero" else "left out"
    text = f"of {counted(len(rankings), *QUERIES)} missing from {name}: {how}, and without a"
    absent = sum(not own for own in rankings.values())
    note("missing_queries", absent, f"{text} value in measures of exposure.")
    if groups is not None and any(GROUPS in measure.needs for measure in measures):
        depth = depth_of(measures)
        ranked = {id_ for own in rankings.values() for ids in own for id_ in ids[:depth]}
        known = groups.known(ranked)
        text = f"of {counted(len(ranked), 'document')} ranked by {name} are not in the corpus: they"
        text += " keep their rank, and give exposure to no group."
        note("unknown_documents", len(ranked) - len(known), text)
        useful = {id_ for q in queries for id_, grade in judged.get(q, {}).items() if grade > 0}
        text = f"of {len(useful):,} relevant documents are not in the corpus: they count as"
        absent = len(useful) - len(groups.known(useful))
        note("unknown_relevant", absent, f"{text} relevant, but not for the target.")
        attributes = (factor.attribute for measure in measures for factor in measure.parts)
        text = f"of {counted(len(known), 'document')} ranked by {name} have no known"
        for attribute in dict.fromkeys(filter(None, attributes)):
            members = groups.in_dimension(groups.dimension(attribute, "exclude"), known)
            without = int((members.sum(axis=1) == 0).sum())
            note("unlabelled_documents", without, f"{text} {attribute}.")
    text = f"of {name} have the same score as their neighbour; their order is by {run.ties}."
    note("ties", run.tied, text, "document")
    return tuple(notes)


def depth_of(measures: Iterable[Measure]) -> int | None:
    """Return the deepest cut-off of measures of groups; None for the whole list."""
    factors = [factor for measure in measures for factor in measure.parts]
    depths = [factor.k for factor in factors if GROUPS in factor.needs]
    return None if None in depths else max(filter(None, depths), default=None)
