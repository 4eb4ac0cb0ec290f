"""The commands ``fairqr audit …``: who gets seen in the results of a search engine."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from fairqr.base.errors import InputError
from fairqr.base.extras import library
from fairqr.cli.common import CORPUS_OPTIONS, CorpusSettings, run
from fairqr.cli.options import Fields, command, readable
from fairqr.cli.output import Printed, warn
from fairqr.evaluation.audit.specification import AuditSpec

if TYPE_CHECKING:
    from fairqr.evaluation.audit.finishing import Audit
    from fairqr.evaluation.audit.lists import SeenSearches
    from fairqr.retrieval.engines.engine import SearchEngine

FAILED = 3
"""The exit code if a condition of ``--fail-if`` holds, or if an audit is not what it says."""

DOUBTFUL = 4
"""The exit code if nobody can tell whether a condition holds."""

app = typer.Typer(invoke_without_command=True)


class AuditRunSettings(CorpusSettings):
    """Says what is audited, and how an audit runs. None of it changes the figures."""

    rate: float | None = Field(
        None, gt=0, description="The most requests a second; no limit by default."
    )
    concurrency: int = Field(
        4, ge=1, le=256, description="How many queries to ask at the same time."
    )
    query_column: str | None = Field(
        None, description="The column with the queries; by default query, text or title."
    )
    id_column: str | None = Field(
        None, description="The column with the ids of queries; by default id, if it exists."
    )
    weight: str | None = Field(
        None, description="The column that says how often a query was asked."
    )
    segment: str | None = Field(
        None,
        description=(
            "The column that groups the queries, such as their topic, for figures by segment."
        ),
    )
    qrels: Path | None = Field(
        None,
        description=(
            "Judgements in TREC's format; a grade above 0 is relevant. By default relevance is "
            "estimated from texts, once MiniLM is pulled."
        ),
    )
    pairs: Path | None = Field(
        None,
        description=(
            "Documents in several versions, to see which version scores higher: CSV or JSON Lines "
            "with query, version, document or text, pair and segment."
        ),
    )
    clicks: list[Path] = Field(
        [],
        description=(
            "What users were shown and clicked, as User Behavior Insights records it: files of "
            "searches and events. It gives the attention by rank, in place of the discount. "
            "Repeatable; with --from-log, clicks alone are enough."
        ),
    )
    margin: float = Field(
        0.02,
        gt=0,
        description=(
            "With --from-log and clicks: so many more or fewer clicks of a query do not matter."
        ),
    )
    redact: bool = Field(False, description="Replace all queries by pseudonyms.")
    layout: str = Field(
        "plain",
        description=(
            "The order of the report: plain, or as a law asks: ll144 (New York City), dsa or "
            "ai-act (European Union)."
        ),
    )


_RUN_OPTIONS = (
    "--rate",
    "--concurrency",
    "--weight",
    "--segment",
    "--qrels",
    "--pairs",
    "--clicks",
    "--margin",
    "--redact",
    "--layout",
)


@app.callback()
@readable
def measure(
    ctx: typer.Context,
    *,
    queries: Annotated[
        Path | None,
        typer.Option(
            "--queries",
            help="The queries: one per line, CSV, JSON Lines or TREC topics; may be .gz.",
        ),
    ] = None,
    spec: Annotated[
        AuditSpec,
        Fields(
            "--sample",
            "--target",
            "-k",
            "--depth",
            "--seed",
            "--pairs-by",
            ("--attribute", "attributes"),
        ),
    ],
    settings: Annotated[AuditRunSettings, Fields(*CORPUS_OPTIONS, *_RUN_OPTIONS)],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            help=(
                'End with code 3 if this holds for any group, such as "impact_ratio < 0.8", '
                "and with 4 if nobody can tell. Repeatable."
            ),
        ),
    ] = None,
    sure: Annotated[
        bool, typer.Option("--sure", help="The whole interval must meet a condition.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The folder; an interrupted audit resumes there."),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign",
            help="Sign it by this SSH key. Without --queries, a finished audit is only signed.",
        ),
    ] = None,
    from_log: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-log",
            help=(
                "Audit the searches that a proxy recorded in this folder. Each list counts "
                "as often as it was shown. Repeatable, for several proxies; --corpus names "
                "one of several indexes."
            ),
        ),
    ] = None,
) -> Printed:
    """Audit a search engine: who gets seen in its results, and how sure that is."""
    if ctx.invoked_subcommand is not None:
        return None  # type: ignore[return-value]
    from fairqr.cli.progress import Progress
    from fairqr.evaluation.audit import bundle, conditions, tables
    from fairqr.evaluation.experiments import verifying
    from fairqr.graph.search.explanation import say_how_found

    if output is None:
        raise InputError("An audit needs a folder for its results; name one with -o.")
    library("pandas", "An audit")
    folder = bundle.AuditFolder(output)
    manifest = output / folder.name
    if sign is not None and queries is None:
        is_finished = folder.exists() and folder.manifest().finished
        if is_finished:
            signature = str(verifying.sign(manifest, sign))
            return Printed({"signature": signature}, [f"signature: {signature}"])
    if from_log and (queries or settings.weight):
        raise InputError("A log brings its queries and weights; leave --queries and --weight out.")
    limits = [conditions.parse_condition(text) for text in fail_if or []]

    with Progress() as progress, TemporaryDirectory() as temporary:
        from_users: dict[str, Any] = {}
        if from_log:
            logged = Path(temporary)
            settings, spec, seen = _read_log(from_log, settings, spec, logged)
            queries = logged / "queries.jsonl"
            from_users = {"seen": seen, "withhold_place": True}
        work = _run_audit(settings, queries, spec, folder=output, watcher=progress, **from_users)
        audit = run(work, "audit")

    if sign is not None:
        verifying.sign(manifest, sign)
    broken, doubtful = conditions.check(limits, audit.figures, sure=sure)
    lines = [
        *audit.findings,
        *_targets_in_words(audit),
        say_how_found(audit.manifest.engine["retriever"]),
        f"report: {output / 'report.html'}",
        f"digest: {audit.digest}",
    ]
    code = 0
    if broken:
        code = FAILED
    elif doubtful:
        code = DOUBTFUL
    return Printed(
        lambda: tables.audit_json(audit).decode(), lines, code, warnings=[*broken, *doubtful]
    )


async def _run_audit(
    settings: AuditRunSettings, queries: Path | None, spec: AuditSpec, **options: Any
) -> Audit:
    """Open the search engine, and audit it.

    Args:
        settings: How the audit runs.
        queries: The file of queries; a run file brings its own.
        spec: What to measure.
        options: Other keywords of :func:`fairqr.auditing.audit`.
    """
    from fairqr.auditing import audit

    handling = settings.model_dump(exclude={*CorpusSettings.model_fields})
    async with settings.open_engine() as engine:
        return await audit(
            engine,
            queries or _queries_of_run(engine),
            spec,
            command=sys.argv[1:],
            **handling,
            **options,
        )


def _targets_in_words(audit: Audit) -> list[str]:
    """Say what the audit aims at and what a search does, unless the user chose a target."""
    from fairqr.retrieval.fairness.target import AUDIT_TARGET, DEFAULT_TARGET, PARTS

    if audit.spec.target != AUDIT_TARGET:
        return []
    names = audit.spec.attributes or tuple(audit.manifest.attributes)
    attributes = [audit.manifest.attributes[name] for name in names]
    by_search = dict.fromkeys(DEFAULT_TARGET.in_words(attribute) for attribute in attributes)
    lacks_population = any(attribute.population is None for attribute in attributes)
    common = "uniform:1" if lacks_population else "population:1"
    return [
        f"This audit aims at {PARTS['relevance']}. A search aims at {', or '.join(by_search)}; "
        f"--target {common} gives both one target."
    ]


def _read_log(
    folders: list[Path], settings: AuditRunSettings, spec: AuditSpec, logged: Path
) -> tuple[AuditRunSettings, AuditSpec, SeenSearches]:
    """Write what proxies recorded as a source; return what audits it, and what they saw.

    By default the ranks count that the proxy counted, as much as there, and the target is what fair
    lists aimed at.

    Args:
        folders: The logs of the proxies.
        settings: How the audit runs.
        spec: What to measure.
        logged: The folder to write the source, its lists and its queries to.
    """
    from fairqr.evaluation.audit.lists import SeenSearches
    from fairqr.graph.service.proxy.log import as_run, write_searches
    from fairqr.retrieval.fairness.exposure import Discount
    from fairqr.retrieval.fairness.target import Target

    k = spec.k if "k" in spec.model_fields_set else None
    log = as_run(folders, logged, settings.corpus, k)
    if log.damaged:
        warn(f"Lines of the log that are damaged, and left out: {log.damaged:,}.")

    defaults: dict[str, Any] = {
        "k": min(log.k, spec.depth - 1),
        "discount": Discount.parse(log.discount),
        "target": Target(parts={"uniform": 1.0}, shares=log.target),
    }
    chosen = spec.model_fields_set
    changes = {name: value for name, value in defaults.items() if name not in chosen}

    source: dict[str, Any] = {"corpus": str(logged / "source.yaml"), "weight": "weight"}
    if settings.clicks:
        searches = logged / "searches.jsonl"
        write_searches(folders, searches, log.name)
        source["clicks"] = [searches, *settings.clicks]
    seen = SeenSearches.model_validate(log.seen)
    return settings.model_copy(update=source), spec.model_copy(update=changes), seen


def _queries_of_run(engine: SearchEngine) -> list[dict[str, str]]:
    """Return the queries of a run file, which only has their ids.

    Raises:
        InputError: It is no run file.
    """
    rankings = getattr(engine, "rankings", None)
    if rankings is None:
        raise InputError("An audit needs queries; name their file with --queries.")
    return [{"id": id_, "query": id_} for id_ in rankings]


@command(app)
def verify(
    folder: Annotated[Path, typer.Argument(help="The folder of an audit.")],
    *,
    digest: Annotated[
        str | None, typer.Option("--digest", help="The digest that the audit printed at its end.")
    ] = None,
    signed_by: Annotated[
        Path | None,
        typer.Option("--signed-by", help="Check the signature by this file of allowed signers."),
    ] = None,
) -> Printed:
    """Check an audit without its engine: the hashes of all files, and every figure."""
    from fairqr.evaluation.audit.bundle import AuditFolder
    from fairqr.evaluation.audit.finishing import make_again
    from fairqr.evaluation.experiments import verifying

    outcome = verifying.verify(AuditFolder(folder), digest, make_again, signed_by)
    lines = []
    if not outcome.problems:
        fits = ", and the manifest has the digest that you gave" if digest else ""
        lines.append(f"All {outcome.files:,} files match the manifest{fits}.")
        lines.append("All that is checked follows from raw/.")
    if outcome.signed_by:
        lines.append(f"signed by: {outcome.signed_by}")
    lines += [f"Not checked: {sentence}" for sentence in outcome.unchecked]
    lines.append(f"digest: {outcome.digest}")
    code = FAILED if outcome.problems else 0
    return Printed(outcome._asdict(), lines, code, warnings=outcome.problems)


@command(app)
def compare(
    first: Annotated[Path, typer.Argument(help="The folder of the earlier audit.")],
    second: Annotated[Path, typer.Argument(help="The folder of the later audit.")],
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write a report into this folder.")
    ] = None,
) -> Printed:
    """Show what changed between two audits, over the queries that both asked."""
    from fairqr.evaluation.audit import bundle, comparing, finishing
    from fairqr.evaluation.estimates import as_data

    earlier = finishing.read_audit(bundle.AuditFolder(first))
    later = finishing.read_audit(bundle.AuditFolder(second))
    comparison = comparing.compare(earlier, later)
    lines = [*comparison.sentences()]
    if output is not None:
        comparing.write_comparison(comparison, output)
        lines.append(f"kept: {output}")
    return Printed(lambda: as_data(comparison), lines)
