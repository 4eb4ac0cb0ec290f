"""The façade of audits: who gets seen in a search engine's results, in one call."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fairqr.api import check_source, open_engine
from fairqr.base.errors import InputError, one_line, parameter_error
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.pairs import read_pairs
from fairqr.evaluation.audit.queries import (
    AuditQuery,
    Queries,
    collect_queries,
)
from fairqr.evaluation.audit.report import LAYOUTS
from fairqr.evaluation.audit.running import audit_engine
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.qrels import Qrels, read_qrels
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.documents import ProgressFunction
from fairqr.retrieval.sources.query_files import QueryColumns, QueryRow, query_row, query_rows
from fairqr.retrieval.sources.source import Source

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from pandas import DataFrame

__all__ = ["QuietWatcher", "audit", "audit_spec"]


async def audit(
    engine: SearchEngine | Source | Mapping[str, Any] | Path | str,
    queries: Iterable[str | Mapping[str, Any] | AuditQuery] | DataFrame | Path,
    *,
    weight: str | None = None,
    segment: str | None = None,
    qrels: Qrels | Path | str | None = None,
    retriever: str | Encoder | Embeddings = "auto",
    folder: Path | str | None = None,
    pairs: Path | str | None = None,
    rate: float | None = None,
    concurrency: int = 4,
    redact: bool = False,
    layout: str = LAYOUTS[0],
    withhold_place: bool = False,
    watcher: StageWatcher | None = None,
    **options: Any,
) -> Audit:
    """Send queries to a search engine, and measure who gets seen in its results.

    Args:
        engine: An open engine, which you close yourself, or what :func:`fairqr.open_engine` takes.
        queries: Texts; mappings or the rows of a DataFrame with ``query`` (or ``text`` or
            ``title``) and optionally ``id``; :class:`AuditQuery` objects; or the path of a file.
        weight: The column that says how often a query was asked; by default each row counts once.
        segment: The column that groups the queries, such as their topic, for figures by segment;
            :class:`AuditQuery` objects have a segment of their own.
        qrels: Judgements by query id and document id, relevant if above 0; or the path of a TREC
            qrels file. By default relevance is estimated from texts, once MiniLM is pulled.
        retriever: How to find documents, unless ``engine`` is an open engine.
        folder: The folder for all files; an interrupted audit continues there. By default a
            temporary folder, which :meth:`Audit.write` copies.
        pairs: A file of documents in several versions, described in
            ``docs/how-to/audit-an-engine.md``.
        rate: The most requests a second; no limit by default.
        concurrency: How many queries to run at a time.
        redact: Replace all queries by pseudonyms.
        layout: The layout of the report: ``plain``, ``ll144``, ``dsa`` or ``ai-act``.
        withhold_place: Only name the engine in all files; leave out its address and how its source
            describes it.
        watcher: Told how far the audit is.
        options: The values of :class:`AuditSpec`, such as ``k=10``. ``attribute`` takes one
            attribute or several.

    Raises:
        FairqrError: The audit cannot be carried out; the message says what to do.
    """
    spec = audit_spec(options)
    if concurrency < 1:
        raise InputError(f"'concurrency' must be at least 1, not {concurrency}.")
    check_source(engine, retriever, "audit")
    how = {"rate": rate, "concurrency": concurrency, "redact": redact, "layout": layout}
    columns = QueryColumns(weight=weight, segment=segment)
    made = "" if folder else await asyncio.to_thread(mkdtemp, prefix="fairqr-audit-")
    place = Path(folder or made)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if isinstance(engine, str | Path | Source | Mapping):
                engine = await open_engine(engine, retriever=retriever)
                stack.push_async_callback(engine.aclose)
            found = await audit_opened(
                spec,
                engine,
                queries,
                columns,
                place,
                qrels=qrels,
                pairs=pairs,
                watcher=watcher or QuietWatcher(),
                withhold_place=withhold_place,
                **how,
            )
    except BaseException:
        if made:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if made:
        weakref.finalize(found, shutil.rmtree, place, ignore_errors=True)
    return found


async def audit_opened(
    spec: AuditSpec,
    engine: SearchEngine,
    queries: Iterable[str | Mapping[str, Any] | AuditQuery] | DataFrame | Path,
    columns: QueryColumns,
    folder: Path,
    *,
    qrels: Qrels | Path | str | None,
    pairs: Path | str | None,
    watcher: StageWatcher,
    **how: Any,
) -> Audit:
    """Audit an open engine; see :func:`audit`.

    Args:
        spec: What to measure.
        engine: What is audited.
        queries: In any form.
        columns: What they are called in a table.
        folder: The folder for all files.
        qrels: Judgements, or their file.
        pairs: The file of documents in several versions.
        watcher: Told how far the audit is.
        how: The other arguments of :func:`fairqr.evaluation.audit.running.audit_engine`.
    """
    asked = await asyncio.to_thread(_queries, queries, columns, spec, watcher)
    judged = qrels if isinstance(qrels, Mapping) or qrels is None else Path(qrels)
    if isinstance(judged, Path):
        judged = await asyncio.to_thread(read_qrels, judged)
    versions = None if pairs is None else await asyncio.to_thread(read_pairs, Path(pairs))
    return await audit_engine(
        spec,
        engine,
        asked,
        AuditFolder(folder),
        qrels=judged,
        pairs=versions,
        watcher=watcher,
        **how,
    )


def audit_spec(options: Mapping[str, Any]) -> AuditSpec:
    """Return what to measure.

    Raises:
        InputError: A name or a value is wrong.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "attribute" in given:
        if "attributes" in given:
            raise InputError("Give either 'attribute' or 'attributes', not both.")
        given["attributes"] = given.pop("attribute")
    if isinstance(given.get("attributes"), str):
        given["attributes"] = (given["attributes"],)
    try:
        return AuditSpec.model_validate(given)
    except ValidationError as error:
        raise parameter_error(error) from None


def _queries(
    given: Iterable[str | Mapping[str, Any] | AuditQuery] | DataFrame | Path,
    columns: QueryColumns,
    spec: AuditSpec,
    watcher: StageWatcher,
) -> Queries:
    """Read the queries, in any form; this blocks."""
    weighted_by, origin = columns.weight, "queries given"
    if isinstance(given, str):
        raise InputError("The queries are a single text; give a list of texts, or a Path.")
    if isinstance(given, Path):
        rows, origin = query_rows(given, columns), f"queries {given}"
    else:
        listed: Any = given
        if hasattr(given, "to_dict"):  # None in place of all that pandas takes for missing
            listed = listed.astype(object).where(listed.notna(), None).to_dict("records")
        listed = list(listed)
        # If AuditQuery objects have weights, the queries are a log, as with a weight column.
        if weighted_by is None and any(isinstance(one, AuditQuery) for one in listed):
            weighted_by = "weight"
        rows = _rows(listed, columns)
    return collect_queries(
        rows,
        sample=spec.sample,
        seed=spec.seed,
        weighted_by=weighted_by,
        origin=origin,
        progress=watcher.count("reading queries"),
    )


def _rows(given: list[Any], columns: QueryColumns) -> Iterator[QueryRow]:
    for number, one in enumerate(given, start=1):
        if isinstance(one, AuditQuery):
            yield QueryRow(number, one.id, one.text, one.weight, one.segment)
            continue
        row = {"text": one} if isinstance(one, str) else one
        if not isinstance(row, Mapping):
            raise InputError(
                f"Query {number} is {one_line(type(one).__name__)}; give a text, a mapping or an "
                "AuditQuery."
            )
        try:
            yield query_row(number, {str(key).casefold(): row[key] for key in row}, columns)
        except ValueError as error:
            raise InputError(f"Query {number}: {error}; change it.") from None


class QuietWatcher:
    """A watcher that says nothing."""

    def stage(self, what: str, total: int, done: int) -> None:
        """Ignore the start of a stage."""

    def advance(self, steps: int = 1) -> None:
        """Ignore steps that are done."""

    def note(self, sentence: str) -> None:
        """Ignore a sentence for users."""

    def count(self, what: str) -> ProgressFunction:
        """Ignore documents that are read or indexed."""
        return lambda done, total=None, /: None
