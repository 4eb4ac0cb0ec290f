"""One search of an experiment, and what is kept of it; here, or on a worker."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.agents.cache import ReplyCache
from fairqr.agents.chat import ChatModel
from fairqr.agents.ranking.model import RankingModel
from fairqr.agents.refiner import Refiner
from fairqr.errors import InputError, QueryError
from fairqr.evaluation.experiments.store import Round
from fairqr.evaluation.workers.tools import Tools
from fairqr.graph.builder import build_graph
from fairqr.graph.context import Context, make_context
from fairqr.graph.rankers import open_language_model
from fairqr.graph.result import SearchResult
from fairqr.retrieval.catalog import Backend, Catalog, Choice
from fairqr.retrieval.index import Index, Progress
from fairqr.retrieval.vectors.open import open_retriever

__all__ = ["Place", "Search", "open_index", "open_searcher", "search_there", "searched"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where is searched, and what is asked.

    Attributes:
        corpus: As :meth:`fairqr.retrieval.catalog.Catalog.resolve` takes it.
        documents: The hash of what the index was made from.
        backend: Of the index.
        retriever: ``bm25``, ``dense`` or ``dense:ENCODER``.
        model: What refines or re-ranks; None where nothing does.
    """

    corpus: str
    documents: str
    backend: Backend
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


async def open_index(corpus: str, backend: Backend, retriever: str, preparing: Any = None) -> Index:
    """Open an index, made first where it is not there yet.

    Args:
        corpus: As the catalog takes it.
        backend: Where.
        retriever: ``bm25``, ``dense`` or ``dense:ENCODER``.
        preparing: Called with what is indexed or encoded; returns what is told how many documents.
    """

    def progress(what: str) -> Progress | None:
        return preparing(what) if preparing else None

    plain = await Catalog().resolve(
        corpus,
        Choice(backend),
        lambda name: progress(f"indexing {name}") or (lambda count: None),
    )
    return await open_retriever(plain, retriever, progress(f"encoding {plain.name}"))


async def open_searcher(
    name: str, index: Index, replies: ReplyCache
) -> ChatModel | Refiner | RankingModel:
    """Return what refines or ranks, started."""
    model = open_language_model(name, index=index, cache=replies)
    await model.start()
    return model


async def search_there(tools: Tools, search: Search) -> Mapping[str, Any]:
    """Do a search on a worker, and return what :func:`searched` does.

    Raises:
        InputError: The worker has other documents.
        FairqrError: The search cannot be done.
    """
    place = search.place
    where = f"{place.backend} {place.retriever}"
    index = await tools.keep(
        f"index {where}",
        place.corpus,
        lambda: open_index(place.corpus, place.backend, place.retriever),
    )
    if (await index.info()).source_sha256 != place.documents:
        raise InputError(
            f"The documents of '{place.corpus}' are others than where the experiment was begun; "
            "copy them from there."
        )

    async def built() -> Any:
        model = None
        if place.model is not None:
            name = place.model
            # Feedback reads its words from the index, so each index has one of its own.
            kept = f"{name} {where}" if name == "feedback" else name
            model = await tools.keep(
                f"model {kept}", name, lambda: open_searcher(name, index, tools.replies)
            )
        return build_graph(index=index, model=model, prompts=tools.prompts)

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
