"""A worker in a process of its own, to be killed: it does the runs of a store.

It prints ``ready`` when it takes runs, and ``over`` where it was told to stop between
the end of a graph and the end of its run. SIGTERM drains it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fairqr.agents.models.chat import ChatModel
from fairqr.api import open_engine
from fairqr.graph.answer.builder import build_answer_graph
from fairqr.graph.answer.context import answer_context
from fairqr.graph.search.builder import build_search_graph
from fairqr.graph.search.context import Context, make_context
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import Kind, Run
from fairqr.graph.service.runs.doing import Observer
from fairqr.graph.service.runs.durable import DurableRun
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.store import Store
from fairqr.graph.stream import RunEvent, run_graph


def context_of(kind: Kind, request: Mapping[str, Any]) -> Context:
    """What a request of the tests asks for."""
    options = {name: value for name, value in request.items() if name != "query"}
    return answer_context(**options) if kind == "answer" else make_context(**options)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("corpus")
    parser.add_argument("base_url")
    parser.add_argument("--stop-when-over", action="store_true")
    given = parser.parse_args()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    store = await Store.open(given.store)
    engine = await open_engine(given.corpus)
    # Without the cache of replies, which would hide a question that is asked again.
    model = ChatModel("openai:fake", base_url=given.base_url, cache=None)
    await model.start()
    graphs = {
        "search": build_search_graph(engine, model),
        "answer": build_answer_graph(engine, model, attributor="overlap"),
    }

    async def execute(run: Run, durable: DurableRun) -> AsyncGenerator[RunEvent, None]:
        context = context_of(run.kind, run.request)
        await durable.begin_over("one version")
        graph = graphs[run.kind].copy({"checkpointer": durable.saver})
        options: Any = {"thread": run.id, "resume": durable.resumed, "durability": "async"}
        events = run_graph(graph, run.query, context, journal=durable, **options)
        async with aclosing(events):
            async for event in events:
                yield event
        if given.stop_when_over:
            print("over", flush=True)
            await asyncio.Event().wait()

    runs = Runs(store, execute, ServiceSettings(lease=2, grace=1), Observer())
    await runs.start()
    print("ready", flush=True)
    await ended.wait()
    await runs.drain(1)
    await engine.aclose()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
