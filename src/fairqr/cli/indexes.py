"""The commands ``fairqr index`` and ``corpus``: documents of the user that we index."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.base.errors import CorpusError, SchemaError, one_line
from fairqr.cli.common import CorpusSettings, run
from fairqr.cli.options import command
from fairqr.cli.output import Printed, fact_lines, quantity, row_lines
from fairqr.cli.progress import Progress
from fairqr.cli.sources import LONGEST_VALUE, open_catalog, shares_in_words

if TYPE_CHECKING:
    from fairqr.retrieval.sources.corpus import CorpusReport

index = typer.Typer()
corpus = typer.Typer(callback=lambda: None)  # a group, although it has only one command

MOST_PROBLEMS = 5
"""How many problems of a corpus are shown; ``--json`` has all lines."""

MOST_EXAMPLES = 5
"""How many values of an attribute that belong to no group are shown."""


@command(index)
def create(
    name: Annotated[str, typer.Argument(help="The name of the index.")],
    path: Annotated[
        Path, typer.Argument(help="A JSON Lines file, a folder with one, or a built-in corpus.")
    ],
    *,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="The schema; by default the one beside the file."),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            "--vectors",
            help=(
                "Also store a vector of each document, made by this encoder, such as minilm. "
                "Without it, the index makes vectors at the first search that needs them."
            ),
        ),
    ] = None,
) -> None:
    """Index a corpus; an index of the same name is replaced once the new one is complete.

    To search an index that you already have on a server, see 'fairqr attach --help'.
    """
    from fairqr.retrieval.encoders.opening import open_encoder
    from fairqr.retrieval.sources.catalog import info_of
    from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus

    source = find_corpus(BUILT_IN.get(str(path), path), schema)
    encoder = open_encoder(vectors) if vectors else None

    async def work() -> None:
        with Progress() as progress:
            bar = progress.prepare(name)
            engine = await open_catalog().create(name, source, encoder=encoder, progress=bar)
        info = await info_of(engine)
        typer.echo(f"{name}: {info.documents} documents in {info.location}")

    run(work())


@command(index)
def add(
    name: Annotated[str, typer.Argument(help="The name of the index.")],
    path: Annotated[Path, typer.Argument(help="A JSON Lines file of documents.")],
) -> None:
    """Add documents to an index; they replace documents with the same ids."""
    with Progress() as progress:
        written = run(open_catalog().upsert(name, path, progress=progress.prepare(name)))
    typer.echo(f"{name}: {written} documents written")


@command(index)
def remove(
    name: Annotated[str, typer.Argument(help="The name of the index.")],
    ids: Annotated[list[str], typer.Argument(help="The ids of the documents.")],
) -> None:
    """Remove documents from an index."""
    removed = run(open_catalog().remove(name, ids))
    typer.echo(f"{name}: {removed} of {len(ids)} documents removed")


@command(index, "list")
def list_indexes() -> Printed:
    """List what can be searched by name: indexes, attached sources, and the built-in corpora."""
    from fairqr.retrieval.sources.corpus import BUILT_IN

    rows = []
    cells = []
    for entry in run(open_catalog().infos()):
        # What cannot be opened has an error in place of its figures.
        if isinstance(entry, tuple):
            row = dict(zip(("name", "engine", "error"), entry, strict=True))
        else:
            row = dataclasses.asdict(entry)
        rows.append(row)
        documents = row.get("documents")
        size = "" if documents is None else f"{documents} documents"
        cells.append((row["name"], row["engine"], size, row.get("error") or row["source"]))

    indexed = {row["name"] for row in rows}
    for name in BUILT_IN:
        if name not in indexed:
            cells.append((name, "built in", "", "indexed when it is first searched"))
    return Printed(rows, row_lines(cells))


@command(index)
def info(
    name: Annotated[str, typer.Argument(help="The name of the index.")],
) -> Printed:
    """Show an index: its documents, its attributes and the share of each group."""
    description = run(_describe(name))
    attributes = {}
    for attribute, shares in description["attributes"].items():
        attributes[attribute] = shares_in_words(shares)
    return Printed(description, fact_lines({**description, "attributes": attributes}))


async def _describe(name: str) -> dict[str, Any]:
    """Describe an index; shares are None if its engine cannot count them."""
    async with CorpusSettings(corpus=name, retriever="bm25").open_engine() as engine:
        description = dataclasses.asdict(await engine.info())
        counts_shares = "corpus_shares" in engine.capabilities
        corpus_shares = await engine.corpus_shares() if counts_shares else {}

    attributes = {}
    for attribute_name, attribute in engine.schema.attributes.items():
        shares = [None] * len(attribute.listed)
        if attribute_name in corpus_shares:
            shares = corpus_shares[attribute_name].tolist()
        attributes[attribute_name] = dict(zip(attribute.listed, shares, strict=True))
    description["attributes"] = attributes
    return description


@command(index)
def delete(
    name: Annotated[str, typer.Argument(help="The name of the index.")],
) -> None:
    """Delete an index."""
    run(open_catalog().delete(name))
    typer.echo(f"{name}: deleted")


@command(corpus)
def check(
    path: Annotated[Path, typer.Argument(help="A JSON Lines file, or a folder with one.")],
    *,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="The schema; by default the file beside the corpus."),
    ] = None,
) -> Printed:
    """Check each line of a corpus, and show how large each group is."""
    from fairqr.retrieval.sources.corpus import BUILT_IN, check_corpus, find_corpus

    source = find_corpus(BUILT_IN.get(str(path), path), schema)
    report = run(check_corpus(source))
    data = {
        "path": str(source.path),
        "documents": report.documents,
        "shares": report.shares,
        "without_group": report.without_group,
        "problems": [{"line": line, "problem": problem} for line, problem in report.problems],
    }
    facts: dict[str, Any] = {"documents": report.documents}
    for attribute, shares in report.shares.items():
        unknown = max(0.0, 1 - sum(shares.values()))
        facts[attribute] = shares_in_words({**shares, "unknown": unknown})
    lines = [*_problem_lines(report), *fact_lines(facts)]
    lines += _without_group_lines(report)

    error: CorpusError | SchemaError | None = None
    if report.problems:
        wrong = quantity(len(report.problems), "line")
        error = CorpusError(f"{wrong} of {source.path} must be fixed before it can be indexed.")
    elif not report.documents:
        error = CorpusError(f"The corpus {source.path} is empty; it needs a document.")
    elif report.absent:
        error = _absent_field_error(report)
    return Printed(data, lines, error=error)


def _problem_lines(report: CorpusReport) -> Iterator[str]:
    """Yield a line for each kind of problem, with the first line of the corpus that has it."""
    lines_by_problem: dict[str, list[int]] = {}
    for line, problem in report.problems:
        lines_by_problem.setdefault(problem, []).append(line)
    shown = [*lines_by_problem.items()][:MOST_PROBLEMS]
    for problem, (line, *others) in shown:
        also = f" (and {quantity(len(others), 'more line')})" if others else ""
        yield f"line {line}: {problem}{also}"
    rest = len(report.problems) - sum(len(lines) for _, lines in shown)
    if rest:
        yield f"and {quantity(rest, 'line')} with other problems"


def _absent_field_error(report: CorpusReport) -> SchemaError:
    """Return an error that says which field of the schema no document has."""
    name = min(report.absent)
    field = report.schema.attribute(name).field
    fields = ", ".join(sorted(report.fields)[:MOST_EXAMPLES]) or "no others than id, title and text"
    return SchemaError(
        f"No document has the field '{field}', in which the schema looks for '{name}'; the "
        f"documents have {fields}."
    )


def _without_group_lines(report: CorpusReport) -> Iterator[str]:
    """Yield a line for each attribute with values that belong to no group, with examples."""
    for name, counts in report.without_group.items():
        if not counts:
            continue
        most_frequent = sorted(counts, key=lambda value: -counts[value])[:MOST_EXAMPLES]
        examples = [one_line(value, LONGEST_VALUE) for value in most_frequent]
        ellipsis = ", …" if len(counts) > MOST_EXAMPLES else ""
        remedy = "list them under 'groups'"
        if report.schema.attribute(name).has_ranges:
            remedy = "if they are dates, state their form under 'dates', such as epoch_millis"
        yield (
            f"note: Values of {name} that belong to no group and count as unknown: "
            f"{', '.join(examples)}{ellipsis}; {remedy}."
        )
