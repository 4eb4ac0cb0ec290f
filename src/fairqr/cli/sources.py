"""What is searched: the commands ``fairqr attach``, ``source``, ``index``, ``corpus``, ``dataset``.

An attached source is a search engine that the user already runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.base.errors import CorpusError, InputError, SourceError, one_line
from fairqr.cli import output as out
from fairqr.cli.common import Searched, run
from fairqr.cli.options import command
from fairqr.cli.output import Printed
from fairqr.cli.progress import Progress
from fairqr.retrieval.sources.source import Source, is_source_file, load_source

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairqr.retrieval.engines.report import SourceReport
    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.corpus import CorpusReport

source, index, dataset = typer.Typer(), typer.Typer(), typer.Typer()
corpus = typer.Typer(callback=lambda: None)  # a group, although it has only one command

VALUES = 20
"""How many values of an attribute are shown; ``--json`` has all that were checked."""

MOST_NAMED = 12
"""So many groups with their shares fit in a line."""

PROBLEMS = 100
"""How many wrong lines of a corpus are shown; ``--json`` has all."""

EXAMPLES = 5
"""How many values of an attribute that belong to no group are shown."""

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
            raise InputError("FILE cannot be combined with --draft; leave it out.")
        return _draft(url, index, credentials, output)
    if url or index or credentials or output:
        raise InputError("--url, --index, --credentials and --output need --draft; add it.")
    if file is None:
        raise InputError("An attachment needs a source file; name one, or write one with --draft.")
    described, catalog = load_source(file), _catalog()
    if described.name in catalog.sources():
        catalog.attach(file)  # refuses the name of another source
    # The check may take long, so refuse a name that is taken before it.
    catalog.refuse_taken_by_others(described.name, file)
    report = _checked(described)
    catalog.attach(file)
    attached = f"{described.name}: attached; search it with --corpus {described.name}"
    return Printed(report, [*report_lines(report), attached])


def _catalog() -> Catalog:
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
    told = f"written: {output}; read it, change what is wrong, then: fairqr attach {output}"
    return Printed({"written": str(output)}, [told])


@command(source, "list")
def list_sources() -> Printed:
    """List the attached sources, and the files that describe them."""
    rows: list[dict[str, str | None]] = []
    for name, path in _catalog().sources().items():
        row: dict[str, str | None] = {"name": name, "file": str(path), "engine": None}
        try:
            row["engine"] = load_source(path).engine
        except SourceError as error:
            row["error"] = str(error)
        rows.append(row)
    shown = [(row["name"], row["engine"], row.get("error") or row["file"]) for row in rows]
    return Printed({"sources": rows}, out.row_lines(shown))


@command(source, "check")
def check_source(
    source: Annotated[str, typer.Argument(help="An attached source, or a source file.")],
) -> Printed:
    """Show what a source holds: its fields, labels and their counts, and what its engine can do."""
    found = load_source(Path(source)) if is_source_file(source) else _catalog().source(source)[0]
    report = _checked(found)
    return Printed(report, report_lines(report))


@command(source, "remove")
def remove_source(
    name: Annotated[str, typer.Argument(help="The name of an attached source.")],
) -> None:
    """Forget the name of a source; its file and its engine stay as they are."""
    _catalog().detach(name)
    typer.echo(f"{name}: no longer attached")


def _checked(source: Source) -> SourceReport:
    from fairqr.retrieval.engines.opening import check_source

    with Progress() as progress:
        return run(check_source(source, progress=progress.prepare))


def report_lines(report: SourceReport) -> Iterator[RenderableType]:
    """Yield the lines of the check of a source; remarks come last, where users see them."""
    version = f" {report.version}" if report.version else ""
    yield f"{report.name}: {report.engine}{version} at {report.location}"
    can = ", ".join(report.capabilities).replace("_", " ")
    yield from out.fact_lines(
        {"documents": report.documents, "besides searching, the engine offers": can or "nothing"}
    )
    for found in report.attributes:
        share = f" ({found.labelled / found.documents:.1%})" if found.documents else ""
        yield (
            f"{found.name}, from {found.origin}: {found.labelled:,} of {found.documents:,} "
            f"documents have a group{share}"
        )
        rows = (
            (one_line(it.value, LONGEST_VALUE), it.documents, it.group or "belongs to no group")
            for it in found.values[:VALUES]
        )
        yield out.table(("", "", ""), rows)
        if len(found.values) > VALUES:
            yield "  and more values"
    if report.sample_query:
        yield f"sample query '{report.sample_query}': {len(report.sample)} hits"
        for rank, hit in enumerate(report.sample, start=1):
            groups = [_shares(shares) or "unknown" for shares in hit.groups.values()]
            yield f"  {rank}. {hit.title or hit.id} ({hit.score:.3f}): {'; '.join(groups)}"
    for remark in report.remarks:
        yield f"note: {remark}"


def _shares(shares: Mapping[str, float | None]) -> str:
    """Return groups with their shares, where these are known; one alone needs no figure.

    Of many groups, the first are named; an attribute without any is open.
    """
    if not shares:
        return "each value is a group"
    named = len(shares) == 1 or None in shares.values()
    texts = [group if named else f"{group} {share:.1%}" for group, share in shares.items()]
    others = len(texts) - MOST_NAMED
    if others > 1:
        texts = [*texts[: MOST_NAMED - 1], f"{others} others", texts[-1]]
    return ", ".join(texts)


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

    found = find_corpus(BUILT_IN.get(str(path), path), schema)
    encoder = open_encoder(vectors) if vectors else None

    async def work() -> None:
        with Progress() as progress:
            bar = progress.prepare(name)
            engine = await _catalog().create(name, found, encoder=encoder, progress=bar)
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
        written = run(_catalog().upsert(name, path, progress=progress.prepare(name)))
    typer.echo(f"{name}: {written} documents written")


@command(index)
def remove(
    name: Annotated[str, typer.Argument(help="The name of the index.")],
    ids: Annotated[list[str], typer.Argument(help="The ids of the documents.")],
) -> None:
    """Remove documents from an index."""
    removed = run(_catalog().remove(name, ids))
    typer.echo(f"{name}: {removed} of {len(ids)} documents removed")


@command(index, "list")
def list_indexes() -> Printed:
    """List what can be searched by name: indexes, attached sources, and the built-in corpora."""
    from fairqr.retrieval.sources.corpus import BUILT_IN

    rows, shown = [], []
    for found in run(_catalog().infos()):
        if isinstance(found, tuple):
            row = dict(zip(("name", "engine", "error"), found, strict=True))
        else:
            row = dataclasses.asdict(found)
        rows.append(row)
        size = "" if row.get("documents") is None else f"{row['documents']} documents"
        shown.append((row["name"], row["engine"], size, row.get("error") or row["source"]))
    taken = {row["name"] for row in rows}
    later = "indexed when it is first searched"
    shown += [(name, "built in", "", later) for name in BUILT_IN if name not in taken]
    return Printed(rows, out.row_lines(shown))


@command(index)
def info(
    name: Annotated[str, typer.Argument(help="The name of the index.")],
) -> Printed:
    """Show an index: its documents, its attributes and the share of each group."""
    found = run(_described(name))
    told = {**found, "attributes": {key: _shares(it) for key, it in found["attributes"].items()}}
    return Printed(found, out.fact_lines(told))


async def _described(name: str) -> dict[str, Any]:
    """Describe an index; shares are None if its engine cannot count them."""
    async with Searched(corpus=name, retriever="bm25").opened() as engine:
        found = dataclasses.asdict(await engine.info())
        counts = "corpus_shares" in engine.capabilities
        shares = await engine.corpus_shares() if counts else {}
    found["attributes"] = {}
    for name, attribute in engine.schema.attributes.items():
        groups = attribute.listed
        known = shares[name].tolist() if name in shares else [None] * len(groups)
        found["attributes"][name] = dict(zip(groups, known, strict=True))
    return found


@command(index)
def delete(
    name: Annotated[str, typer.Argument(help="The name of the index.")],
) -> None:
    """Delete an index."""
    run(_catalog().delete(name))
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

    found = find_corpus(BUILT_IN.get(str(path), path), schema)
    report = run(check_corpus(found))
    told = {
        name: _shares(known | {"unknown": max(0.0, 1 - sum(known.values()))})
        for name, known in report.shares.items()
    }
    lines = [f"line {line}: {what}" for line, what in report.problems[:PROBLEMS]]
    data = {
        "path": str(found.path),
        "documents": report.documents,
        "shares": report.shares,
        "without_group": report.without_group,
        "problems": [{"line": line, "problem": what} for line, what in report.problems],
    }
    error = None
    if report.problems:
        wrong = out.quantity(len(report.problems), "line")
        error = CorpusError(f"{wrong} of {found.path} must be fixed before it can be indexed.")
    elif not report.documents:
        error = CorpusError(f"The corpus {found.path} is empty; it needs a document.")
    lines += out.fact_lines({"documents": report.documents, **told})
    lines += _without_group_lines(report)
    return Printed(data, lines, error=error)


def _without_group_lines(report: CorpusReport) -> Iterator[str]:
    """Yield a line for each attribute with values that belong to no group, with examples."""
    for name, counts in report.without_group.items():
        if not counts:
            continue
        ordered = sorted(counts, key=lambda value: -counts[value])
        examples = [one_line(value, LONGEST_VALUE) for value in ordered[:EXAMPLES]]
        more = ", …" if len(ordered) > EXAMPLES else ""
        remedy = "list them under 'groups'"
        if report.schema.attribute(name).has_ranges:
            remedy = "if they are dates, state their form under 'dates', such as epoch_millis"
        yield (
            f"note: Values of {name} that belong to no group and count as unknown: "
            f"{', '.join(examples)}{more}; {remedy}."
        )


@command(dataset, "list")
def list_collections() -> Printed:
    """List the built-in and the imported collections."""
    from fairqr.evaluation.collections import finding

    rows = finding.list_collections()
    return Printed(rows, [out.listing(rows, "name", "kind", "documents", "splits", "problem")])


@command(dataset, "info")
def describe(
    name: Annotated[str, typer.Argument(help="The name of a collection, or its folder.")],
    *,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", help="Which judgements to use, if there are several sets: train or eval."
        ),
    ] = None,
) -> Printed:
    """Show what a collection holds: its sizes, groups, coverage of labels, and targets."""
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.collections.statistics import describe_collection

    with Progress() as progress:
        collection = find_collection(name, split)
        found = describe_collection(collection, progress.count(f"reading {collection.name}"))
    about = collection.about.model_dump(exclude_defaults=True)
    data = {**found, "folder": str(collection.folder), "about": about}
    parts = {"name", "title", "attributes", "relevant", "topics_without_relevant"}
    told = {name: value for name, value in data.items() if name not in parts}
    low, middle, high = found["relevant"]
    told["relevant of a topic"] = f"{low:,} to {high:,}, {middle:,g} in the median"
    without = found["topics_without_relevant"]
    told["topics without a relevant document"] = without[:10] or None
    told["more of these topics"] = len(without[10:]) or None
    lines: list[Any] = [f"{found['name']}: {found['title']}", *out.fact_lines(told)]
    for name, it in found["attributes"].items():
        columns = {"documents": it["corpus"]}
        columns |= {of: it[of] or {} for of in ("relevant", "population", "target")}
        rows = (
            (group, *(out.percent(shares.get(group), 2) for shares in columns.values()))
            for group in it["corpus"]
        )
        lines += ["", out.table([name, *map(out.number, columns)], rows)]
        of_topics = f"target: the mean over {it['target_topics']} topics"
        lines.append(of_topics if it["target"] else f"no target: {it['no_target']}")
    return Printed(data, lines)


@command(dataset, "import")
def import_(
    loader: Annotated[
        str,
        typer.Argument(
            help=(
                "trec-fair-2021, trec-fair-2022, trec-fair-2022-all (with the track's other "
                "dimensions), trec2022-subset or jsonl."
            )
        ),
    ],
    paths: Annotated[list[Path], typer.Argument(help="The files, or the folder with them.")],
    *,
    name: Annotated[str, typer.Option("--name", help="The name of the collection.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a collection of that name.")
    ] = False,
) -> None:
    """Import files as a collection."""
    from fairqr.evaluation.collections.finding import import_collection

    with Progress() as progress:
        counter = progress.count(f"importing {name}")
        folder, held = import_collection(loader, paths, name, replace=replace, progress=counter)
    out.say([f"{name}: imported into {folder}", *(f"  {line}" for line in held)])
