"""What was measured of a probe or of a tuning, whatever its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairqr.evaluation.probes.listwise_measures import MeasuredListwise, measure_listwise
from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise, measure_pairwise
from fairqr.evaluation.probes.specification import ListwiseExperiment
from fairqr.evaluation.probes.store import ProbeStore
from fairqr.evaluation.probes.tuning_measures import MeasuredLora

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "Measured",
    "frames_of",
    "measure_run",
    "records_of",
    "values_as_csv",
]

Measured = MeasuredListwise | MeasuredPairwise | MeasuredLora


def measure_run(store: ProbeStore) -> MeasuredListwise | MeasuredPairwise:
    """Measure the run of a probe, of either kind; what was not done yet is counted.

    Raises:
        InputError: The folder holds no run, or a file of it is damaged.
    """
    manifest, collections = store.manifest(), store.collections()
    if isinstance(manifest.experiment, ListwiseExperiment):
        return measure_listwise(manifest, collections, store.rankings.read())
    return measure_pairwise(manifest, collections, store.pairs.read())


def values_as_csv(measured: Measured) -> str:
    """Return all values of a run as a CSV file; lists that were not ranked yet are left out."""
    values = measured.values
    if isinstance(measured, MeasuredListwise):
        values = values[values.undefined != "not_run"]
    text: str = values.to_csv(index=False, lineterminator="\n")
    return text


def frames_of(measured: Measured) -> dict[str, DataFrame]:
    """Return all that was measured, as DataFrames by name."""
    names = {
        MeasuredListwise: ("lists", "means", "tests", "events"),
        MeasuredPairwise: ("figures",),
        MeasuredLora: ("figures", "changes", "losses"),
    }
    return {name: getattr(measured, name) for name in names[type(measured)]}


def records_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame for JSON: what has no value is None."""
    found: list[dict[str, Any]] = (
        frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
    )
    return found
