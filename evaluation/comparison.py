"""Which differences between runs hold: paired tests over queries, corrected for their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairqr.base.errors import InputError
from fairqr.base.statistics import (
    PERMUTATIONS,
    Interval,
    corrected_by_holm,
    mean_interval,
    paired_randomisation,
    paired_t,
    stream,
    too_few,
)
from fairqr.evaluation.measures.base import Measure
from fairqr.evaluation.results import Evaluation

__all__ = ["Comparison", "Comparisons", "compare"]


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
        t: The p value of the paired t test; optional.
        randomisation: The p value of the paired randomisation test.
        exact: Whether the randomisation test counted all assignments.
        t_corrected: ``t``, corrected by Holm for all comparisons made.
        randomisation_corrected: ``randomisation``, corrected likewise.
    """

    measure: Measure
    baseline: str
    run: str
    difference: float | None
    count: int
    interval: Interval | None
    t: float | None
    randomisation: float | None
    exact: bool
    t_corrected: float | None
    randomisation_corrected: float | None

    def holds(self, alpha: float) -> bool:
        """Return whether the difference holds: the corrected randomisation test rejects at α."""
        return self.randomisation_corrected is not None and self.randomisation_corrected <= alpha


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Several runs against one.

    Attributes:
        rows: By run, and within it by measure.
        alpha: The level at which a difference holds.
        tests: The number of p values in each correction.
    """

    rows: tuple[Comparison, ...]
    alpha: float
    tests: int

    def too_few(self, row: Comparison) -> bool:
        """Return whether no difference over so few queries could hold among all these tests."""
        return too_few(row.count, self.alpha / max(1, self.tests)) and not row.holds(self.alpha)

    def sentences(self) -> list[str]:
        """Say for each row whether the difference holds, over how many queries, by which tests."""
        return [self._sentence(row) for row in self.rows]

    def as_json(self) -> dict[str, Any]:
        """Return them as an object for JSON."""
        rows = []
        for row, sentence in zip(self.rows, self.sentences(), strict=True):
            interval = asdict(row.interval) if row.interval else None
            named = {name: getattr(row, name) for name in Comparison.__slots__}
            named.update(measure=str(row.measure), interval=interval)
            verdict = {"holds": row.holds(self.alpha), "too_few": self.too_few(row)}
            rows.append({**named, **verdict, "sentence": sentence})
        return {"alpha": self.alpha, "tests": self.tests, "rows": rows}

    def _sentence(self, row: Comparison) -> str:
        if row.difference is None:
            return f"{row.measure}: no query has a value in both {row.run} and {row.baseline}."
        over = "1 query" if row.count == 1 else f"{row.count} queries"
        if row.difference == 0:
            return f"{row.measure}: {row.run} and {row.baseline} have the same mean over {over}."
        direction = "above" if row.difference > 0 else "below"
        up = row.measure.higher_is_better
        better = "" if up is None else f" ({'better' if (row.difference > 0) == up else 'worse'})"
        verdict = "the difference " + ("holds" if row.holds(self.alpha) else "does not hold")
        if self.too_few(row):
            verdict = "these are too few to show any difference"
        t = "no t test" if row.t_corrected is None else f"t test {_p(row.t_corrected)}"
        return (
            f"{row.measure}: {row.run} is {abs(row.difference):.4f} {direction} {row.baseline}"
            f"{better} over {over}; {verdict} at {self.alpha:g} "
            f"(randomisation {_p(row.randomisation_corrected)}, {t}, "
            f"Holm-corrected for {self.tests})."
        )


def compare(
    baseline: Evaluation,
    others: Sequence[Evaluation],
    *,
    alpha: float = 0.05,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
) -> Comparisons:
    """Compare runs with one, by all measures that were computed for both.

    Both tests are two-sided and paired by query. Each is corrected for all comparisons made here,
    across measures. The randomisation test decides whether a difference holds, because it assumes
    nothing about the distribution of values; the t test is for reference.

    Args:
        baseline: The run that the others are compared with.
        others: From the same call of :func:`fairqr.evaluation.evaluate.evaluate_all`.
        alpha: The level, in (0, 1).
        seed: The seed of the randomisation test.
        permutations: How many assignments the randomisation test draws for more than 16 queries.

    Raises:
        InputError: The level is out of range, or scipy is not installed.
    """
    if not 0 < alpha < 1:
        raise InputError(f"The level of a test is between 0 and 1, such as 0.05, not {alpha:g}.")
    drafts: list[dict[str, Any]] = []
    for other in others:
        for text, result in baseline.results.items():
            ours, theirs = result.defined(), other[text].defined()
            common = [query for query in ours if query in theirs]
            differences = np.array([theirs[query] - ours[query] for query in common])
            random = stream(seed, f"{baseline.run}\n{other.run}\n{text}")
            interval = mean_interval(differences, level=1 - alpha)
            tested = paired_randomisation(differences, random, permutations=permutations)
            drafts.append(
                {
                    "measure": result.measure,
                    "baseline": baseline.run,
                    "run": other.run,
                    "difference": float(differences.mean()) if common else None,
                    "count": len(common),
                    "interval": interval,
                    "t": paired_t(differences),
                    "randomisation": tested.p if tested else None,
                    "exact": tested.exact if tested else False,
                }
            )
    t = corrected_by_holm([draft["t"] for draft in drafts])
    randomisation = corrected_by_holm([draft["randomisation"] for draft in drafts])
    rows = tuple(
        Comparison(**draft, t_corrected=by_t, randomisation_corrected=by_randomisation)
        for draft, by_t, by_randomisation in zip(drafts, t, randomisation, strict=True)
    )
    return Comparisons(rows, alpha, sum(p is not None for p in randomisation))


def _p(value: float | None) -> str:
    if value is None:
        return "none"
    return f"p = {value:.4f}" if value >= 0.0001 else "p < 0.0001"
