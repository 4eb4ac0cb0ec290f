"""Experiments of all kinds: those that come with fairqr, files of the user's own, and runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import InputError, one_line
from fairqr.base.extras import library
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.experiments.kinds import KINDS, SEARCH, Kind
from fairqr.retrieval.sources.schema import validated

if TYPE_CHECKING:
    from pandas import DataFrame

    from fairqr.evaluation.reports.writer import Figure

FILES = Path(__file__).parent / "files"
SHIPPED = sorted(path.stem for path in FILES.glob("*.yaml"))
"""The names of the experiments that come with fairqr."""

WORKERS, SMALL = "workers", "small"
"""What a file may say beside the experiment: who does the work, which changes no result; and the
values of its small form, which gives a first answer in about two minutes."""


@dataclass(frozen=True, slots=True)
class ExperimentFile:
    """An experiment as a file describes it."""

    path: Path
    kind: Kind
    values: Mapping[str, Any]

    def spec(self, changes: Mapping[str, Any] | None = None, *, small: bool = False) -> Any:
        """Return the experiment, an object of the class that its kind has.

        Args:
            changes: Values that replace the file's; a mapping replaces single entries.
            small: Take its small form; the changes outrank it.

        Raises:
            InputError: The file is wrong, or has no small form; the message says where and why.
        """
        values = {
            name: value for name, value in self.values.items() if name not in (WORKERS, SMALL)
        }
        if small and not isinstance(self.values.get(SMALL), Mapping):
            raise InputError(
                f"The experiment {self.path} has no small form; leave out --small, or write the "
                "values of one as 'small: {topics: 5}'."
            )
        for changed in (self.values[SMALL] if small else {}, changes or {}):
            for name, value in changed.items():
                both = isinstance(value, Mapping) and isinstance(values.get(name), Mapping)
                values[name] = {**values[name], **value} if both else value
        return validated(self.kind.spec, values, f"The experiment {self.path}", InputError)


def read_experiment(name: str | Path) -> ExperimentFile:
    """Read an experiment that comes with fairqr, or a file.

    Raises:
        InputError: There is none of this name, or the file is no experiment.
    """
    path = FILES / f"{name}.yaml" if name in SHIPPED else Path(name)
    if not path.is_file():
        raise InputError(
            f"There is no experiment '{one_line(name)}'; name a YAML file, or one of "
            f"{', '.join(SHIPPED)}."
        )
    values = load_yaml(path, "experiment", InputError)
    if not isinstance(values, dict):
        raise InputError(f"The experiment {path} must be a mapping of names to values; fix it.")
    kind = values.get("kind", SEARCH)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(
            f"The experiment {path} has the unknown kind '{one_line(kind)}'; "
            f"write one of {', '.join(KINDS)}."
        )
    return ExperimentFile(path, KINDS[kind], values)


@dataclass(frozen=True)
class LoadedExperiment:
    """An experiment that was run.

    Attributes:
        kind: The kind of experiment, such as ``search`` or ``fair_rag``.
        spec: The experiment, with the changes that the command made.
    """

    folder: Path
    kind: str
    spec: Any

    @cached_property
    def measured(self) -> Any:
        """All that was measured; measured when it is first used.

        Raises:
            InputError: The run has no results yet, or what it was run on has changed.
        """
        return KINDS[self.kind].measure(self.folder)

    @cached_property
    def frames(self) -> dict[str, DataFrame]:
        """All that was measured, by name."""
        found: dict[str, DataFrame] = self.measured.frames
        return found

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """The plots of the report, by name; a notebook shows them, and ``svg`` is the drawing.

        Raises:
            InputError: As with ``frames``, or matplotlib is not installed.
        """
        library("matplotlib", "A figure")
        return {figure.name: figure for figure in self.measured.draw()}


def load_experiment(folder: str | Path) -> LoadedExperiment:
    """Read a run of ``fairqr experiment run``.

    Args:
        folder: The folder of the run.

    Raises:
        InputError: There is no run, or one of another version.
    """
    if not isinstance(folder, str | Path):
        raise InputError(
            f"The folder of an experiment cannot be of type {type(folder).__name__}; give a path."
        )
    path, kind = Path(folder), KINDS[SEARCH]
    # Where there is nothing to be read, the class that opens the folder says what is wrong.
    with contextlib.suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
        kind = KINDS[json.loads((path / "experiment.json").read_bytes())["experiment"]["kind"]]
    return LoadedExperiment(path, kind.name, kind.store(path).manifest().experiment)
