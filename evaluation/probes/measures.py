"""Measures of probes: relevance, exposure, who wins, and what a tuning changed.

Definitions: Wang et al. 2024, "Do Large Language Models Rank Fairly?", sections 3.2, 3.3 and 5. The
pairs before and after a tuning are the same. Tests and intervals are over queries, each with all of
its answers.
"""

from __future__ import annotations

from pathlib import Path

from fairqr.evaluation.probes.listwise import measure_listwise
from fairqr.evaluation.probes.measured import MeasuredProbe
from fairqr.evaluation.probes.pairwise import measure_pairs
from fairqr.evaluation.probes.specification import LISTWISE_KIND
from fairqr.evaluation.probes.store import ProbeStore


def measure(folder: Path) -> MeasuredProbe:
    """Measure all lists or pairs of a folder, and count the missing ones.

    Raises:
        InputError: The folder holds no run, or a file of it is damaged.
    """
    store = ProbeStore(folder)
    is_listwise = store.manifest().experiment.kind == LISTWISE_KIND
    return measure_listwise(store) if is_listwise else measure_pairs(store)
