"""The jobs of an experiment with searches: what they need, one search, and what is kept of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.models import open_language_model, open_model
from fairqr.agents.replies import Usage
from fairqr.base.errors import InputError, QueryError
from fairqr.evaluation.experiments.care import is_away
from fairqr.evaluation.experiments.engine import Absence, Done
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.plan import Cell, Plan
from fairqr.evaluation.experiments.store import Round, SearchRecord
from fairqr.evaluation.workers.tools import Tools
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context, make_context
from fairqr.graph.search.rankers import ASKED, Rankers
from fairqr.graph.search.result import SearchResult
from fairqr.graph.usage import usage_of
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.encoders.encoder import PROBE
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.tantivy_store import Announce

__all__ = ["Place", "Search", "check_needs", "open_engine", "search", "search_by"]

Key = tuple[str, str, str, int, str]
"""See :attr:`fairqr.evaluation.experiments.store.SearchRecord.key`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where is searched, and which model is asked.

    Attributes:
        corpus: As :meth:`fairqr.retrieval.catalog.Catalog.resolve` takes it.
        fingerprint: That the engine must have.
        retriever: ``bm25``, ``dense`` or ``dense:ENCODER``.
        model: What refines or re-ranks; None where nothing does.
        at_once: How many searches run at the same time, for the record.
    """

    corpus: str
    fingerprint: str
    retriever: str
    model: str | None
    at_once: int


@dataclass(frozen=True, slots=True)
class Search:
    """A search to be done.

    Attributes:
        key: Of its record.
        query: Of the topic.
        context: The values of the context that are not the default ones.
        weights: The content of the file of weights that the final step reads, if any.
    """

    key: Key
    query: str
    context: Mapping[str, Any]
    weights: bytes | None


async def check_needs(tools: Tools, plan: Plan, cells: Sequence[Cell]) -> None:
    """Start what these cells ask and encode with, before anything is written.

    Raises:
        ModelUnavailableError: A model or an encoder is not there.
        ModelError: An encoder fails.
    """
    experiment = plan.manifest.experiment
    systems = [cell.system for cell in cells]
    asking = {s.model or experiment.model for s in systems if s.asks_a_model}
    for name in sorted(asking - {FeedbackRefiner.name}):
        await open_model(name, cache=False).start()
    rankers = {cell.system.name: cell for cell in cells if cell.system.ranker is not None}
    for cell in rankers.values():
        model = None
        if cell.system.ranker in ASKED:
            model = open_language_model(cell.system.model or experiment.model, cache=False)
        ranker = Rankers(None, model, tools.prompts).ranker_for(cell.context(experiment))
        if ranker is not None:
            await ranker.start()
    # A corpus that is named has vectors of its own, and says what encodes queries.
    encoded = {s.retriever for s in systems if experiment.corpus_of(s) is None}
    for retriever in sorted(encoded):
        encoder = Retriever.of(retriever).encoder
        if encoder is not None:
            await encoder.encode_query(PROBE)


async def open_engine(
    tools: Tools, corpus: str, retriever: str, progress: Announce | None = None
) -> SearchEngine:
    """Return what searches a corpus; it is indexed first where it has to be."""
    return await tools.keep(
        f"engine {corpus} {retriever}",
        corpus,
        lambda: Catalog().resolve(corpus, retriever=retriever, progress=progress),
    )


async def search(tools: Tools, place: Place, task: Search) -> Done[SearchRecord]:
    """Do a search; a query that finds nothing is a result too.

    Raises:
        InputError: The worker has other documents.
        FairqrError: The search cannot be done.
    """
    graph = await tools.keep(f"graph {place}", place, lambda: _open_graph(tools, place))
    context = dict(task.context)
    with tempfile.TemporaryDirectory(prefix="fairqr-") as folder:
        if task.weights is not None:
            path = Path(folder) / "weights.json"
            path.write_bytes(task.weights)
            context["options"] = {**context.get("options", {}), "weights": str(path)}
        return await search_by(
            graph, task.key, task.query, make_context(**context), at_once=place.at_once
        )


async def search_by(
    graph: Any, key: Key, query: str, context: Context, *, at_once: int = 1
) -> Done[SearchRecord]:
    """Search by a graph; see :func:`search`.

    Args:
        graph: Which searches.
        key: Of the record.
        query: What is searched for.
        context: Of the search.
        at_once: How many searches run at the same time, for the record.
    """
    parts = dict(zip(SearchRecord.keys, key, strict=True))
    try:
        state = await graph.ainvoke({"query": query}, context=context)
    except QueryError as error:
        return Done(SearchRecord.model_validate({**parts, "error": str(error)}))
    result = SearchResult.model_validate(state["result"])
    usage = usage_of(state["result"])
    record = SearchRecord.model_validate(
        {**parts, **_kept(result), **spent(usage), "at_once": at_once}
    )
    return Done(record, _replies(result, usage), usage=usage)


async def _open_graph(tools: Tools, place: Place) -> Any:
    engine = await open_engine(tools, place.corpus, place.retriever)
    if (await engine.info()).fingerprint != place.fingerprint:
        raise InputError(
            f"The documents of '{place.corpus}' are others than where the experiment was begun; "
            "copy them, or the file of the source, from there."
        )

    model = None
    if (name := place.model) is not None:
        # Feedback reads its words from the engine, so each engine has one of its own.
        kept = f"{name} {place.corpus} {place.retriever}" if name == "feedback" else name
        model = await tools.started(
            f"model {kept}", name, lambda: open_model(name, engine=engine, cache=tools.replies)
        )
    return build_search_graph(engine, model, prompts=tools.prompts)


def _replies(result: SearchResult, usage: Usage) -> tuple[Absence | None, ...]:
    """Return whether the model was there when it was asked last; nothing if it was not asked."""
    rounds = [round_.refinements for round_ in result.iterations if round_.refinements]
    last = result.unused_refinements or (rounds[-1] if rounds else [])
    statuses = [group.status for group in last]
    if result.reranking is not None and result.reranking.asked:
        failures = result.reranking.failures
        answers = result.reranking.asked - sum(failures.values())
        statuses = [status for status, times in failures.items() for _ in range(times)]
        statuses += ["ok"] * answers
    away = [status for status in statuses if is_away(status, usage)]
    if away and len(away) == len(statuses):
        message = result.warnings[0] if result.warnings else f"the status '{away[0]}'"
        return (Absence(away[0], message, len(away)),)
    return (None,) if usage.model_calls or usage.cached_calls else ()


def _kept(result: SearchResult) -> Mapping[str, Any]:
    """Return what is kept of a result."""
    name = next(iter(result.target))
    usage = result.usage
    return {
        "ids": [document.id for document in result.ranking],
        "rounds": [
            Round(ids=r.ids, exposure=r.exposure[name], divergence=r.divergence)
            for r in result.iterations
        ],
        "best_round": result.best_iteration,
        "target": result.target[name],
        "divergence": result.divergence,
        "stop_reason": result.stop_reason,
        "milliseconds": round(usage.milliseconds + usage.cached_milliseconds, 1),
        "warnings": result.warnings,
    }
