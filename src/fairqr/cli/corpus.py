"""The commands ``fairqr corpus …``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairqr.base.errors import CorpusError
from fairqr.cli.common import AsJson, print_json, run

app = typer.Typer()


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="A JSON Lines file, or a folder with one.")],
    schema: Annotated[
        Path | None, typer.Option(help="The schema; by default the file beside the corpus.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check each line of a corpus, and show how large each group is."""
    from fairqr.retrieval.sources.corpus import BUILT_IN, check_corpus, find_corpus

    corpus = find_corpus(BUILT_IN.get(str(path), path), schema)
    report = run(check_corpus(corpus))
    shares = {
        name: dict(zip(attribute.universe, report.shares[name].tolist(), strict=True))
        for name, attribute in report.schema.attributes.items()
    }
    if as_json:
        found = {
            "path": str(corpus.path),
            "documents": report.documents,
            "shares": shares,
            "problem_count": report.problem_count,
            "problems": [{"line": line, "problem": what} for line, what in report.problems],
        }
        print_json(found)
    else:
        for line, what in report.problems:
            typer.echo(f"line {line}: {what}")
        if report.problem_count > len(report.problems):
            typer.echo(f"and {report.problem_count - len(report.problems)} more lines")
        typer.echo(f"{report.documents} documents")
        for name, groups in shares.items():
            listed = ", ".join(f"{group} {share:.1%}" for group, share in groups.items())
            unknown = 1 - sum(groups.values())
            typer.echo(f"{name}: {listed}" + (f", unknown {unknown:.1%}" if unknown > 1e-9 else ""))
    if report.problem_count:
        lines = "1 line" if report.problem_count == 1 else f"{report.problem_count} lines"
        raise CorpusError(f"{lines} of {corpus.path} must be fixed before it can be indexed.")
    if not report.documents:
        raise CorpusError(f"The corpus {corpus.path} is empty; it needs a document.")
