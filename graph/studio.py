"""The graph for ``langgraph dev`` and Studio; named in ``langgraph.json``, for development only.

That server keeps states itself, so the graph has no checkpointer. It calls the factory for every
run, so the engine and the model are kept. ``FAIRQR_CORPUS`` names what to search, and
``FAIRQR_MODEL`` what refines, and answers where the context asks for it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fairqr.agents.attribution.open import DEFAULT_ATTRIBUTOR
from fairqr.agents.models import open_model
from fairqr.graph.builder import build_graph
from fairqr.retrieval.catalog import Catalog
from fairqr.settings import default_corpus, default_model

__all__ = ["graph"]

_built: dict[tuple[str, str], Any] = {}
_building: asyncio.Lock | None = None


async def graph() -> Any:
    """Return the compiled graph over the configured corpus and model."""
    global _building
    _building = _building or asyncio.Lock()
    corpus, model = default_corpus(), default_model()
    async with _building:
        if (corpus, model) not in _built:
            engine = await Catalog().resolve(corpus)
            refiner = open_model(model, engine=engine)
            _built[corpus, model] = await asyncio.to_thread(
                build_graph, engine=engine, model=refiner, attributor=DEFAULT_ATTRIBUTOR
            )
    return _built[corpus, model]
