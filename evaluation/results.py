"""The result of an evaluation: values by query, means, and the queries behind each mean."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from fairqr.base.errors import InputError
from fairqr.base.statistics import Interval
from fairqr.evaluation.by_group import GroupShare
from fairqr.evaluation.measures.base import Measure
from fairqr.evaluation.measures.text import parse_measures
from fairqr.evaluation.notes import Note
from fairqr.evaluation.scores import Reason, Score, Undefined

if TYPE_CHECKING:
    import pandas

    from fairqr.evaluation.comparison import Comparisons

__all__ = ["Evaluation", "MeasureResult", "Missing", "csv_text"]

Missing = Literal["zero", "undefined"]


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """The values of a measure for a run.

    Attributes:
        measure: The measure.
        values: By query, its value or the reason why it has none.
        mean: Over the queries with a value; None if there are none.
        interval: Student's interval of the mean; None for too few values.
    """

    measure: Measure
    values: Mapping[str, Score]
    mean: float | None
    interval: Interval | None

    @property
    def count(self) -> int:
        """The number of queries behind the mean."""
        return len(self.defined())

    def defined(self) -> dict[str, float]:
        """Return the values of the queries that have one."""
        return {q: v for q, v in self.values.items() if not isinstance(v, Undefined)}

    def undefined(self) -> dict[Reason, int]:
        """Return how many queries have no value, by reason."""
        reasons = (v.reason for v in self.values.values() if isinstance(v, Undefined))
        return dict(Counter(reasons))

    def as_json(self, *, by_query: bool = False) -> dict[str, Any]:
        """Return it as an object for JSON."""
        found: dict[str, Any] = {
            "measure": str(self.measure),
            "settings": self.measure.settings(),
            "mean": self.mean,
            "count": self.count,
            "undefined": {str(reason): number for reason, number in self.undefined().items()},
            "interval": dataclasses.asdict(self.interval) if self.interval else None,
            "higher_is_better": self.measure.higher_is_better,
            "best": self.measure.best,
        }
        if by_query:
            found["values"] = self.defined()
            found["reasons"] = {
                q: str(v.reason) for q, v in self.values.items() if isinstance(v, Undefined)
            }
        return found


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The values of all measures for a run.

    Attributes:
        run: The name of the run.
        queries: The queries measured: all judged ones, or without judgements all of the run.
        results: The result of each measure, by the measure's text.
        target: The target of group measures, and the dimensions that were given one for each query.
        unknown: By attribute, the schema's policy for documents without a label, which a measure
            can override: ``exclude`` or ``group``.
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
        """By measure, the values of the queries that have one."""
        return {text: result.defined() for text, result in self.results.items()}

    def compare(self, other: Evaluation, *, alpha: float = 0.05, seed: int = 0) -> Comparisons:
        """Test how this run differs from another by all measures that both have.

        Args:
            other: The baseline, measured with the same judgements and the same target.
            alpha: The level at which a difference holds.
            seed: The seed of the randomisation test.

        Raises:
            InputError: The other is no evaluation, or has another target or other measures.
        """
        from fairqr.evaluation.comparison import compare

        if not isinstance(other, Evaluation):
            raise InputError(
                f"A run is compared with what fairqr.evaluate returns for another run, not with "
                f"an object of type {type(other).__name__}."
            )
        if other.target != self.target:
            raise InputError(
                f"The runs were measured with two targets, {self.target} and {other.target}; "
                "measure both with one."
            )
        if other.run == self.run:
            other = replace(other, run=f"the other {other.run}")
        return compare(other, [self], alpha=alpha, seed=seed)

    def to_frame(self) -> pandas.DataFrame:
        """Return a data frame with a row for each query and measure.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InputError(
                "Data frames need pandas; install it with: pip install 'fairqr[evaluation]'"
            ) from None
        return pandas.DataFrame(
            self.rows(), columns=["run", "query_id", "measure", "value", "reason"]
        )

    def rows(self) -> Iterator[tuple[str, str, str, float | None, str]]:
        """Yield run, query, measure, value, and the reason for a missing value."""
        for measure, result in self.results.items():
            for query, score in result.values.items():
                value, why = (None, score.reason) if isinstance(score, Undefined) else (score, "")
                yield self.run, query, measure, value, str(why)

    def __getitem__(self, measure: str | Measure) -> MeasureResult:
        """Return the result of a measure, whose attribute may be left out if there is only one.

        Raises:
            InputError: It was not measured, or for several attributes.
        """
        if str(measure) in self.results:
            return self.results[str(measure)]
        wanted = parse_measures(measure)[0]
        names = [wanted, *map(wanted.with_attribute, self.unknown)]
        found = [text for text in dict.fromkeys(map(str, names)) if text in self.results]
        if len(found) != 1:
            raise InputError(
                f"{measure} was measured for several attributes; write {' or '.join(found)}."
                if found
                else f"{measure} was not measured; the measures are {', '.join(self.results)}."
            )
        return self.results[found[0]]

    def as_json(self, *, by_query: bool = False) -> dict[str, Any]:
        """Return it as an object for JSON."""
        return {
            "run": self.run,
            "queries": len(self.queries),
            "target": self.target,
            "unknown": dict(self.unknown),
            "missing": self.missing,
            "measures": [result.as_json(by_query=by_query) for result in self.results.values()],
            "by_group": [dataclasses.asdict(share) for share in self.by_group],
            "notes": [dataclasses.asdict(note) for note in self.notes],
        }


def csv_text(evaluations: Iterable[Evaluation]) -> str:
    """Return the values by query as CSV: one row for each run, query and measure.

    Where ``value`` is empty, ``reason`` says why.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("run", "query", "measure", "value", "reason"))
    for evaluation in evaluations:
        writer.writerows(evaluation.rows())
    return stream.getvalue()
