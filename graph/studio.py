"""The three graphs for ``langgraph dev``, Studio and servers like them; see ``langgraph.json``.

Such a server keeps states itself, so the graphs have no checkpointer. It calls a factory for every
run, so the graphs are kept. ``FAIRQR_CORPUS`` names what to search, and ``FAIRQR_MODEL`` what
refines, answers and is probed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from langgraph_sdk.runtime import ServerRuntime

from fairqr.agents.attribution.attributors import DEFAULT_ATTRIBUTOR
from fairqr.agents.models import open_model
from fairqr.base.settings import default_corpus, default_model
from fairqr.graph.answer.builder import build_answer_graph
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.probe.builder import build_probe_graph
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context, unknown_parameter
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.engines.engine import SearchEngine

__all__ = ["answer", "probe", "search"]

_built: dict[tuple[str, str], dict[str, Any]] = {}
_building: asyncio.Lock | None = None


async def search(runtime: ServerRuntime[Any]) -> Any:
    """Return the graph that searches."""
    _refuse_unknown(runtime, Context)
    return (await _graphs())["search"]


async def answer(runtime: ServerRuntime[Any]) -> Any:
    """Return the graph that answers."""
    _refuse_unknown(runtime, AnswerContext)
    return (await _graphs())["answer"]


async def probe(runtime: ServerRuntime[Any]) -> Any:
    """Return the graph that probes."""
    _refuse_unknown(runtime, ProbeContext)
    return (await _graphs())["probe"]


def _refuse_unknown(runtime: ServerRuntime[Any], kind: type[Context]) -> None:
    """Refuse a context with names that the graph does not know, which the server would drop.

    Raises:
        InputError: There is such a name.
    """
    # Other servers may pass a config of LangGraph's here; they check contexts in their own way.
    run = getattr(runtime, "execution_runtime", None)
    given = run.context if run is not None else None
    for name in given if isinstance(given, Mapping) else ():
        if name not in kind.model_fields:
            raise unknown_parameter(str(name), kind.model_fields)


async def _graphs() -> dict[str, Any]:
    global _building
    _building = _building or asyncio.Lock()
    corpus, model = default_corpus(), default_model()
    async with _building:
        if (corpus, model) not in _built:
            engine = await Catalog().resolve(corpus)
            # Prompts are files, and such a server refuses to wait for one.
            _built[corpus, model] = await asyncio.to_thread(_build, engine, model)
    return _built[corpus, model]


def _build(engine: SearchEngine, name: str) -> dict[str, Any]:
    model = open_model(name, engine=engine)
    return {
        "search": build_search_graph(engine, model),
        "answer": build_answer_graph(engine, model, attributor=DEFAULT_ATTRIBUTOR),
        "probe": build_probe_graph(engine, model),
    }
