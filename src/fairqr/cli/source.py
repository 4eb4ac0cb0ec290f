"""The commands ``fairqr attach`` and ``fairqr source …``: search engines of the user."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairqr.base.errors import InputError, one_line
from fairqr.cli.common import run
from fairqr.cli.options import command
from fairqr.cli.output import Printed, printable, row_lines
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.retrieval.engines.report import AttributeReport, SampleHit, SourceReport
    from fairqr.retrieval.sources.source import Source

app = typer.Typer()

VALUES = 20
"""How many values of an attribute are shown; ``--json`` has all that were checked."""

LONGEST_VALUE = 40

ABILITIES = {
    "rescore": "score given documents",
    "document_frequencies": "count matches",
    "corpus_shares": "count groups",
    "within_group": "search within a group",
    "vectors": "search by vectors",
}


def attach(
    file: Path | None = None,
    *,
    draft: bool = False,
    url: str | None = None,
    index: str | None = None,
    credentials: str | None = None,
    output: Path | None = None,
    as_json: bool = False,
) -> Printed | None:
    """Attach a search engine as a source file describes it: check the file, and register its name.

    Nothing is ever written to the engine. The file stays where it is, so that edits take effect.

    Args:
        file: A source file, such as people.source.yaml.
        draft: Write a source file from the mapping of an index.
        url: With --draft: the Elasticsearch or OpenSearch server. [default:
            FAIRQR_ELASTICSEARCH_URL]
        index: With --draft: an index, an alias, or a pattern.
        credentials: With --draft: an entry [credentials.NAME] of the settings file.
        output: With --draft: the file to write. [default: stdout]
        as_json: Print one JSON object.
    """
    if draft:
        _refuse({"FILE": file, "--json": as_json}, "cannot be combined with --draft; leave it out.")
        if index is None:
            raise InputError("--draft needs the index to describe; name it with --index.")
        _draft(url, index, credentials, output)
        return None
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
    attached = f"{source.name}: attached; search it with --corpus {source.name}"
    return Printed(report, [*report_lines(report), attached])


@command(app)
def list_() -> Printed:
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
    shown = [(row["name"], row["engine"], row.get("error") or row["file"]) for row in rows]
    return Printed({"sources": rows}, row_lines(shown))


@command(app)
def show(name: str, *, as_json: bool = False) -> Printed | None:
    """Print the file that describes a source, to keep or change a copy of it.

    Args:
        name: The name of an attached source.
        as_json: Print one JSON object.
    """
    from fairqr.retrieval.sources.catalog import Catalog

    source, path = Catalog().source(name)
    if as_json:
        return Printed(source.model_dump_json(exclude_defaults=True))
    text = path.read_text(encoding="utf-8")
    if sys.stdout.isatty():  # A copy in a file stays exact.
        text = "\n".join(map(printable, text.split("\n")))
    typer.echo(text, nl=False)
    return None


@command(app)
def check(source: str) -> Printed:
    """Show what a source holds: its fields, labels and their counts, and what its engine can do.

    Args:
        source: An attached source, or a source file.
    """
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.source import is_source_file, load_source

    found = load_source(Path(source)) if is_source_file(source) else Catalog().source(source)[0]
    report = _checked(found)
    return Printed(report, report_lines(report))


@command(app)
def remove(name: str) -> None:
    """Forget the name of a source; its file and its engine stay as they are.

    Args:
        name: The name of an attached source.
    """
    from fairqr.retrieval.sources.catalog import Catalog

    Catalog().detach(name)
    typer.echo(f"{name}: no longer attached")


def _checked(source: Source) -> SourceReport:
    from fairqr.retrieval.engines.opening import check_source

    with Progress() as progress:
        return run(check_source(source, progress=progress.prepare))


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


def report_lines(report: SourceReport) -> Iterator[str]:
    """Yield the lines of the check of a source; remarks come last, where users see them."""
    version = f" {report.version}" if report.version else ""
    if not version and report.engine in ("elasticsearch", "opensearch"):
        version = " (version not visible)"
    yield f"{report.name}: {report.engine}{version} at {report.location}"
    if report.documents is not None:
        yield f"documents: {report.documents:,}"
    can = [ABILITIES[ability] for ability in ABILITIES if ability in report.capabilities]
    yield f"the engine can: {', '.join(can) or 'only search'}"
    for attribute in report.attributes:
        yield from _attribute(attribute)
    if report.sample_query:
        yield f"sample query '{report.sample_query}': {len(report.sample)} hits"
        for rank, hit in enumerate(report.sample, start=1):
            yield f"  {rank:>2}  {hit.score:8.3f}  {hit.title or hit.id}  [{_groups(hit)}]"
    for remark in report.remarks:
        yield f"note: {remark}"


def _attribute(found: AttributeReport) -> Iterator[str]:
    share = f" ({found.labelled / found.documents:.1%})" if found.documents else ""
    yield (
        f"{found.name}, from {found.origin}: {found.labelled:,} of {found.documents:,} documents "
        f"have a group{share}"
    )
    shown = found.values[:VALUES]
    texts = [one_line(value.value, LONGEST_VALUE) for value in shown]
    width = max(map(len, texts), default=0)
    for text, value in zip(texts, shown, strict=True):
        group = "belongs to no group" if value.group is None else value.group
        yield f"  {text:{width}}  {value.documents:>10,}  {group}"
    if found.more_values or len(found.values) > VALUES:
        yield "  and more values"
    missing = [value for value in found.values[VALUES:] if value.group is None]
    if missing:
        total = sum(value.documents for value in missing)
        yield f"  of those, {len(missing):,} belong to no group, in {total:,} documents"


def _groups(hit: SampleHit) -> str:
    said = [
        "/".join(group if share == 1 else f"{group} {share:.0%}" for group, share in shares.items())
        for shares in hit.groups.values()
    ]
    return ", ".join(one or "unknown" for one in said)
