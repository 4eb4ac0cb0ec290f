"""Experiments of all kinds: those that come with fairqr, files of the user's own, and runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import InputError, one_line
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.experiments.kinds import KINDS, SEARCH, AnyExperiment, Kind
from fairqr.retrieval.sources.schema import validated

if TYPE_CHECKING:
    from pandas import DataFrame

    from fairqr.evaluation.reports.writer import Figure

FILES = Path(__file__).parent / "files"
SHIPPED = (
    "fair_qr_table",
    "rerank_ablation",
    "iterations",
    "prompts",
    "retrievers",
    "refiners",
    "fair_rag",
    "fair_rag_small",
    "llm_listwise",
    "llm_listwise_small",
    "window_size",
    "window_size_small",
    "llm_pairwise",
    "llm_pairwise_small",
    "lora",
    "lora_small",
)
"""The experiments that come with fairqr, in the order shown to users."""

WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class ExperimentFile:
    """An experiment as a file describes it."""

    path: Path
    kind: Kind
    values: Mapping[str, Any]

    @property
    def workers(self) -> str | int | None:
        """Who is to do the work, as the file says it; None if it does not.

        The workers are no part of the experiment, because they do not change the results.

        Raises:
            InputError: They are neither a number nor a text.
        """
        workers = self.values.get(WORKERS)
        if isinstance(workers, bool) or not isinstance(workers, str | int | None):
            raise InputError(
                f"The workers of the experiment {self.path} are neither a number nor a text; "
                "write 4, ray, ray://local or ray://HOST:PORT."
            )
        return workers

    def spec(self, changes: Mapping[str, Any] | None = None) -> Any:
        """Return the experiment, an object of the class that its kind has.

        Args:
            changes: Values that replace the file's; a mapping replaces single entries.

        Raises:
            InputError: The file is wrong; the message says where and why.
        """
        values = {name: value for name, value in self.values.items() if name != WORKERS}
        for name, value in (changes or {}).items():
            before = values.get(name)
            if isinstance(value, Mapping) and isinstance(before, Mapping):
                value = {**before, **value}
            values[name] = value
        return validated(self.kind.spec, values, f"The experiment {self.path}", InputError)


def read_experiment(name: str | Path) -> ExperimentFile:
    """Read an experiment that comes with fairqr, or a file.

    Raises:
        InputError: There is none of this name, or the file is no experiment.
    """
    path = find_experiment(str(name))
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


def find_experiment(name: str) -> Path:
    """Return the file of an experiment: one that comes with fairqr, or a path.

    Raises:
        InputError: There is none.
    """
    if name in SHIPPED:
        return FILES / f"{name}.yaml"
    path = Path(name)
    if not path.is_file():
        raise InputError(
            f"There is no experiment '{one_line(name)}'; name a YAML file, or one of "
            f"{', '.join(SHIPPED)}."
        )
    return path


def kind_of_folder(folder: Path) -> str:
    """Return the kind of the experiment in a folder; ``search`` if there is none.

    The class that opens the folder then says what is wrong with it.
    """
    try:
        manifest = json.loads((folder / "experiment.json").read_bytes())
        kind = manifest["experiment"].get("kind", SEARCH)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return SEARCH
    return kind if isinstance(kind, str) and kind in KINDS else SEARCH


@dataclass(frozen=True)
class LoadedExperiment:
    """An experiment that was run.

    Attributes:
        kind: The kind of experiment, such as ``search`` or ``fair_rag``.
        spec: The experiment, with the changes that the command made.
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
        return KINDS[self.kind].measure(self.folder).frames

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """The plots of the report, by name; a notebook shows them, and ``svg`` is the drawing.

        Raises:
            InputError: As with ``frames``, or matplotlib is not installed.
        """
        return {figure.name: figure for figure in KINDS[self.kind].figures(self.folder)}


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
    path = Path(folder)
    kind = KINDS[kind_of_folder(path)]
    return LoadedExperiment(path, kind.name, kind.spec_of(path))
