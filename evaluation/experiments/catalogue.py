"""Experiments of all kinds: those that come with fairqr, files of the user's own, and results."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from fairqr.base.errors import InputError, one_line
from fairqr.base.extras import library
from fairqr.base.files import write_beside
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.evaluation.probes.specification import (
    LISTWISE_KIND,
    LORA_KIND,
    PAIRWISE_KIND,
    ListwiseExperiment,
    LoraExperiment,
    PairwiseExperiment,
)
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.retrieval.sources.schema import validated

if TYPE_CHECKING:
    from pandas import DataFrame

    from fairqr.evaluation.reports.writer import Figure

FILES = Path(__file__).parent / "files"
SHIPPED = sorted(path.stem for path in FILES.glob("*.yaml"))
"""The names of the experiments that come with fairqr."""

SMALL = "small"
"""What a file may say beside the experiment: the values of its small form, which gives a first
answer in minutes."""

SEARCH = "search"
FAIR_RAG = "fair_rag"


class ExperimentKind(NamedTuple):
    """A kind of experiments.

    Attributes:
        spec: What a file describes.
        module: Has the functions ``run``, which takes an experiment and how to run it, and
            ``measure``, which takes the folder of a run.
        models: The value of a specification that names the models.
        collections: The value that names the collections.
        attribute: The value that names the attribute of the groups.
    """

    spec: type[Any]
    module: str
    models: str = "model"
    collections: str = "collection"
    attribute: str = "attribute"

    @property
    def code(self) -> Any:
        """The module, which takes long to import."""
        return import_module(f"fairqr.evaluation.{self.module}")


KINDS: Mapping[str, ExperimentKind] = {
    SEARCH: ExperimentKind(Experiment, "experiments.running", attribute="attributes"),
    FAIR_RAG: ExperimentKind(
        FairRagExperiment, "rag.running", "generators", "collections", "group_aware"
    ),
    LISTWISE_KIND: ExperimentKind(ListwiseExperiment, "probes.running", "rankers"),
    PAIRWISE_KIND: ExperimentKind(PairwiseExperiment, "probes.running", "models"),
    LORA_KIND: ExperimentKind(LoraExperiment, "probes.running"),
}
"""The kinds of experiments, by the ``kind`` in their files; without one it is ``search``."""


class ExperimentFile(NamedTuple):
    """An experiment as a file describes it."""

    path: Path
    kind: ExperimentKind
    values: Mapping[str, Any]

    def spec(self, changes: Mapping[str, Any] | None = None, *, small: bool = False) -> Any:
        """Return the experiment, an object of the class that its kind has.

        Args:
            changes: Values that replace the file's; a mapping replaces single entries.
            small: Take its small form; the changes outrank it.

        Raises:
            InputError: The file is wrong, or has no small form; the message says where and why.
        """
        values = {name: value for name, value in self.values.items() if name != SMALL}
        if small:
            small_form = self.values.get(SMALL)
            if not isinstance(small_form, Mapping):
                raise InputError(
                    f"The experiment {self.path} has no small form; leave out --small."
                )
            _change(values, small_form)
        _change(values, changes or {})
        return validated(self.kind.spec, values, f"The experiment {self.path}", InputError)


def _change(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Replace values; of a mapping, single entries."""
    for name, value in changes.items():
        earlier = values.get(name)
        if isinstance(value, Mapping) and isinstance(earlier, Mapping):
            values[name] = {**earlier, **value}
        else:
            values[name] = value


def read_experiment(name: str | Path) -> ExperimentFile:
    """Read an experiment that comes with fairqr, or a file.

    Raises:
        InputError: There is no such file, or it is not an experiment.
    """
    path = FILES / f"{name}.yaml" if name in SHIPPED else Path(name)
    if not path.is_file():
        raise InputError(
            f"There is no experiment '{one_line(name)}'; name a YAML file, or one of "
            f"{', '.join(SHIPPED)}."
        )
    values = load_yaml(path, "experiment", InputError)
    kind = str(values.get("kind", SEARCH)) if isinstance(values, dict) else ""
    if kind not in KINDS:
        kinds = ", ".join(KINDS)
        raise InputError(f"The experiment {path} has no kind; write 'kind: ' and one of {kinds}.")
    return ExperimentFile(path, KINDS[kind], values)


class ExperimentResults(ABC):
    """The results of an experiment.

    Attributes:
        frame_names: The names of the attributes that are DataFrames.
        template: The name of the report's template.
        report: The module with ``values_of``, what its template alone shows, and ``figures_of``.
        manifest: What it was run with.
    """

    frame_names: ClassVar[tuple[str, ...]]
    template: ClassVar[str]
    report: ClassVar[str]
    manifest: Any

    @property
    def frames(self) -> dict[str, DataFrame]:
        """All frames, by name."""
        return {name: getattr(self, name) for name in self.frame_names}

    @property
    @abstractmethod
    def table(self) -> DataFrame:
        """The value of each measure, a row for each."""

    def write(self, folder: Path) -> Path:
        """Write the table into a folder, as ``measures.csv``."""
        path = folder / "measures.csv"
        write_beside(path, self.table.to_csv(index=False, lineterminator="\n"))
        return path

    @property
    def spec(self) -> Any:
        """The experiment, with the changes that the command made."""
        return self.manifest.experiment

    @property
    def kind(self) -> str:
        """The kind of experiment, such as ``search`` or ``fair_rag``."""
        return str(self.spec.kind)

    @property
    def plots(self) -> dict[str, Figure]:
        """The figures of the report, by name; a notebook shows them, and ``svg`` is the drawing.

        Raises:
            InputError: matplotlib is not installed.
        """
        return {figure.name: figure for figure in import_module(self.report).figures_of(self)}

    @property
    def shown(self) -> dict[str, Any]:
        """What the template shows: the same of all kinds, and what the module adds."""
        return {
            "title": self.spec.title,
            "about": self.spec.about,
            "experiment": self.spec,
            "manifest": self.manifest,
            "measured": self,
            **import_module(self.report).values_of(self),
        }

    def write_report(self, folder: Path) -> list[Path]:
        """Write the report with its figures, and the table; equal results give equal files.

        Returns:
            The files that were written.

        Raises:
            InputError: An extra is not installed.
        """
        from fairqr.evaluation.reports.writer import write_report

        table = self.write(folder)
        figures = [*self.plots.values()]
        return [*write_report(folder, self.template, self.shown, figures), table]


def load_experiment(folder: str | Path) -> ExperimentResults:
    """Measure the results that a run of ``fairqr experiment run`` has so far.

    Args:
        folder: The folder of the run.

    Raises:
        InputError: There is no run, or one of another version; it has no results yet, what it was
            run on has changed, or pandas is not installed.
    """
    library("pandas", "Measuring a run")
    kind = KINDS[SEARCH]
    # Where there is nothing to be read, the class that opens the folder says what is wrong.
    with contextlib.suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
        settings = json.loads((Path(folder) / "experiment.json").read_bytes())
        kind = KINDS[settings["experiment"]["kind"]]
    measured: ExperimentResults = kind.code.measure(Path(folder))
    return measured
