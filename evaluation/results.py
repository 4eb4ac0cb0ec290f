"""The result of an evaluation, and which differences between runs hold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairqr.agents import statistics
from fairqr.base.errors import InputError
from fairqr.evaluation.measures.kinds import TARGET
from fairqr.evaluation.measures.measure import Measure
from fairqr.evaluation.reports.text import csv_of, frame
from fairqr.evaluation.scores import Reason, Score

if TYPE_CHECKING:
    from pandas import DataFrame

ALPHA = 0.05
"""The level at which a difference between runs holds."""

Missing = Literal["zero", "undefined"]


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


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """The values of a measure for a run.

    Attributes:
        measure: The measure.
        values: For each query, its value or the reason why it has none.
        mean: Over the queries with a value; None if there are none.
        interval: Student's interval of the mean; None for too few values.
    """

    measure: Measure
    values: Mapping[str, Score]
    mean: float | None
    interval: statistics.Interval | None

    @classmethod
    def of(cls, measure: Measure, values: Mapping[str, Score]) -> MeasureResult:
        """Return the values with their mean and its interval."""
        defined = np.array([score for score in values.values() if not isinstance(score, Reason)])
        mean = float(defined.mean()) if defined.size else None
        return cls(measure, values, mean, statistics.mean_interval(defined))

    @property
    def count(self) -> int:
        """The number of queries behind the mean."""
        return len(self.defined())

    def defined(self) -> dict[str, float]:
        """Return the values of the queries that have one."""
        return {
            query: score for query, score in self.values.items() if not isinstance(score, Reason)
        }

    def reasons(self) -> dict[str, str]:
        """Return why the other queries have none."""
        return {
            query: str(score) for query, score in self.values.items() if isinstance(score, Reason)
        }

    def undefined(self) -> dict[str, int]:
        """Return how many queries have no value, by reason."""
        return dict(Counter(self.reasons().values()))

    def as_json(self, *, by_query: bool = False) -> dict[str, Any]:
        """Return it as an object for JSON."""
        content = {
            "measure": str(self.measure),
            "mean": self.mean,
            "count": self.count,
            "undefined": self.undefined(),
            "interval": asdict(self.interval) if self.interval else None,
            "higher_is_better": self.measure.kind.higher_is_better,
            "best": self.measure.kind.best,
        }
        if by_query:
            content["values"] = self.defined()
            content["reasons"] = self.reasons()
        return content


@dataclass(frozen=True, slots=True)
class GroupShare:
    """The exposure of a group beside its share of the relevant documents.

    Attributes:
        attribute: The attribute.
        group: The group.
        exposure: Its mean share of the exposure in the first k ranks, by the discount ``log2``.
        relevant: Its mean share of the relevant documents.
        ratio: Exposure / relevant: above 1 the group gets more than its share. Optional.
        low: The lower end of the ratio's 95 % interval; optional, as with few queries.
        high: The upper end.
        queries: Over how many queries: those with a known group among the ranked documents and
            among the relevant ones.
    """

    attribute: str
    group: str
    exposure: float
    relevant: float
    ratio: float | None
    low: float | None
    high: float | None
    queries: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The values of all measures for a run.

    Attributes:
        run: The name of the run.
        queries: The queries measured: all judged ones, or without judgements all of the run.
        results: The result of each measure, by the measure's text.
        target: The target of group measures, and the dimensions that were given one for each query.
        unknown: For each attribute, the schema's policy for documents without a label, which a
            measure can override: ``exclude`` or ``group``.
        missing: How queries missing from the run count in measures of relevance.
        notes: What was left out, is unknown or is missing.
        by_group: The exposure of each group beside its share of the relevant documents.
    """

    run: str
    queries: tuple[str, ...]
    results: Mapping[str, MeasureResult]
    target: str
    unknown: Mapping[str, str]
    missing: Missing
    notes: tuple[Note, ...] = ()
    by_group: tuple[GroupShare, ...] = ()

    @property
    def mean(self) -> dict[str, float | None]:
        """The mean of each measure; None if no query has a value."""
        return {text: result.mean for text, result in self.results.items()}

    @property
    def per_query(self) -> dict[str, dict[str, float]]:
        """For each measure, the values of the queries that have one."""
        return {text: result.defined() for text, result in self.results.items()}

    def compare(self, other: Evaluation) -> Comparisons:
        """Test how this run differs from another by all measures that both have.

        Args:
            other: The baseline, measured with the same judgements and the same target.

        Raises:
            InputError: The other has another target for a measure of both, or no measure of this
                one.
        """
        shared = [result.measure for text, result in self.results.items() if text in other.results]
        has_target = any(TARGET in measure.needs for measure in shared)
        if has_target and other.target != self.target:
            raise InputError(
                f"The runs were measured with two targets, {self.target} and {other.target}; "
                "measure both with one."
            )
        name = f"the other {other.run}" if other.run == self.run else other.run
        return compare(replace(other, run=name), [self])

    def to_frame(self) -> DataFrame:
        """Return a data frame with a row for each query and measure.

        Raises:
            InputError: pandas is not installed.
        """
        return frame(self.rows(), ("run", "query_id", "measure", "value", "reason"))

    def rows(self) -> Iterator[tuple[str, str, str, float | None, str]]:
        """Yield run, query, measure, value, and the reason for a missing value."""
        for measure, result in self.results.items():
            values = result.defined()
            reasons = result.reasons()
            for query in result.values:
                yield self.run, query, measure, values.get(query), reasons.get(query, "")

    def as_json(self, *, by_query: bool = False) -> dict[str, Any]:
        """Return it as an object for JSON."""
        return {
            "run": self.run,
            "queries": len(self.queries),
            "target": self.target,
            "unknown": dict(self.unknown),
            "missing": self.missing,
            "measures": [result.as_json(by_query=by_query) for result in self.results.values()],
            "by_group": [asdict(share) for share in self.by_group],
            "notes": [asdict(note) for note in self.notes],
        }


def values_csv(evaluations: Iterable[Evaluation]) -> bytes:
    """Return the values by query as CSV: one row for each run, query and measure.

    Where ``value`` is empty, ``reason`` says why.
    """
    rows = itertools.chain.from_iterable(evaluation.rows() for evaluation in evaluations)
    return csv_of(frame(rows, ("run", "query", "measure", "value", "reason")))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of two runs.

    Attributes:
        measure: The measure.
        baseline: The name of the run that others are compared with.
        run: The name of the other run.
        difference: The mean of run − baseline; None if no query has a value in both.
        count: The number of queries with a value in both.
        interval: Student's interval of the difference; None for too few queries.
        randomisation: The p value of the paired randomisation test.
        randomisation_corrected: The same, corrected by Holm for all comparisons made.
    """

    measure: Measure
    baseline: str
    run: str
    difference: float | None
    count: int
    interval: statistics.Interval | None
    randomisation: float | None
    randomisation_corrected: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the difference holds: the corrected randomisation test rejects."""
        return self.randomisation_corrected is not None and self.randomisation_corrected <= ALPHA


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Several runs against one.

    Attributes:
        rows: By run, and within it by measure.
        tests: The number of p values in each correction.
    """

    rows: tuple[Comparison, ...]
    tests: int

    def too_few(self, row: Comparison) -> bool:
        """Return whether no difference over so few queries could hold among all these tests."""
        return statistics.too_few(row.count, ALPHA / max(1, self.tests)) and not row.holds

    def sentences(self) -> list[str]:
        """Say for each row whether the difference holds, over how many queries, by which tests."""
        return [self._sentence(row) for row in self.rows]

    def as_json(self) -> dict[str, Any]:
        """Return them as an object for JSON."""
        rows = [asdict(row) | self._derived(row) for row in self.rows]
        return {"alpha": ALPHA, "tests": self.tests, "rows": rows}

    def _derived(self, row: Comparison) -> dict[str, Any]:
        """Return what follows from the figures of a row."""
        return {
            "measure": str(row.measure),
            "holds": row.holds,
            "too_few": self.too_few(row),
            "sentence": self._sentence(row),
        }

    def _sentence(self, row: Comparison) -> str:
        """Say whether the difference of a row holds."""
        if row.difference is None:
            return f"{row.measure}: no query has a value in both {row.run} and {row.baseline}."
        subject = f"{row.measure}: {row.run}"
        queries = "1 query" if row.count == 1 else f"{row.count} queries"
        if row.difference == 0:
            return f"{subject} and {row.baseline} have the same mean over {queries}."
        is_above = row.difference > 0
        side = "above" if is_above else "below"
        higher_is_better = row.measure.kind.higher_is_better
        better = ""
        if higher_is_better is not None:
            better = " (better)" if is_above == higher_is_better else " (worse)"
        if self.too_few(row):
            verdict = "these are too few to show any difference"
        elif row.holds:
            verdict = "the difference holds"
        else:
            verdict = "the difference does not hold"
        return (
            f"{subject} is {abs(row.difference):.4f} {side} {row.baseline}{better} over {queries}; "
            f"{verdict} at {ALPHA} (randomisation {_p(row.randomisation_corrected)}, "
            f"Holm-corrected for {self.tests})."
        )


def compare(baseline: Evaluation, others: Sequence[Evaluation]) -> Comparisons:
    """Compare runs with one, by all measures that were computed for both.

    A difference holds by the paired randomisation test, which is two-sided and assumes nothing
    about the distribution of values, corrected for all comparisons made here, across measures.

    Args:
        baseline: The run that the others are compared with.
        others: Measured with the same judgements, groups and target.

    Raises:
        InputError: No measure was computed for both.
    """
    return compare_pairs([(baseline, other) for other in others])


def compare_pairs(pairs: Sequence[tuple[Evaluation, Evaluation]]) -> Comparisons:
    """Compare the second run of each pair with the first, as :func:`compare` does.

    Raises:
        InputError: No measure was computed for both runs of a pair.
    """
    rows = []
    for baseline, other in pairs:
        shared = [text for text in baseline.results if text in other.results]
        if not shared:
            raise InputError(
                f"No measure was computed for both {baseline.run} and {other.run}: "
                f"{', '.join(baseline.results)}, and {', '.join(other.results)}."
            )
        for text in shared:
            before = baseline.results[text].defined()
            after = other.results[text].defined()
            common = [query for query in before if query in after]
            differences = np.array([after[query] - before[query] for query in common])
            random = statistics.stream(0, f"{baseline.run}\n{other.run}\n{text}")
            row = Comparison(
                baseline.results[text].measure,
                baseline.run,
                other.run,
                difference=float(differences.mean()) if differences.size else None,
                count=differences.size,
                interval=statistics.mean_interval(differences),
                randomisation=statistics.paired_randomisation(differences, random),
            )
            rows.append(row)
    corrected = statistics.corrected_by_holm([row.randomisation for row in rows])
    corrected_rows = [
        replace(row, randomisation_corrected=p) for row, p in zip(rows, corrected, strict=True)
    ]
    return Comparisons(tuple(corrected_rows), tests=sum(p is not None for p in corrected))


def _p(value: float | None) -> str:
    if value is None:
        return "none"
    return f"p = {value:.4f}" if value >= 0.0001 else "p < 0.0001"
