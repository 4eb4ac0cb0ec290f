"""Notes for the reader of an evaluation: what was left out, is unknown or is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.measures.kinds import Need
from fairqr.evaluation.measures.measure import Measure
from fairqr.evaluation.qrels import Qrels
from fairqr.retrieval.sources.runs import SystemRun

Kind = Literal[
    "unjudged_queries",
    "missing_queries",
    "no_relevant",
    "unknown_documents",
    "unknown_relevant",
    "unlabelled_documents",
    "ties",
]


@dataclass(frozen=True, slots=True)
class Note:
    """A note.

    Attributes:
        kind: What it is about, as a fixed word.
        count: The number of queries or documents concerned.
        sentence: The note in words; it says how they were counted.
    """

    kind: Kind
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
    name, tied, judged = run.name, run.tied, qrels or {}
    rankings = {query: [r.ids for r in run.rankings.get(query, ()) if r.ids] for query in queries}
    relevant = [{id_ for id_, grade in judged.get(q, {}).items() if grade > 0} for q in queries]
    left_out = len(run.rankings.keys() - rankings.keys())
    absent = sum(not own for own in rankings.values())
    bare = 0 if qrels is None else sum(not ids for ids in relevant)
    counted = "counted as 0 in measures of relevance" if missing == "zero" else "left out"
    those, them = _count(left_out, "query", "queries"), _count(len(rankings), "query", "queries")
    found: list[tuple[Kind, int, str]] = [
        ("unjudged_queries", left_out, f"{those} of {name} without judgements: left out."),
        (
            "missing_queries",
            absent,
            f"{absent} of {them} missing from {name}: {counted}, and without a value in measures "
            "of exposure.",
        ),
        (
            "no_relevant",
            bare,
            f"{_count(bare, 'query', 'queries')} without a relevant document: no value where a "
            "measure needs one.",
        ),
    ]
    if groups is not None and any(Need.GROUPS in measure.needs for measure in measures):
        depth = depth_of(measures)
        ranked = {id_ for own in rankings.values() for ids in own for id_ in ids[:depth]}
        found += _on_groups(name, ranked, set().union(*relevant), groups, measures)
    what = f"{_count(tied)} of {name} have the same score as their neighbour; their order is by "
    found.append(("ties", tied, f"{what}{run.ties}."))
    return tuple(Note(*note) for note in found if note[1])


def _on_groups(
    name: str, ranked: set[str], relevant: set[str], groups: Groups, measures: Sequence[Measure]
) -> Iterable[tuple[Kind, int, str]]:
    known = groups.labels.known(ranked)
    unknown, absent = (len(ids) - len(groups.labels.known(ids)) for ids in (ranked, relevant))
    those = f"{unknown} of {_count(len(ranked))} ranked by {name} are not in the corpus: "
    yield (
        "unknown_documents",
        unknown,
        f"{those}they keep their rank, and give exposure to no group.",
    )
    those = f"{absent} of {len(relevant)} relevant documents are not in the corpus: "
    yield "unknown_relevant", absent, f"{those}they count as relevant, but not for the target."
    attributes = (factor.attribute for measure in measures for factor in measure.factors)
    for attribute in dict.fromkeys(filter(None, attributes)):
        members = groups.labels.in_dimension(groups.dimension(attribute, "exclude"), known)
        bare = int((members.sum(axis=1) == 0).sum())
        sentence = f"{bare} of {_count(len(known))} ranked by {name} have no known {attribute}."
        yield "unlabelled_documents", bare, sentence


def _count(count: int, one: str = "document", many: str = "documents") -> str:
    return f"{count} {one if count == 1 else many}"


def depth_of(measures: Iterable[Measure]) -> int | None:
    """Return the deepest cut-off of measures of groups; None for the whole list."""
    factors = [factor for measure in measures for factor in measure.factors]
    depths = [factor.k for factor in factors if Need.GROUPS in factor.needs]
    return None if None in depths else max(filter(None, depths), default=None)
