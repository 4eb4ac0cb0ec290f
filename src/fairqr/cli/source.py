"""The commands ``fairqr attach`` and ``fairqr source …``: search engines of the user."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.base.errors import InputError
from fairqr.cli.common import AsJson, print_json, print_row, printable, run
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.retrieval.engines.report import SourceReport
    from fairqr.retrieval.sources.source import Source

app = typer.Typer()

Name = Annotated[str, typer.Argument(help="The name of an attached source.")]


def attach(
    file: Annotated[
        Path | None, typer.Argument(help="A source file, such as people.source.yaml.")
    ] = None,
    draft: Annotated[
        bool, typer.Option("--draft", help="Write a source file from the mapping of an index.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            help="With --draft: the Elasticsearch or OpenSearch server. [default: "
            "FAIRQR_ELASTICSEARCH_URL]",
            metavar="URL",
        ),
    ] = None,
    index: Annotated[
        str | None, typer.Option(help="With --draft: an index, an alias, or a pattern.")
    ] = None,
    credentials: Annotated[
        str | None,
        typer.Option(help="With --draft: an entry [credentials.NAME] of the settings file."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="With --draft: the file to write. [default: stdout]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attach a search engine as a source file describes it: check the file, and register its name.

    Nothing is ever written to the engine. The file stays where it is, so that edits take effect.
    """
    if draft:
        _refuse({"FILE": file, "--json": as_json}, "cannot be combined with --draft; leave it out.")
        if index is None:
            raise InputError("--draft needs the index to describe; name it with --index.")
        _draft(url, index, credentials, output)
        return
    of_draft = {"--url": url, "--index": index, "--credentials": credentials, "--output": output}
    _refuse(of_draft, "needs --draft; add --draft, or leave it out.")
    if file is None:
        raise InputError("An attachment needs a source file; name one, or write one with --draft.")
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.corpus import BUILT_IN
    from fairqr.retrieval.sources.source import load_source

    source, catalog = load_source(file), Catalog()
    if source.name in (*BUILT_IN, *catalog.names()):
        # The check may take long, so refuse a name that is taken before it.
        catalog.attach(file)
    report = _checked(source)
    catalog.attach(file)
    _show(report, as_json=as_json)
    if not as_json:
        typer.echo(f"{source.name}: attached; search it with --corpus {source.name}")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the attached sources, and the files that describe them."""
    from fairqr.base.errors import SourceError
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.source import load_source

    rows: list[dict[str, str | None]] = []
    for name, path in Catalog().sources().items():
        row: dict[str, str | None] = {"name": name, "file": str(path), "engine": None}
        try:
            row["engine"] = load_source(path).engine
        except SourceError as error:
            row["error"] = str(error)
        rows.append(row)
    if as_json:
        print_json({"sources": rows})
        return
    for row in rows:
        print_row(str(row["name"]), row["engine"] or "", row.get("error") or str(row["file"]))


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Print the file that describes a source, to keep or change a copy of it."""
    from fairqr.retrieval.sources.catalog import Catalog

    source, path = Catalog().source(name)
    if as_json:
        print_json(source.model_dump_json(exclude_defaults=True))
    else:
        text = path.read_text(encoding="utf-8")
        if sys.stdout.isatty():  # A copy in a file stays exact.
            text = "\n".join(map(printable, text.split("\n")))
        typer.echo(text, nl=False)


@app.command()
def check(
    source: Annotated[str, typer.Argument(help="An attached source, or a source file.")],
    as_json: AsJson = False,
) -> None:
    """Show what a source holds: its fields, labels and their counts, and what its engine can do."""
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.source import is_source_file, load_source

    found = load_source(Path(source)) if is_source_file(source) else Catalog().source(source)[0]
    _show(_checked(found), as_json=as_json)


@app.command()
def remove(name: Name) -> None:
    """Forget the name of a source; its file and its engine stay as they are."""
    from fairqr.retrieval.sources.catalog import Catalog

    Catalog().detach(name)
    typer.echo(f"{name}: no longer attached")


def _checked(source: Source) -> SourceReport:
    from fairqr.retrieval.engines.opening import check_source

    with Progress() as progress:
        return run(check_source(source, progress=progress.prepare))


def _show(report: SourceReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    from fairqr.cli.source_report import lines_of

    for line in lines_of(report):
        typer.echo(printable(line))


def _draft(url: str | None, index: str, credentials: str | None, output: Path | None) -> None:
    from fairqr.base.files import write_beside
    from fairqr.retrieval.engines.elasticsearch.attaching import draft

    if output is not None and output.exists():
        raise InputError(f"{output} exists already; delete it, or name another file with --output.")
    text = run(draft(url, index, credentials))
    if output is None:
        typer.echo(text, nl=False)
        return
    write_beside(output, text)
    typer.echo(f"written: {output}; read it, change what is wrong, then: fairqr attach {output}")


def _refuse(options: Mapping[str, object], sentence: str) -> None:
    for name, value in options.items():
        if value not in (None, False):
            raise InputError(f"{name} {sentence}")
