"""Notes for the reader of an evaluation: what was left out, is unknown or is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.measures.kinds import Need
from fairqr.evaluation.measures.measure import Measure
from fairqr.evaluation.qrels import Qrels
from fairqr.retrieval.sources.runs import SystemRun

SENTENCES = {
    "unjudged_queries": "{queries} of {run} without judgements: left out.",
    "missing_queries": "{count} of {measured} missing from {run}: {counted}, and without a value "
    "in measures of exposure.",
    "no_relevant": "{queries} without a relevant document: no value where a measure needs one.",
    "unknown_documents": "{count} of {ranked} ranked by {run} are not in the corpus: they keep "
    "their rank, and give exposure to no group.",
    "unknown_relevant": "{count} of {relevant} relevant documents are not in the corpus: they "
    "count as relevant, but not for the target.",
    "unlabelled_documents": "{count} of {known} ranked by {run} have no known {attribute}.",
    "ties": "{documents} of {run} have the same score as their neighbour; their order is by "
    "{ties}.",
}
"""What notes say, by their kind; each says how it was counted."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note.

    Attributes:
        kind: What it is about, as a fixed word of :data:`SENTENCES`.
        count: The number of queries or documents concerned.
        sentence: The note in words.
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
    judged = qrels or {}
    rankings = {query: [r.ids for r in run.rankings.get(query, ()) if r.ids] for query in queries}
    relevant = [{id_ for id_, grade in judged.get(q, {}).items() if grade > 0} for q in queries]
    told: dict[str, object] = {
        "run": run.name,
        "ties": run.ties,
        "measured": _counted(len(rankings), "query", "queries"),
        "counted": "counted as 0 in measures of relevance" if missing == "zero" else "left out",
    }
    found = [
        ("unjudged_queries", len(run.rankings.keys() - rankings.keys()), ""),
        ("missing_queries", sum(not own for own in rankings.values()), ""),
        ("no_relevant", 0 if qrels is None else sum(not ids for ids in relevant), ""),
    ]
    if groups is not None and any(Need.GROUPS in measure.needs for measure in measures):
        depth = depth_of(measures)
        ranked = {id_ for own in rankings.values() for ids in own for id_ in ids[:depth]}
        useful, known = set().union(*relevant), groups.known(ranked)
        told |= {"ranked": _counted(len(ranked)), "relevant": len(useful)}
        told["known"] = _counted(len(known))
        absent = len(useful) - len(groups.known(useful))
        found += [("unknown_documents", len(ranked) - len(known), "")]
        found += [("unknown_relevant", absent, "")]
        attributes = (factor.attribute for measure in measures for factor in measure.factors)
        for attribute in dict.fromkeys(filter(None, attributes)):
            members = groups.in_dimension(groups.dimension(attribute, "exclude"), known)
            found += [("unlabelled_documents", int((members.sum(axis=1) == 0).sum()), attribute)]
    notes = []
    for kind, count, attribute in [*found, ("ties", run.tied, "")]:
        told |= {"count": count, "attribute": attribute, "documents": _counted(count)}
        told["queries"] = _counted(count, "query", "queries")
        notes += [Note(kind, count, SENTENCES[kind].format_map(told))] if count else []
    return tuple(notes)


def _counted(count: int, one: str = "document", many: str = "documents") -> str:
    return f"{count} {one if count == 1 else many}"


def depth_of(measures: Iterable[Measure]) -> int | None:
    """Return the deepest cut-off of measures of groups; None for the whole list."""
    factors = [factor for measure in measures for factor in measure.factors]
    depths = [factor.k for factor in factors if Need.GROUPS in factor.needs]
    return None if None in depths else max(filter(None, depths), default=None)
