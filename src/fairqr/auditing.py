"""The façade of audits: who gets seen in what a search engine answers, in one call."""

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

from fairqr.api import open_engine
from fairqr.base.errors import InputError, one_line, parameter_error
from fairqr.evaluation.audit.answering import ATTRIBUTOR, open_models
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.finishing import Audit, carry_out
from fairqr.evaluation.audit.layouts import DEFAULT
from fairqr.evaluation.audit.pairs import read_pairs
from fairqr.evaluation.audit.queries import (
    AuditQuery,
    Queries,
    collect_queries,
    read_audit_queries,
)
from fairqr.evaluation.audit.running import make_plan, open_texts
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.qrels import Qrels, read_qrels
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.query_files import TEXTS, QueryColumns, QueryRow
from fairqr.retrieval.source import Source

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from pandas import DataFrame

__all__ = ["audit"]


async def audit(
    engine: SearchEngine | Source | Mapping[str, Any] | Path | str,
    queries: Iterable[str | Mapping[str, Any] | AuditQuery] | DataFrame | Path,
    *,
    weight: str | None = None,
    qrels: Qrels | Path | str | None = None,
    retriever: str | Encoder | Embeddings = "auto",
    folder: Path | str | None = None,
    pairs: Path | str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    attributor: str = ATTRIBUTOR,
    rate: float | None = None,
    concurrency: int = 4,
    redact: bool = False,
    layout: str = DEFAULT,
    watcher: StageWatcher | None = None,
    **options: Any,
) -> Audit:
    """Ask a search engine queries, and measure who gets seen in its answers.

    Args:
        engine: An open engine, which stays yours to close, or what :func:`fairqr.open_engine`
            takes.
        queries: Texts; mappings or the rows of a DataFrame with ``query`` (or ``text`` or
            ``title``) and optionally ``id``; :class:`AuditQuery` objects; or the path of a file.
        weight: The column of how often a query was asked; by default each row counts once.
        qrels: Judgements by query id and document id, above 0 is relevant; or the path of a file
            in TREC's format. By default relevance is estimated from texts, once MiniLM is pulled.
        retriever: How documents are found, if ``engine`` is no open engine.
        folder: Where everything goes; an interrupted audit goes on there. By default a temporary
            folder, which :meth:`Audit.write` copies.
        pairs: A file of documents in several versions, as ``docs/audit.md`` describes it.
        model: What answers the questions of ``answers``, and what ``probe`` probes: a chat model;
            for answers also ``seq2seq:`` and a model.
        base_url: Of a server of chat models.
        attributor: What judges which documents an answer used.
        rate: The most requests a second; no limit by default.
        concurrency: How many queries are asked at the same time.
        redact: Put pseudonyms in place of all queries.
        layout: The order of the report: ``plain``, ``ll144``, ``dsa`` or ``ai-act``.
        watcher: Told how far the audit is.
        options: The values of :class:`AuditSpec`, such as ``k=10``. ``attribute`` takes one
            attribute or several.

    Raises:
        FairqrError: The audit cannot be carried out; the message says what to do.
    """
    spec = _spec(options)
    if concurrency < 1:
        raise InputError(f"An audit asks at least 1 query at a time, not {concurrency}.")
    is_named = isinstance(engine, str | Path | Source | Mapping)
    if not is_named and not hasattr(engine, "capabilities"):
        raise InputError(
            "audit takes an open engine, or the name, file or content of a source, not "
            f"{type(engine).__name__}; from_langchain makes an engine of a retriever."
        )
    if retriever != "auto" and not is_named:
        raise InputError(
            "An open engine has its retriever; leave the retriever out, or name the source."
        )
    asked = await asyncio.to_thread(_queries, queries, weight, spec)
    judged = qrels if isinstance(qrels, Mapping) or qrels is None else Path(qrels)
    if isinstance(judged, Path):
        judged = await asyncio.to_thread(read_qrels, judged)
    versions = None if pairs is None else await asyncio.to_thread(read_pairs, Path(pairs))
    watching = watcher or _Quiet()
    made = "" if folder else await asyncio.to_thread(mkdtemp, prefix="fairqr-audit-")
    place = Path(folder or made)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if isinstance(engine, str | Path | Source | Mapping):
                engine = await open_engine(engine, retriever=retriever)
                stack.push_async_callback(engine.aclose)
            texts, without_texts = None, ""
            if judged is None:
                counter = watching.count("encoding texts")
                texts, without_texts = await open_texts(engine, asked, counter)
            models = None
            if model is not None:
                replies = AuditFolder(place).replies
                models = open_models(
                    model, attributor, replies, base_url=base_url, concurrency=concurrency
                )
            plan = await make_plan(
                spec,
                engine,
                asked,
                qrels=judged,
                texts=texts,
                without_texts=without_texts,
                rate=rate,
                pairs=versions,
                asked=models,
            )
            found = await carry_out(
                plan,
                AuditFolder(place),
                concurrency=concurrency,
                watcher=watching,
                redact=redact,
                layout=layout,
            )
    except BaseException:
        if made:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if made:
        weakref.finalize(found, shutil.rmtree, place, ignore_errors=True)
    return found


def _spec(options: dict[str, Any]) -> AuditSpec:
    """Return what is measured.

    Raises:
        InputError: A name or a value is wrong.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "attribute" in given:
        if "attributes" in given:
            raise InputError("Give either 'attribute' or 'attributes'.")
        given["attributes"] = given.pop("attribute")
    if isinstance(given.get("attributes"), str):
        given["attributes"] = (given["attributes"],)
    try:
        return AuditSpec.model_validate(given)
    except ValidationError as error:
        raise parameter_error(error) from None


def _queries(
    given: Iterable[str | Mapping[str, Any] | AuditQuery] | DataFrame | Path,
    weight: str | None,
    spec: AuditSpec,
) -> Queries:
    """Read the queries, in whatever form they are given; this blocks."""
    if isinstance(given, Path):
        columns = QueryColumns(weight=weight)
        return read_audit_queries(given, columns, sample=spec.sample, seed=spec.seed)
    if isinstance(given, str):
        raise InputError("The queries are a single text; give a list of texts, or a Path.")
    to_dict = getattr(given, "to_dict", None)
    listed: Any = given if to_dict is None else to_dict("records")
    # Weights of objects make a log of them, as a column does.
    weighted_by = weight
    if not isinstance(listed, list | tuple):
        listed = list(listed)
    if weight is None and any(isinstance(one, AuditQuery) for one in listed):
        weighted_by = "weight"
    return collect_queries(
        _rows(listed, weight),
        sample=spec.sample,
        seed=spec.seed,
        weighted_by=weighted_by,
    )


def _rows(given: Iterable[Any], weight: str | None) -> Iterator[QueryRow]:
    for number, one in enumerate(given, start=1):
        if isinstance(one, AuditQuery):
            yield QueryRow(number, one.id, " ".join(one.text.split()), _weight(one.weight, number))
        elif isinstance(one, str):
            yield QueryRow(number, None, " ".join(one.split()))
        elif isinstance(one, Mapping):
            text = next((one[name] for name in TEXTS if name in one), None)
            if not isinstance(text, str):
                raise InputError(f"The query {number} has no text under {', '.join(TEXTS)}.")
            id_ = one.get("id")
            counts = 1.0 if weight is None else _weight(one.get(weight), number)
            yield QueryRow(
                number, None if id_ is None else str(id_), " ".join(text.split()), counts
            )
        else:
            raise InputError(
                f"The query {number} is {one_line(type(one).__name__)}, and no text, mapping or "
                "AuditQuery."
            )


def _weight(value: Any, number: int) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError):
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise InputError(f"The weight of the query {number} is not a number of 0 or more.")
    return weight


class _Quiet:
    """A watcher that says nothing."""

    def stage(self, what: str, total: int, done: int) -> None:
        """Take what begins."""

    def advance(self, steps: int = 1) -> None:
        """Take that so many steps are done."""

    def note(self, sentence: str) -> None:
        """Take a sentence for people."""

    def count(self, what: str) -> Progress:
        """Take what is read or indexed."""
        return lambda done, total=None, /: None
