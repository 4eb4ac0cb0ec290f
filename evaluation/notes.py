"""Notes for the reader of an evaluation: what was left out, is unknown or is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.measures.base import Measure, Need
from fairqr.evaluation.measures.product import factors
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


class Notes:
    """Collects the notes on the evaluation of a run, batch by batch of its queries."""

    def __init__(
        self,
        run: SystemRun,
        qrels: Qrels | None,
        groups: Groups | None,
        measures: Sequence[Measure],
        missing: str,
    ) -> None:
        self._run = run
        self._judged = qrels is not None
        grouped = any(Need.GROUPS in measure.needs for measure in measures)
        self._groups = groups if grouped else None
        self._depth = depth_of(measures)
        self._attributes = list(dict.fromkeys(_attributes(measures)))
        self._missing = missing
        self._queries: set[str] = set()
        self._absent = self._bare = 0
        self._ranked: set[str] = set()
        self._relevant: set[str] = set()

    def add(self, batch: Batch) -> None:
        """Count the oddities of some of the queries."""
        self._queries.update(batch.queries)
        self._absent += len(batch.missing())
        self._bare += int((batch.relevant_counts == 0).sum())
        if self._groups is not None:
            self._ranked.update(*(ids[: self._depth] for ids in batch.rankings))
            self._relevant.update(*batch.relevant)

    def listed(self) -> tuple[Note, ...]:
        """Return the notes."""
        return tuple(note for note in self._all() if note.count)

    def _all(self) -> Iterator[Note]:
        name = self._run.name
        left_out = len(self._run.rankings.keys() - self._queries)
        yield Note(
            "unjudged_queries",
            left_out,
            f"{_queries(left_out)} of {name} without judgements: left out.",
        )
        counted = "counted as 0 in measures of relevance" if self._missing == "zero" else "left out"
        yield Note(
            "missing_queries",
            self._absent,
            f"{self._absent} of {_queries(len(self._queries))} missing from {name}: {counted}, "
            "and without a value in measures of exposure.",
        )
        if self._judged:
            yield Note(
                "no_relevant",
                self._bare,
                f"{_queries(self._bare)} without a relevant document: no value where a measure "
                "needs one.",
            )
        if self._groups is not None:
            yield from self._of_groups(self._groups)
        tied = self._run.tied
        yield Note(
            "ties",
            tied,
            f"{_documents(tied)} of {name} have the same score as their neighbour; "
            f"their order is by {self._run.ties}.",
        )

    def _of_groups(self, groups: Groups) -> Iterator[Note]:
        name, ranked = self._run.name, self._ranked
        known = groups.labels.known(ranked)
        unknown = len(ranked) - len(known)
        yield Note(
            "unknown_documents",
            unknown,
            f"{unknown} of {_documents(len(ranked))} ranked by {name} are not in the corpus: "
            "they keep their rank, and give exposure to no group.",
        )
        absent = len(self._relevant) - len(groups.labels.known(self._relevant))
        yield Note(
            "unknown_relevant",
            absent,
            f"{absent} of {len(self._relevant)} relevant documents are not in the corpus: "
            "they count as relevant, but not for the target.",
        )
        for attribute in self._attributes:
            members = groups.labels.in_dimension(groups.dimension(attribute, "exclude"), known)
            bare = int((members.sum(axis=1) == 0).sum())
            yield Note(
                "unlabelled_documents",
                bare,
                f"{bare} of {_documents(len(known))} ranked by {name} have no known {attribute}.",
            )


def _documents(count: int) -> str:
    return "1 document" if count == 1 else f"{count} documents"


def _queries(count: int) -> str:
    return "1 query" if count == 1 else f"{count} queries"


def depth_of(measures: Iterable[Measure]) -> int | None:
    """Return the deepest cut-off of measures of groups; None for the whole list."""
    deepest = 0
    for measure in factors(measures):
        if Need.GROUPS in measure.needs:
            if measure.k is None:
                return None
            deepest = max(deepest, measure.k)
    return deepest or None


def _attributes(measures: Iterable[Measure]) -> Iterator[str]:
    for measure in factors(measures):
        if attribute := getattr(measure, "attribute", None):
            yield attribute
