"""A fair step that may take long runs in a thread, so that the event loop goes on meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fairqr import Context, build_search_graph
from fairqr.graph.search import page_figures
from fairqr.graph.search.pool import FEW
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.rerankers.fair import FairStep
from tests.unit.graph.corpora import corpus, engine, indexed

__all__ = ["corpus", "engine"]


async def threads_of(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> set[bool]:
    """Search; return whether the fair step, and its certificate, ran in the thread of the loop."""
    loop_thread = threading.current_thread()
    found = set()

    def watch(owner: Any, name: str) -> None:
        own = getattr(owner, name)

        def watched(*given: Any) -> Any:
            found.add(threading.current_thread() is loop_thread)
            return own(*given)

        monkeypatch.setattr(owner, name, watched)

    watch(FairStep, "take")
    watch(page_figures, "certify")
    context = Context(k=4, max_iterations=0, **options)
    await build_search_graph(engine).ainvoke({"query": "science"}, context=context)
    return found


@pytest.mark.parametrize(
    ("options", "in_loop"),
    [
        ({}, True),
        ({"spread": (2,)}, False),
        ({"at_most": 0.9}, False),
        ({"equal_chance": True}, False),
        ({"fairness": "worst"}, False),
        ({"target": "uniform:1"}, False),
    ],
)
async def test_options_that_take_long_take_a_thread(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], in_loop: bool
) -> None:
    assert await threads_of(engine, monkeypatch, **options) == {in_loop}


async def test_many_groups_take_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal chance for 300 sellers took half a minute, for which no request was answered."""
    documents = [{"id": str(n), "text": "science", "seller": f"shop {n}"} for n in range(FEW + 1)]
    schema = "attributes: {seller: {field: seller, groups: any}}"
    sellers = await indexed(tmp_path, documents, schema)
    assert await threads_of(sellers, monkeypatch) == {False}
    await sellers.aclose()
