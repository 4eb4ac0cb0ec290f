"""The commands ``fairqr attach`` and ``source``: search engines that the user already runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.base.errors import InputError, SourceError, one_line
from fairqr.cli.common import run
from fairqr.cli.options import command
from fairqr.cli.output import Printed, fact_lines, row_lines, table
from fairqr.cli.progress import Progress
from fairqr.retrieval.sources.source import Source, is_source_file, load_source

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairqr.retrieval.engines.report import AttributeReport, SourceReport
    from fairqr.retrieval.sources.catalog import Catalog

source = typer.Typer()

MOST_VALUES = 20
"""How many values of an attribute are shown; ``--json`` has all that were checked."""

MOST_GROUPS = 12
"""How many groups with their shares fit in a line."""

LONGEST_VALUE = 40


def attach(
    file: Annotated[
        Path | None, typer.Argument(help="A source file, such as people.source.yaml.")
    ] = None,
    *,
    draft: Annotated[
        bool, typer.Option("--draft", help="Write a source file from the mapping of an index.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help=(
                "With --draft: the Elasticsearch or OpenSearch server. [default: "
                "FAIRQR_ELASTICSEARCH_URL]"
            ),
        ),
    ] = None,
    index: Annotated[
        str | None, typer.Option("--index", help="With --draft: an index, an alias, or a pattern.")
    ] = None,
    credentials: Annotated[
        str | None,
        typer.Option(
            "--credentials", help="With --draft: an entry [credentials.NAME] of the settings file."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="With --draft: the file to write. [default: stdout]"),
    ] = None,
) -> Printed:
    """Attach a search engine as a source file describes it: check the file, and register its name.

    Nothing is ever written to the engine. The file stays where it is, so that edits take effect.
    """
    if draft:
        if file:
            raise InputError("FILE cannot be combined with --draft; leave it ")
        return _draft(url, index, credentials, output)
    if url or index or credentials or output:
        raise InputError("--url, --index, --credentials and --output need --draft; add it.")
    if file is None:
        raise InputError("An attachment needs a source file; name one, or write one with --draft.")

    source = load_source(file)
    name = source.name
    catalog = open_catalog()
    # The check may take long, so we refuse a name that is taken before it; the catalog itself
    # refuses the name of another source.
    if name in catalog.sources():
        catalog.attach(file)
    catalog.refuse_taken_by_others(name, file)
    report = _check(source)
    catalog.attach(file)
    attached = f"{name}: attached; search it with --corpus {name}"
    return Printed(report, [*report_lines(report), attached])


def open_catalog() -> Catalog:
    """Return the catalog of all that can be searched by name."""
    from fairqr.retrieval.sources import catalog

    return catalog.Catalog()


def _draft(
    url: str | None, index: str | None, credentials: str | None, output: Path | None
) -> Printed:
    """Write a source file for an index, or print it."""
    from fairqr.base.files import write_beside
    from fairqr.retrieval.engines.elasticsearch.drafting import draft

    if index is None:
        raise InputError("--draft needs the index to describe; name it with --index.")
    if output is not None and output.exists():
        raise InputError(f"{output} exists already; delete it, or name another file with --output.")
    text = run(draft(url, index, credentials))
    if output is None:
        return Printed({"draft": text}, text.splitlines())
    write_beside(output, text)
    advice = f"written: {output}; read it, change what is wrong, then: fairqr attach {output}"
    return Printed({"written": str(output)}, [advice])


@command(source, "list")
def list_sources() -> Printed:
    """List the attached sources, and the files that describe them."""
    rows: list[dict[str, str | None]] = []
    for name, path in open_catalog().sources().items():
        row: dict[str, str | None] = {"name": name, "file": str(path), "engine": None}
        try:
            row["engine"] = load_source(path).engine
        except SourceError as error:
            row["error"] = str(error)
        rows.append(row)
    cells = [(row["name"], row["engine"], row.get("error") or row["file"]) for row in rows]
    return Printed({"sources": rows}, row_lines(cells))


@command(source, "check")
def check_source(
    source: Annotated[str, typer.Argument(help="An attached source, or a source file.")],
) -> Printed:
    """Show what a source holds: its fields, labels and their counts, and what its engine can do."""
    if is_source_file(source):
        description = load_source(Path(source))
    else:
        description, *_ = open_catalog().source(source)
    report = _check(description)
    return Printed(report, report_lines(report))


@command(source, "remove")
def remove_source(
    name: Annotated[str, typer.Argument(help="The name of an attached source.")],
) -> None:
    """Forget the name of a source; its file and its engine stay as they are."""
    open_catalog().detach(name)
    typer.echo(f"{name}: no longer attached")


def _check(source: Source) -> SourceReport:
    """Ask the engine of a source what it holds; a bar shows how far that is."""
    from fairqr.retrieval.engines.opening import check_source

    with Progress() as progress:
        return run(check_source(source, progress=progress.prepare))


def report_lines(report: SourceReport) -> Iterator[RenderableType]:
    """Yield the lines of the check of a source; remarks come last, where users see them."""
    version = f" {report.version}" if report.version else ""
    yield f"{report.name}: {report.engine}{version} at {report.location}"
    abilities = ", ".join(report.capabilities).replace("_", " ")
    yield from fact_lines(
        {
            "documents": report.documents,
            "besides searching, the engine offers": abilities or "nothing",
        }
    )
    for attribute in report.attributes:
        yield from _attribute_lines(attribute)
    if report.sample_query:
        yield from _sample_lines(report)
    for remark in report.remarks:
        yield f"note: {remark}"


def _attribute_lines(attribute: AttributeReport) -> Iterator[RenderableType]:
    """Yield how many documents have a group of an attribute, and its values."""
    labelled = attribute.labelled
    documents = attribute.documents
    share = f" ({labelled / documents:.1%})" if documents else ""
    yield (
        f"{attribute.name}, from {attribute.origin}: {labelled:,} of {documents:,} documents "
        f"have a group{share}"
    )
    rows = []
    for value in attribute.values[:MOST_VALUES]:
        group = value.group or "belongs to no group"
        rows.append((one_line(value.value, LONGEST_VALUE), value.documents, group))
    yield table(("", "", ""), rows)
    if len(attribute.values) > MOST_VALUES:
        yield "  and more values"


def _sample_lines(report: SourceReport) -> Iterator[str]:
    """Yield what the engine found for the sample query."""
    yield f"sample query '{report.sample_query}': {len(report.sample)} hits"
    for rank, hit in enumerate(report.sample, start=1):
        groups = [shares_in_words(shares) or "unknown" for shares in hit.groups.values()]
        yield f"  {rank}. {hit.title or hit.id} ({hit.score:.3f}): {'; '.join(groups)}"


def shares_in_words(shares: Mapping[str, float | None]) -> str:
    """Return groups with their shares, if there are several groups and all shares exist.

    If there are many groups, the first are named; an attribute without any is open.
    """
    if not shares:
        return "each value is a group"
    has_figures = len(shares) > 1 and None not in shares.values()
    if has_figures:
        texts = [f"{group} {share:.1%}" for group, share in shares.items()]
    else:
        texts = list(shares)
    others = len(texts) - MOST_GROUPS
    # One other group would take no more room than its name.
    if others > 1:
        texts = [*texts[: MOST_GROUPS - 1], f"{others} others", texts[-1]]
    return ", ".join(texts)
