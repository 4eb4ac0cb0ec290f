"""The report of an experiment, as Markdown and as one HTML file, from the same parts."""

from __future__ import annotations

from fairqr.evaluation.experiments.report.writing import write_report

__all__ = ["write_report"]
