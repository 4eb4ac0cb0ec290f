"""The measured results of every kind of experiment: DataFrames, a table, a report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fairqr.base.extras import library
from fairqr.base.files import write_beside

if TYPE_CHECKING:
    from pandas import DataFrame

    from fairqr.evaluation.reports.writer import Figure


class Measured(ABC):
    """The results of an experiment.

    Attributes:
        frame_names: The names of the attributes that are DataFrames.
        template: The name of the report's template.
        report: The module with ``values_of``, what the template shows, and ``figures_of``.
        manifest: What it was run with.
        warnings: Sentences for the user.
    """

    frame_names: ClassVar[tuple[str, ...]]
    template: ClassVar[str]
    report: ClassVar[str]
    manifest: Any
    warnings: tuple[str, ...] = ()

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
        library("matplotlib", "A figure")
        return {figure.name: figure for figure in import_module(self.report).figures_of(self)}

    def write_report(self, folder: Path) -> list[Path]:
        """Write the report with its figures, and the table; equal results give equal files.

        Returns:
            The files that were written.

        Raises:
            InputError: An extra is not installed.
        """
        from fairqr.evaluation.reports.writer import write_report

        values = self.write(folder)
        shown = import_module(self.report).values_of(self)
        return [*write_report(folder, self.template, shown, [*self.plots.values()]), values]
