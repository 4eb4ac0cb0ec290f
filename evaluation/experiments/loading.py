"""Reading a run from Python: its settings, and all that was measured as DataFrames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fairqr.evaluation.experiments.catalogue import kind_of_folder
from fairqr.evaluation.experiments.kinds import KINDS, AnyExperiment

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["LoadedExperiment", "load_experiment"]


@dataclass(frozen=True)
class LoadedExperiment:
    """An experiment that was run.

    Attributes:
        folder: Of the run.
        kind: What kind of experiment it is, such as ``search`` or ``fair_rag``.
        spec: What was run: the file, with what the command changed.
    """

    folder: Path
    kind: str
    spec: AnyExperiment

    @cached_property
    def frames(self) -> dict[str, DataFrame]:
        """All that was measured, by name; measured when it is first used.

        Raises:
            InputError: The run has no results yet, or what it was run on has changed.
        """
        return KINDS[self.kind].measure(self.folder)


def load_experiment(folder: str | Path) -> LoadedExperiment:
    """Read a run of ``fairqr experiment run``.

    Args:
        folder: Of the run.

    Raises:
        InputError: There is no run, or one of another version.
    """
    kind = KINDS[kind_of_folder(Path(folder))]
    return LoadedExperiment(Path(folder), kind.name, kind.spec_of(Path(folder)))
