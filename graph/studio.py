"""The three graphs for ``langgraph dev``, Studio and similar servers; see ``langgraph.json``.

Such a server keeps states itself, so the graphs have no checkpointer. It calls a factory for every
run, so we keep the graphs. ``FAIRQR_CORPUS`` names the corpus to search, and ``FAIRQR_MODEL`` the
model that refines, answers and is probed.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from typing import Any

from langgraph_sdk.runtime import ServerRuntime

from fairqr.agents.attribution.opening import DEFAULT_ATTRIBUTOR
from fairqr.base.settings import default_corpus, default_model
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.opening import open_parts
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.search.context import METHODS, Context, unknown_parameter
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.catalog import Catalog

# Imported early: some of these modules write files during import, and such a server does not allow
# blocking calls in a run.
for _module in ("embedded", "texts"):
    importlib.import_module(f"fairqr.retrieval.engines.hybrid.{_module}")

_built: dict[tuple[str, str, str], dict[str, Any]] = {}
_building = asyncio.Lock()


async def search(runtime: ServerRuntime[Any]) -> Any:
    """Return the graph that searches."""
    return await _graph("search", runtime, Context)


async def answer(runtime: ServerRuntime[Any]) -> Any:
    """Return the graph that answers."""
    return await _graph("answer", runtime, AnswerContext)


async def probe(runtime: ServerRuntime[Any]) -> Any:
    """Return the graph that probes."""
    return await _graph("probe", runtime, ProbeContext)


async def _graph(name: str, runtime: ServerRuntime[Any], kind: type[Context]) -> Any:
    """Return a graph that uses the default retriever of the method that a run asks for.

    Raises:
        InputError: The context has an unknown name, which the server would silently drop.
    """
    # Other servers may pass a config of LangGraph here; they check contexts themselves.
    run = getattr(runtime, "execution_runtime", None)
    values: Mapping[str, Any] = {}
    if run is not None and isinstance(run.context, Mapping):
        values = run.context
    for field in values:
        if field not in kind.model_fields:
            raise unknown_parameter(str(field), kind.model_fields)

    corpus = default_corpus()
    model = default_model()
    retriever = _retriever_of(values.get("method", kind.model_fields["method"].default))
    key = (corpus, model, retriever)
    async with _building:
        if key not in _built:
            engine = await Catalog().resolve(corpus, retriever=retriever)
            # Building reads prompt files, and such a server does not allow blocking calls.
            _built[key] = await asyncio.to_thread(_build, engine, model)
    return _built[key][name]


def _retriever_of(method: object) -> str:
    """Return the default retriever of a method."""
    for name, strategy in METHODS.items():
        if name == method:
            return strategy.retriever
    # An unknown method is an error later, when the context is read.
    return AUTO


def _build(engine: SearchEngine, model: str) -> dict[str, Any]:
    parts = open_parts(engine, model, attributor=DEFAULT_ATTRIBUTOR)
    return {kind: parts.graph(kind) for kind in ("search", "answer", "probe")}
