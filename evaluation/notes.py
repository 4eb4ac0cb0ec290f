"""What a reader of an evaluation has to know: what was left out, is unknown or is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fairqr.evaluation.measures.base import Measure, Need
from fairqr.evaluation.measures.product import Product
from fairqr.evaluation.measures.relevance import NDCG
from fairqr.evaluation.memberships import Groups
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.query_results import QueryResults
from fairqr.retrieval.runs import Run

__all__ = ["Note", "notes_on"]

Kind = Literal[
    "unjudged_queries",
    "missing_queries",
    "no_relevant",
    "unknown_documents",
    "unknown_relevant",
    "unlabelled_documents",
    "graded",
    "ties",
]


@dataclass(frozen=True, slots=True)
class Note:
    """One remark.

    Attributes:
        kind: What it is about, as a fixed word.
        count: How many it concerns.
        sentence: For people; it says how they were counted.
    """

    kind: Kind
    count: int
    sentence: str


def notes_on(
    run: Run,
    views: Sequence[QueryResults],
    qrels: Qrels | None,
    groups: Groups | None,
    measures: Sequence[Measure],
    missing: str,
) -> list[Note]:
    """Return the remarks on the evaluation of a run."""
    notes: list[Note] = []

    def add(kind: Kind, count: int, sentence: str) -> None:
        if count:
            notes.append(Note(kind, count, sentence))

    left_out = len(run.rankings.keys() - {view.query for view in views})
    add(
        "unjudged_queries",
        left_out,
        f"{_queries(left_out)} of {run.name} without judgements: left out.",
    )
    absent = sum(view.missing for view in views)
    counted = "counted as 0 in measures of relevance" if missing == "zero" else "left out"
    add(
        "missing_queries",
        absent,
        f"{absent} of {_queries(len(views))} missing from {run.name}: {counted}, "
        "and without a value in measures of exposure.",
    )
    if qrels is not None:
        bare = sum(not view.relevant for view in views)
        add(
            "no_relevant",
            bare,
            f"{_queries(bare)} without a relevant document: no value where a measure needs one.",
        )
        highest = max((grade for judged in qrels.values() for grade in judged.values()), default=0)
        if highest > 1 and any(_binary(measure) for measure in measures):
            add(
                "graded",
                highest,
                f"Judgements have grades up to {highest}; nDCG counts all above 0 alike, "
                "unless gains=graded is given.",
            )
    if groups is not None and any(Need.GROUPS in measure.needs for measure in measures):
        _note_groups(add, run, views, groups, measures)
    tied = run.tied
    add(
        "ties",
        tied,
        f"{_documents(tied)} of {run.name} have the same score as their neighbour; "
        f"their order is by {run.ties}.",
    )
    return notes


def _note_groups(
    add: Callable[[Kind, int, str], None],
    run: Run,
    views: Sequence[QueryResults],
    groups: Groups,
    measures: Iterable[Measure],
) -> None:
    ranked = {id_ for view in views for ranking in view.rankings for id_ in ranking}
    unknown = sum(id_ not in groups for id_ in ranked)
    add(
        "unknown_documents",
        unknown,
        f"{unknown} of {_documents(len(ranked))} ranked by {run.name} are not in the corpus: "
        "they keep their rank, and give exposure to no group.",
    )
    relevant = {id_ for view in views for id_ in view.relevant}
    absent = sum(id_ not in groups for id_ in relevant)
    add(
        "unknown_relevant",
        absent,
        f"{absent} of {len(relevant)} relevant documents are not in the corpus: "
        "they count as relevant, but not for the target.",
    )
    known = sorted(id_ for id_ in ranked if id_ in groups)
    for name in dict.fromkeys(_attributes(measures)):
        dimension = groups.dimension(name, "exclude")
        bare = int((groups.memberships(dimension, known).sum(axis=1) == 0).sum())
        add(
            "unlabelled_documents",
            bare,
            f"{bare} of {_documents(len(known))} ranked by {run.name} have no known {name}.",
        )


def _documents(count: int) -> str:
    return "1 document" if count == 1 else f"{count} documents"


def _queries(count: int) -> str:
    return "1 query" if count == 1 else f"{count} queries"


def _binary(measure: Measure) -> bool:
    factors = measure.factors if isinstance(measure, Product) else (measure,)
    return any(isinstance(factor, NDCG) and factor.gains == "binary" for factor in factors)


def _attributes(measures: Iterable[Measure]) -> Iterable[str]:
    for measure in measures:
        factors = measure.factors if isinstance(measure, Product) else (measure,)
        for factor in factors:
            attribute = getattr(factor, "attribute", None)
            if attribute is not None:
                yield attribute
