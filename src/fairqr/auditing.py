"""The façade of audits: who gets seen in a search engine's results, in one call."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

from fairqr.api import Named, check_source, open_engine
from fairqr.base.errors import InputError, one_line, parameter_errors
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.lists import SeenSearches, UserRecords
from fairqr.evaluation.audit.pairs import read_pairs
from fairqr.evaluation.audit.preparing import AuditInputs, AuditOptions
from fairqr.evaluation.audit.queries import collect_queries
from fairqr.evaluation.audit.report import LAYOUTS
from fairqr.evaluation.audit.running import audit_engine
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.qrels import Qrels, read_qrels
from fairqr.evaluation.reports.text import records_of
from fairqr.evaluation.user_clicks import MARGIN, ClickFigures, measured, read_clicks
from fairqr.graph.search.context import checked_context
from fairqr.keywords import AuditKeywords
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.query_files import QueryColumns, QueryRow, query_row, query_rows
from fairqr.retrieval.sources.source import Source

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from pandas import DataFrame


Clicks = Path | str | Iterable[Path | str | Mapping[str, Any]]
"""Files or rows that say what users were shown and clicked."""


async def audit(
    engine: SearchEngine | Named,
    queries: Iterable[str | Mapping[str, Any]] | DataFrame | Path,
    spec: AuditSpec | None = None,
    *,
    weight: str | None = None,
    segment: str | None = None,
    query_column: str | None = None,
    id_column: str | None = None,
    qrels: Qrels | Path | str | None = None,
    retriever: str | Encoder | Embeddings = "auto",
    folder: Path | str | None = None,
    pairs: Path | str | None = None,
    seen: SeenSearches | None = None,
    clicks: Clicks = (),
    margin: float = MARGIN,
    rate: float | None = None,
    concurrency: int = 4,
    redact: bool = False,
    layout: str = LAYOUTS[0],
    withhold_place: bool = False,
    watcher: StageWatcher | None = None,
    command: Sequence[str] = (),
    **options: Unpack[AuditKeywords],
) -> Audit:
    """Send queries to a search engine, and measure who gets seen in its results.

    Args:
        engine: An open engine, which you close yourself, or what :func:`fairqr.open_engine` takes.
        queries: Texts; mappings or the rows of a DataFrame with ``query`` (or ``text`` or
            ``title``) and optionally ``id``; or the path of a file.
        spec: What to measure, as one object.
        weight: The column that says how often a query was asked; by default each row counts once.
        segment: The column that groups the queries, such as their topic, for figures by segment.
        query_column: The column with the queries, if it has another name.
        id_column: The column with their ids, if it has another name.
        qrels: Judgements by query id and document id, relevant if above 0; or the path of a TREC
            qrels file. By default relevance is estimated from texts, once MiniLM is pulled.
        retriever: How to find documents, unless ``engine`` is an open engine.
        folder: The folder for all files; an interrupted audit continues there. By default a
            temporary folder, which :meth:`Audit.write` copies.
        pairs: A file of documents in several versions, described in
            ``docs/how-to/audit-an-engine.md``.
        seen: What a proxy saw of these searches, as its log has it.
        clicks: What users were shown and clicked: rows or files of User Behavior Insights, as
            ``docs/how-to/audit-an-engine.md`` describes. The attention by rank that they show takes
            the place of ``discount``, and ``k`` ends where it does.
        margin: So many more or fewer clicks of a query do not matter, if a proxy has two arms.
        rate: The most requests a second; no limit by default.
        concurrency: How many queries to run at a time.
        redact: Replace all queries by pseudonyms.
        layout: The layout of the report: ``plain``, ``ll144``, ``dsa`` or ``ai-act``.
        withhold_place: Only name the engine in all files; leave out its address and how its source
            describes it.
        watcher: Told how far the audit is.
        command: How the audit was started, for its record.
        options: The values of :class:`AuditSpec`, such as ``k=10``, instead of a spec.
            ``attribute`` takes one attribute or several.

    Raises:
        FairqrError: The audit cannot be carried out; the message says what to do.
    """
    if spec is not None and options:
        name = next(iter(options))
        raise InputError(f"'{name}' is given beside a spec; put it into the spec.")
    specification = spec or audit_spec(options)
    if concurrency < 1:
        raise InputError(f"'concurrency' must be at least 1, not {concurrency}.")
    check_source(engine, retriever, "audit")
    columns = QueryColumns(query_column, id_column, weight, segment)
    watcher = watcher or StageWatcher()
    click_figures: ClickFigures | None = None
    click_sources = [clicks] if isinstance(clicks, str | Path) else [*clicks]
    if click_sources:
        click_figures, specification = await asyncio.to_thread(
            _measure_clicks, click_sources, specification, margin, watcher
        )
    handling = AuditOptions(
        concurrency,
        rate=rate,
        redact=redact,
        layout=layout,
        withhold_place=withhold_place,
        command=command,
        watcher=watcher,
    )

    with contextlib.ExitStack() as temporary:
        if folder is None or folder == "":
            folder = temporary.enter_context(TemporaryDirectory(prefix="fairqr-audit-"))
        async with _open(engine, retriever) as search_engine:
            if not isinstance(qrels, Mapping | None):
                qrels = await asyncio.to_thread(read_qrels, Path(qrels))
            collected = await asyncio.to_thread(
                collect_queries,
                _query_rows(queries, columns),
                sample=specification.sample,
                seed=specification.seed,
                weighted_by=weight,
                origin=f"queries {queries}" if isinstance(queries, Path) else "queries given",
            )
            versions = None
            if pairs is not None:
                versions = await asyncio.to_thread(read_pairs, Path(pairs))
            inputs = AuditInputs(
                specification,
                collected,
                qrels=qrels,
                pairs=versions,
                users=UserRecords(seen, click_figures),
            )
            outcome = await audit_engine(search_engine, inputs, AuditFolder(Path(folder)), handling)
        # The temporary folder is removed together with the outcome.
        weakref.finalize(outcome, temporary.pop_all().close)
    return outcome


@contextlib.asynccontextmanager
async def _open(
    source: SearchEngine | Named, retriever: str | Encoder | Embeddings
) -> AsyncIterator[SearchEngine]:
    """Open the engine that a source names, and close it at the end; an open one stays open."""
    if not isinstance(source, str | Path | Source | Mapping):
        yield source
        return
    engine = await open_engine(source, retriever=retriever)
    async with contextlib.aclosing(engine):
        yield engine


def _measure_clicks(
    sources: Sequence[Path | str | Mapping[str, Any]],
    spec: AuditSpec,
    margin: float,
    watcher: StageWatcher,
) -> tuple[ClickFigures, AuditSpec]:
    """Return what clicks say, and a spec with the discount that they show; this blocks.

    Raises:
        InputError: The clicks cannot be read, or say nothing.
    """
    rows = [Path(source) if isinstance(source, str) else source for source in sources]
    figures = measured(read_clicks(rows), spec.k, margin)
    examination = figures.examination
    if examination is None:
        watcher.note(figures.why_not)
        return figures, spec

    ranks = len(examination.values)
    if ranks < spec.k:
        watcher.note(
            f"The clicks say how likely ranks 1 to {ranks} are looked at, so k is {ranks}."
        )
    changes = {"discount": examination.discount, "k": ranks}
    return figures, spec.model_copy(update=changes)


def audit_spec(options: Mapping[str, Any]) -> AuditSpec:
    """Return what to measure.

    Raises:
        InputError: A name or a value is wrong.
    """
    attributes = options.get("attributes")
    # A single attribute may be given by its name, as in a Context.
    if isinstance(attributes, str):
        options = {**options, "attributes": (attributes,)}
    with parameter_errors():
        return checked_context(AuditSpec, options)


def _query_rows(
    queries: Iterable[str | Mapping[str, Any]] | DataFrame | Path, columns: QueryColumns
) -> Iterator[QueryRow]:
    """Yield queries of any form as rows."""
    if isinstance(queries, str):
        raise InputError("The queries are a single text; give a list of texts, or a Path.")
    if isinstance(queries, Path):
        yield from query_rows(queries, columns)
        return

    records: Any = queries
    if hasattr(queries, "to_dict"):
        records = records_of(queries)
    for number, query in enumerate(records, start=1):
        record = {"text": query} if isinstance(query, str) else query
        if not isinstance(record, Mapping):
            kind = one_line(type(query).__name__)
            raise InputError(f"Query {number} is {kind}; give a text or a mapping.")
        cells = {str(key).casefold(): cell for key, cell in record.items()}
        try:
            yield query_row(number, cells, columns)
        except ValueError as error:
            raise InputError(f"Query {number}: {error}; change it.") from None
