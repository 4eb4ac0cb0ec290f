"""The commands ``fairqr corpus …``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

from fairqr.base.errors import CorpusError
from fairqr.cli.common import run
from fairqr.cli.options import command
from fairqr.cli.output import Printed, counted

app = typer.Typer(callback=lambda: None)


@command(app)
def check(path: Path, *, schema: Path | None = None) -> Printed:
    """Check each line of a corpus, and show how large each group is.

    Args:
        path: A JSON Lines file, or a folder with one.
        schema: The schema; by default the file beside the corpus.
    """
    from fairqr.retrieval.sources.corpus import BUILT_IN, check_corpus, find_corpus

    corpus = find_corpus(BUILT_IN.get(str(path), path), schema)
    report = run(check_corpus(corpus))
    shares = {
        name: dict(zip(attribute.universe, report.shares[name].tolist(), strict=True))
        for name, attribute in report.schema.attributes.items()
    }

    def lines() -> Iterator[str]:
        for line, what in report.problems:
            yield f"line {line}: {what}"
        if report.problem_count > len(report.problems):
            yield f"and {report.problem_count - len(report.problems)} more lines"
        yield f"{report.documents} documents"
        for name, groups in shares.items():
            listed = ", ".join(f"{group} {share:.1%}" for group, share in groups.items())
            unknown = 1 - sum(groups.values())
            yield f"{name}: {listed}" + (f", unknown {unknown:.1%}" if unknown > 1e-9 else "")

    data = {
        "path": str(corpus.path),
        "documents": report.documents,
        "shares": shares,
        "problem_count": report.problem_count,
        "problems": [{"line": line, "problem": what} for line, what in report.problems],
    }
    error = None
    if report.problem_count:
        wrong = counted(report.problem_count, "line")
        error = CorpusError(f"{wrong} of {corpus.path} must be fixed before it can be indexed.")
    elif not report.documents:
        error = CorpusError(f"The corpus {corpus.path} is empty; it needs a document.")
    return Printed(data, lines(), error=error)
