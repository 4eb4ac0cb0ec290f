"""Measuring the run of a probe, of either kind."""

from __future__ import annotations

from fairqr.evaluation.probes.listwise_measures import measure_listwise
from fairqr.evaluation.probes.measured import MeasuredListwise, MeasuredPairwise
from fairqr.evaluation.probes.pairwise_measures import measure_pairwise
from fairqr.evaluation.probes.specification import ListwiseExperiment
from fairqr.evaluation.probes.store import ProbeStore

__all__ = ["measure_listwise", "measure_pairwise", "measure_run"]


def measure_run(store: ProbeStore) -> MeasuredListwise | MeasuredPairwise:
    """Measure what a folder holds; what was not done yet is counted.

    Raises:
        InputError: The folder holds no run, or a file of it is damaged.
    """
    manifest, collections = store.manifest(), store.collections()
    if isinstance(manifest.experiment, ListwiseExperiment):
        return measure_listwise(manifest, collections, store.rankings.read())
    return measure_pairwise(manifest, collections, store.pairs.read())
