"""The report of an experiment."""

from __future__ import annotations

from pathlib import Path

from fairqr.evaluation.experiments.measuring import Measured
from fairqr.evaluation.experiments.store import Store


def write_report(store: Store, measured: Measured) -> list[Path]:
    """Write the report."""
    raise NotImplementedError
