"""A hundred fair searches at once, by gender, with a model that takes 50 ms to answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generated import GENDERS, REGIONS, group_words, queries
from measuring import Row, median
from stubs import ROUNDS, ROUNDS_OPTIONS, InstantRefiner
from workspace import Workspace

from fairqr import FairSearch, SearchResult, StepData
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.refiner import Refiner
from fairqr.retrieval.engines.engine import SearchEngine

AT_ONCE = 100
SLEEP = 0.05
MAX_RATIO_OF_CALLS = 1.5


@dataclass(frozen=True, slots=True)
class Crowd:
    """What came of many searches at once.

    Attributes:
        rounds: How often the run that asked most asked the model, one time after another.
        calls: How often the model was asked.
        processor: Seconds of processor time that this process spent.
    """

    rounds: int
    calls: int
    processor: float


def concurrency_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure 100 searches at once with a model over HTTP, and with one that sleeps in the process.

    Beside the difference stands what the same number of requests costs by langchain's client alone.
    """
    engine = workspace.engine()
    asked = queries(AT_ONCE)
    words = {group: group_words(group) for group in (*GENDERS, *REGIONS)}
    repeats = 1 if workspace.quick else 3
    with sleeping_server() as url:
        chat: list[Crowd] = []
        langchain: list[float] = []
        local: list[Crowd] = []
        for _ in range(repeats):
            model = ChatModel("openai:sleep", base_url=f"{url}/v1", api_key="none")
            chat.append(asyncio.run(_crowd(engine, model, asked)))
            langchain.append(asyncio.run(_langchain(url, chat[-1])))
            local.append(asyncio.run(_crowd(engine, InstantRefiner(words, SLEEP), asked)))
        found = (("chat", chat), ("local", local))
        calls = chat[0].calls
        busy = {name: median([crowd.processor for crowd in crowds]) for name, crowds in found}
        added = (busy["chat"] - busy["local"]) / calls * 1000
        alone = median(langchain) / calls * 1000
        yield Row(
            "concurrency",
            f"processor time that a model adds, {calls} calls of {AT_ONCE} searches at once",
            added,
            "ms",
            "as many calls by langchain",
            alone,
            f"≤ {MAX_RATIO_OF_CALLS:g}×",
            added <= MAX_RATIO_OF_CALLS * alone,
        )
        both = ("gender", "region")
        cache = ReplyCache(workspace.folder / "replies.sqlite")
    with sleeping_server() as url:
        model = ChatModel("openai:sleep", base_url=f"{url}/v1", api_key="none", cache=cache)
        asyncio.run(_crowd(engine, model, asked[:1] * AT_ONCE, both))
        counted = _counted(url)
        yield Row(
            "concurrency",
            f"{AT_ONCE} equal searches at once, two attributes, with the cache",
            counted["asked"],
            "calls",
            "distinct questions",
            counted["distinct"],
            "= 1×",
            0 < counted["asked"] == counted["distinct"],
        )


async def _crowd(
    engine: SearchEngine,
    model: ChatModel | Refiner,
    asked: Sequence[str],
    attributes: Sequence[str] = ("gender",),
) -> Crowd:
    """Search for all of these at once."""
    search = FairSearch(engine, model)

    async def one(query: str) -> tuple[int, dict[str, Any]]:
        rounds = 0
        async for event in search.stream(query, attributes=attributes, **ROUNDS_OPTIONS):
            if isinstance(event, StepData):
                rounds += event.step == "refine"
            elif isinstance(event, SearchResult):
                result = event
        assert result.stop_reason != "model_failed", result.warnings
        assert rounds == ROUNDS, result.stop_reason
        return rounds, result.usage.model_dump()

    # A process makes its client once.
    if isinstance(model, ChatModel):
        await model.start()
    before = time.process_time()
    done = await asyncio.gather(*(one(query) for query in asked))
    processor = time.process_time() - before
    return Crowd(
        max(rounds for rounds, _ in done),
        sum(usage["model_calls"] for _, usage in done),
        processor,
    )


async def _langchain(url: str, crowd: Crowd) -> float:
    """Ask the same as often by langchain's client; return seconds of the processor."""
    import openai
    from langchain.chat_models import init_chat_model

    client = init_chat_model(
        "openai:sleep",
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        http_async_client=openai.DefaultAsyncHttpxClient(),
    )
    more = _counted(url)["last"]
    messages = more.pop("messages")
    del more["model"]
    start = time.process_time()
    for number in range(crowd.rounds):
        share = crowd.calls // crowd.rounds + (number < crowd.calls % crowd.rounds)
        await asyncio.gather(*(client.ainvoke(messages, **more) for _ in range(share)))
    return time.process_time() - start


@contextlib.contextmanager
def sleeping_server() -> Iterator[str]:
    """Run the server in a process of its own and yield its address."""
    command = [sys.executable, str(Path(__file__).with_name("sleeping_server.py")), str(SLEEP)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


def _counted(url: str) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/count", timeout=10) as answer:
        counts: dict[str, Any] = json.load(answer)
    return counts
