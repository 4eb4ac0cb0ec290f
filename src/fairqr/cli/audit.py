"""The commands ``fairqr audit …``: who gets seen in the results of a search engine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.base.errors import InputError
from fairqr.cli.common import (
    MODELS,
    OUTPUT,
    AsJson,
    Corpus,
    open_to_search,
    print_json,
    printable,
    recorded,
    run,
    warn,
)
from fairqr.cli.parameters import ParameterGroup, Set, options_of
from fairqr.cli.search import Retriever

if TYPE_CHECKING:
    from fairqr.cli.progress import Progress
    from fairqr.cli.running import AuditRunSettings
    from fairqr.evaluation.audit.finishing import Audit
    from fairqr.evaluation.audit.queries import Queries
    from fairqr.evaluation.audit.specification import AuditSpec
    from fairqr.retrieval.engines.engine import SearchEngine
    from fairqr.retrieval.sources.query_files import QueryColumns
    from fairqr.retrieval.sources.source import RunSource

FAILED, DOUBTFUL = 3, 4
"""The exit codes if a condition of ``--fail-if`` holds, and if nobody can tell whether one does."""

app = typer.Typer(invoke_without_command=True)

AuditGroup = ParameterGroup.of(
    "fairqr.evaluation.audit.specification:AuditSpec", "fairqr.cli.running:AuditRunSettings"
)


@app.callback()
def audit(
    ctx: typer.Context,
    corpus: Corpus = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="The queries: one per line, CSV, JSON Lines or TREC topics; may be .gz."),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column that says how often a query was asked.",
            rich_help_panel="Queries",
        ),
    ] = None,
    segment: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column that groups the queries, such as their topic, for figures by segment.",
            rich_help_panel="Queries",
        ),
    ] = None,
    sample: Annotated[int | None, typer.Option(help="{sample}", rich_help_panel="Queries")] = None,
    attribute: Annotated[list[str] | None, typer.Option(help="{attributes}")] = None,
    target: Annotated[list[str] | None, typer.Option(help="{target}")] = None,
    k: Annotated[int | None, typer.Option("-k", help="{k}")] = None,
    depth: Annotated[int | None, typer.Option(help="{depth}", rich_help_panel="Measures")] = None,
    qrels: Annotated[
        Path | None,
        typer.Option(
            help="Judgements in TREC's format; a grade above 0 is relevant. By default relevance "
            "is estimated from texts, once MiniLM is pulled.",
            rich_help_panel="Measures",
        ),
    ] = None,
    run_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            help="Audit this run file in TREC's format, instead of a corpus. Repeatable.",
            rich_help_panel="Run files",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="The groups of the documents of --run: CSV or JSON Lines, with 'id' and a column "
            "for each attribute.",
            rich_help_panel="Run files",
        ),
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(
            help="The texts of the documents of --run, as JSON Lines.", rich_help_panel="Run files"
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="Documents in several versions, to see which version scores higher: CSV or JSON "
            "Lines with query, version, document or text, pair and segment.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    pairs_by: Annotated[str | None, typer.Option(help="{pairs_by}", rich_help_panel=MODELS)] = None,
    retriever: Retriever = "auto",
    rate: Annotated[
        float | None, typer.Option(help="{rate}", rich_help_panel="Load on the engine")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="{concurrency}", rich_help_panel="Load on the engine")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="{seed}", rich_help_panel="Measures")] = None,
    set_: Set = None,
    redact: Annotated[
        bool,
        typer.Option("--redact", help="Replace all queries by pseudonyms.", rich_help_panel=OUTPUT),
    ] = False,
    layout: Annotated[
        str,
        typer.Option(
            help="The order of the report: plain, or as a law asks: ll144 (New York City), dsa or "
            "ai-act (European Union).",
            rich_help_panel=OUTPUT,
        ),
    ] = "plain",
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help='End with code 3 if this holds for any group, such as "impact_ratio < 0.8", and '
            "with 4 if nobody can tell. Repeatable.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    sure: Annotated[
        bool,
        typer.Option(
            "--sure", help="The whole interval must meet a condition.", rich_help_panel=OUTPUT
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The folder; an interrupted audit resumes there."),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="Sign it by this SSH key.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Audit a search engine: who gets seen in its results, and how sure that is."""
    if ctx.invoked_subcommand is not None:
        return
    import asyncio

    from fairqr.cli.progress import Progress
    from fairqr.cli.running import AuditRunSettings
    from fairqr.evaluation.audit.bundle import AuditFolder
    from fairqr.evaluation.audit.conditions import check, parse_condition
    from fairqr.evaluation.audit.outcomes import audit_json
    from fairqr.evaluation.audit.pairs import read_pairs
    from fairqr.evaluation.audit.running import audit_engine
    from fairqr.evaluation.audit.specification import AuditSpec
    from fairqr.evaluation.experiments.kinds import check_pandas
    from fairqr.evaluation.experiments.signing import check_key, sign_folder
    from fairqr.evaluation.qrels import read_qrels
    from fairqr.retrieval.sources.query_files import QueryColumns

    if output is None:
        raise InputError("An audit needs a folder for its results; name one with -o.")
    check_pandas()
    if sign is not None:
        check_key(sign)
    spec, settings = options_of(ctx, set_, AuditSpec, AuditRunSettings)
    conditions = [parse_condition(text) for text in fail_if or []]
    judged = None if qrels is None else read_qrels(qrels)
    versions = None if pairs is None else read_pairs(pairs)
    columns = QueryColumns(settings.query_column, settings.id_column, weight, segment)

    async def work(progress: Progress) -> Audit:
        async with _opened(
            corpus, _run_source(run_file, labels, documents, spec), retriever, settings
        ) as engine:
            asked = await asyncio.to_thread(_asked, queries, columns, spec, engine, progress)
            return await audit_engine(
                spec,
                engine,
                asked,
                AuditFolder(output),
                qrels=judged,
                pairs=versions,
                rate=settings.rate,
                concurrency=settings.concurrency,
                watcher=progress,
                redact=redact,
                layout=layout,
                command=sys.argv[1:],
            )

    with recorded(command="audit"), Progress() as progress:
        found = run(work(progress))
    if sign is not None:
        sign_folder(AuditFolder(output), sign)
    broken, doubtful = check(conditions, found.figures, sure=sure)
    if as_json:
        print_json(audit_json(found).decode())
    else:
        for sentence in found.findings:
            typer.echo(printable(sentence))
        typer.echo(f"report: {output / 'report.html'}")
        typer.echo(f"digest: {found.digest}")
    for sentence in [*broken, *doubtful]:
        warn(printable(sentence))
    if broken or doubtful:
        raise typer.Exit(FAILED if broken else DOUBTFUL)


@contextlib.asynccontextmanager
async def _opened(
    corpus: str | None, source: RunSource | None, retriever: str, settings: AuditRunSettings
) -> AsyncIterator[SearchEngine]:
    """Open the run files or the corpus to audit; defaults to the configured corpus."""
    from fairqr.base.settings import default_corpus
    from fairqr.retrieval.sources.catalog import Catalog

    if source is not None:
        if corpus is not None:
            raise InputError("Audit either --run or --corpus; leave one of them out.")
        engine = await Catalog().resolve(source)
    else:
        searched = default_corpus() if corpus is None else corpus
        engine = await open_to_search(searched, schema=settings.corpus_schema, retriever=retriever)
    async with contextlib.aclosing(engine):
        yield engine


def _run_source(
    runs: list[Path] | None, labels: Path | None, documents: Path | None, spec: AuditSpec
) -> RunSource | None:
    """Return the source that the options describe, or None without a run file.

    Raises:
        InputError: The options do not fit together.
    """
    from fairqr.base.errors import SourceError
    from fairqr.retrieval.fairness.dimension import factors_of
    from fairqr.retrieval.sources.schema import validated
    from fairqr.retrieval.sources.source import RunSource

    if not runs:
        if labels or documents:
            given = "--labels" if labels else "--documents"
            raise InputError(f"{given} needs --run; name the run file, too.")
        return None
    if labels is None or not spec.attributes:
        raise InputError(
            "A run file has no groups; name a file of labels with --labels, and its attributes "
            "with --attribute."
        )
    names = dict.fromkeys(part for name in spec.attributes for part in factors_of(name))
    described = {
        "name": "run",
        "runs": [str(path) for path in runs],
        "documents": None if documents is None else str(documents),
        "attributes": {name: {"labels": str(labels)} for name in names},
        "folder": Path.cwd(),
    }
    return validated(RunSource, described, "The run", SourceError)


def _asked(
    path: Path | None,
    columns: QueryColumns,
    spec: AuditSpec,
    engine: SearchEngine,
    progress: Progress,
) -> Queries:
    """Read the queries, by default those of the run. This blocks."""
    from fairqr.evaluation.audit.queries import collect_queries
    from fairqr.retrieval.engines.run import RunEngine
    from fairqr.retrieval.sources.query_files import QueryRow, query_rows

    if path is not None:
        rows, origin = query_rows(path, columns), f"queries {path}"
    elif not isinstance(engine, RunEngine):
        raise InputError("An audit needs queries; name their file with --queries.")
    elif columns.weight or columns.segment:
        option = "--weight" if columns.weight else "--segment"
        raise InputError(f"{option} names a column of --queries; name their file, too.")
    else:
        rows = (QueryRow(line, id_, id_) for line, id_ in enumerate(engine.rankings, start=1))
        origin = "queries of the run"
    return collect_queries(
        rows,
        sample=spec.sample,
        seed=spec.seed,
        weighted_by=columns.weight,
        origin=origin,
        progress=progress.count("reading queries"),
    )


@app.command("sign")
def sign(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished audit.")],
    key: Annotated[Path, typer.Option(help="The SSH key.")],
) -> None:
    """Sign an audit by an SSH key, so that others can check who published it."""
    from fairqr.evaluation.audit.bundle import AuditFolder
    from fairqr.evaluation.experiments.signing import sign_folder

    typer.echo(f"signature: {sign_folder(AuditFolder(folder), key)}")


@app.command("verify")
def verify(
    folder: Annotated[Path, typer.Argument(help="The folder of an audit.")],
    digest: Annotated[
        str | None, typer.Option(help="The digest that the audit printed at its end.")
    ] = None,
    signed_by: Annotated[
        Path | None, typer.Option(help="Check the signature by this file of allowed signers.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check an audit without its engine: the hashes of all files, and every figure."""
    from dataclasses import asdict

    from fairqr.evaluation.audit.bundle import AuditFolder
    from fairqr.evaluation.audit.finishing import make_again
    from fairqr.evaluation.experiments.verifying import verify as checked

    found = checked(AuditFolder(folder), digest, make_again, signed_by)
    if as_json:
        print_json(asdict(found))
    else:
        for sentence in found.problems:
            warn(printable(sentence))
        if not found.problems:
            fits = ", and the manifest has the digest that you gave" if digest else ""
            typer.echo(f"All {found.files:,} files match the manifest{fits}.")
            typer.echo("All that is checked follows from raw/.")
        if found.signed_by:
            typer.echo(f"signed by: {found.signed_by}")
        for sentence in found.unchecked:
            typer.echo(f"Not checked: {sentence}")
        typer.echo(f"digest: {found.digest}")
    if found.problems:
        raise typer.Exit(FAILED)


@app.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(help="The folder of the earlier audit.")],
    second: Annotated[Path, typer.Argument(help="The folder of the later audit.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write a report into this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed between two audits, over the queries that both asked."""
    from fairqr.evaluation.audit import comparing
    from fairqr.evaluation.audit.bundle import AuditFolder
    from fairqr.evaluation.audit.finishing import read_audit
    from fairqr.evaluation.estimates import as_data

    found = comparing.compare(read_audit(AuditFolder(first)), read_audit(AuditFolder(second)))
    if output is not None:
        comparing.write_comparison(found, output)
    if as_json:
        print_json(as_data(found))
        return
    for sentence in found.sentences():
        typer.echo(printable(sentence))
    if output is not None:
        typer.echo(f"kept: {output}")
