"""What ``fairqr audit`` prints at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairqr.cli.common import printable

if TYPE_CHECKING:
    from fairqr.evaluation.audit.finishing import Audit

__all__ = ["print_summary"]


def print_summary(audit: Audit, folder: Path) -> None:
    """Print the findings in plain words, where the report is, and the digest."""
    for sentence in audit.findings:
        typer.echo(printable(sentence))
    typer.echo(f"report: {folder / 'report.html'}")
    typer.echo(f"digest: {audit.digest}")
