"""What all probes have when they are measured, and which of their differences are no chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.agents import statistics
from fairqr.agents.ranking.preference import ALPHA
from fairqr.evaluation.experiments.catalogue import ExperimentResults
from fairqr.evaluation.probes.store import ProbeRunManifest

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]
"""A row of a table, by its columns."""


@dataclass(frozen=True)
class MeasuredProbe(ExperimentResults):
    """The results of a probe of any kind.

    Attributes:
        manifest: What it was run with: experiment, collections, prompts.
        missing: How many rankings have not been made, or pairs not been asked about.
    """

    report = "fairqr.evaluation.probes.report"

    manifest: ProbeRunManifest
    missing: int


def judged(tests: DataFrame) -> DataFrame:
    """Return tests with verdicts; all tests on a collection are one family for Holm.

    Args:
        tests: ``collection``, ``n`` (over how many queries), ``difference`` and ``p``, which is
            NaN where there is no test.

    Returns:
        The same with ``tests``, the size of the family, ``p_holm``, and the ``verdict``: ``above``
        or ``below`` if the difference from 0 holds at 5 %, ``too_few`` if no difference could,
        however alike all queries are, ``none`` otherwise, and ``untested``.
    """
    families = tests.astype({"p": float}).groupby("collection", sort=False).p
    corrected = tests.assign(
        tests=families.transform("count"), p_holm=families.transform(_corrected).astype(float)
    )
    few = [statistics.too_few(row.n, ALPHA / max(1, row.tests)) for row in corrected.itertuples()]
    is_clear = corrected.p_holm <= ALPHA
    verdicts = {
        "untested": corrected.p.isna(),
        "above": is_clear & (corrected.difference > 0),
        "below": is_clear,
        "too_few": np.array(few, dtype=bool),
    }
    verdict = np.select([*verdicts.values()], [*verdicts], "none")
    return corrected.assign(verdict=verdict)


def _corrected(p: Any) -> Any:
    """Return a column of p values corrected by Holm; what has none keeps none."""
    import pandas as pd

    known = p.dropna()
    corrected = statistics.corrected_by_holm(list(known))
    return pd.Series(corrected, known.index).reindex(p.index)
