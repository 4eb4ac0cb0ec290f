"""One search of an experiment, and what is kept of it; here, or on a worker."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.agents.cache import ReplyCache
from fairqr.agents.chat import ChatModel
from fairqr.agents.models import open_model
from fairqr.agents.ranking.model import RankingModel
from fairqr.agents.refiner import Refiner
from fairqr.base.errors import InputError, QueryError
from fairqr.evaluation.experiments.store import Round
from fairqr.evaluation.workers.tools import Tools
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context, make_context
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.engines.engine import SearchEngine

__all__ = ["Place", "Search", "open_searcher", "search_there", "searched"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where is searched, and what is asked.

    Attributes:
        corpus: As :meth:`fairqr.retrieval.catalog.Catalog.resolve` takes it.
        fingerprint: That the engine must have.
        retriever: ``bm25``, ``dense`` or ``dense:ENCODER``.
        model: What refines or re-ranks; None where nothing does.
    """

    corpus: str
    fingerprint: str
    retriever: str
    model: str | None


@dataclass(frozen=True, slots=True)
class Search:
    """A search for a worker.

    Attributes:
        place: Where, and with which model.
        query: Of the topic.
        context: The values of the context that are not the default ones.
        weights: The content of the file of weights that the context names, if any.
    """

    place: Place
    query: str
    context: Mapping[str, Any]
    weights: bytes | None

    @classmethod
    def of(cls, place: Place, query: str, context: Context) -> Search:
        """Describe a search; weights that cannot be read are left to the one who needs them."""
        try:
            weights = Path(context.options["weights"]).read_bytes()
        except (KeyError, TypeError, OSError):
            weights = None
        return cls(place, query, context.model_dump(exclude_unset=True), weights)


async def open_searcher(
    name: str, engine: SearchEngine, replies: ReplyCache
) -> ChatModel | Refiner | RankingModel:
    """Return what refines or ranks, started."""
    model = open_model(name, engine=engine, cache=replies)
    await model.start()
    return model


async def search_there(tools: Tools, search: Search) -> Mapping[str, Any]:
    """Do a search on a worker, and return what :func:`searched` does.

    Raises:
        InputError: The worker has other documents.
        FairqrError: The search cannot be done.
    """
    place = search.place
    where = f"{place.corpus} {place.retriever}"
    engine = await tools.keep(
        f"engine {where}",
        place.corpus,
        lambda: Catalog().resolve(place.corpus, retriever=place.retriever),
    )
    if (await engine.info()).fingerprint != place.fingerprint:
        raise InputError(
            f"The documents of '{place.corpus}' are others than where the experiment was begun; "
            "copy them, or the file of the source, from there."
        )

    async def built() -> Any:
        model = None
        if place.model is not None:
            name = place.model
            # Feedback reads its words from the engine, so each engine has one of its own.
            kept = f"{name} {where}" if name == "feedback" else name
            model = await tools.keep(
                f"model {kept}", name, lambda: open_searcher(name, engine, tools.replies)
            )
        return build_search_graph(engine, model, prompts=tools.prompts)

    graph = await tools.keep(f"graph {where} {place.model}", place, built)
    context = dict(search.context)
    if search.weights is None:
        return await searched(graph, search.query, make_context(**context))
    with tempfile.TemporaryDirectory(prefix="fairqr-") as folder:
        path = Path(folder) / "weights.json"
        path.write_bytes(search.weights)
        context["options"] = {**context.get("options", {}), "weights": str(path)}
        return await searched(graph, search.query, make_context(**context))


async def searched(graph: Any, query: str, context: Context) -> Mapping[str, Any]:
    """Search, and return the fields of a record; a query that finds nothing is a result too."""
    try:
        state = await graph.ainvoke({"query": query}, context=context)
    except QueryError as error:
        return {"error": str(error)}
    return _told(SearchResult.model_validate(state["result"]))


def _told(result: SearchResult) -> Mapping[str, Any]:
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
        "model_calls": usage.model_calls + usage.cached_calls,
        "tokens": usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens,
        "milliseconds": round(usage.milliseconds + usage.cached_milliseconds, 1),
        "warnings": result.warnings,
    }
