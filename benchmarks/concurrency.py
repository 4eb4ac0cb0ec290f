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
MAX_RATIO = 3.0
MAX_RATIO_OF_CALLS = 1.3
MAX_PROCESSOR_MILLISECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """What came of many searches at once.

    Attributes:
        seconds: From the first start to the last end.
        rounds: How often the run that asked most asked the model, one time after another.
        calls: How often the model was asked.
        processor: Seconds of processor time that this process spent.
    """

    seconds: float
    rounds: int
    calls: int
    processor: float

    @property
    def floor(self) -> float:
        """The seconds that the longest run slept."""
        return self.rounds * SLEEP


def concurrency_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure 100 searches at once through HTTP, and with a model that sleeps in the process.

    The floor is what the run with the most rounds slept. Beside it stands what the same number of
    requests costs by langchain's client alone, in as many rounds.
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
        yield _against_floor("over HTTP", chat)
        searches, calls = median([crowd.seconds for crowd in chat]), median(langchain)
        yield Row(
            "concurrency",
            f"the same, {chat[0].calls} model calls",
            searches * 1000,
            "ms",
            "as many calls by langchain",
            calls * 1000,
            f"≤ {MAX_RATIO_OF_CALLS:g}×",
            searches <= MAX_RATIO_OF_CALLS * calls,
        )
        yield _against_floor("in process", local)
        processor = median([crowd.processor for crowd in local]) / AT_ONCE * 1000
        yield Row(
            "concurrency",
            "the same, processor time of one search",
            processor,
            "ms",
            target=f"≤ {MAX_PROCESSOR_MILLISECONDS:g} ms",
            reached=processor <= MAX_PROCESSOR_MILLISECONDS,
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


def _against_floor(how: str, crowds: Sequence[Crowd]) -> Row:
    seconds = median([crowd.seconds for crowd in crowds])
    floor = median([crowd.floor for crowd in crowds])
    return Row(
        "concurrency",
        f"{AT_ONCE} searches at once, a model of {SLEEP * 1000:g} ms {how}",
        seconds * 1000,
        "ms",
        f"sleep floor, {round(floor / SLEEP)} rounds",
        floor * 1000,
        f"≤ {MAX_RATIO:g}×",
        seconds <= MAX_RATIO * floor,
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
    start, processor = time.perf_counter(), time.process_time()
    done = await asyncio.gather(*(one(query) for query in asked))
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    return Crowd(
        seconds,
        max(rounds for rounds, _ in done),
        sum(usage["model_calls"] for _, usage in done),
        processor,
    )


async def _langchain(url: str, crowd: Crowd) -> float:
    """Ask as often, in as many rounds, by langchain's client, and return the seconds."""
    import openai
    from langchain.chat_models import init_chat_model

    client = init_chat_model(
        "openai:sleep",
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        http_async_client=openai.DefaultAsyncHttpxClient(),
    )
    message = [{"role": "user", "content": "<group>female</group>"}]
    start = time.perf_counter()
    for number in range(crowd.rounds):
        share = crowd.calls // crowd.rounds + (number < crowd.calls % crowd.rounds)
        await asyncio.gather(*(client.ainvoke(message) for _ in range(share)))
    return time.perf_counter() - start


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


def _counted(url: str) -> dict[str, int]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/count", timeout=10) as answer:
        counts: dict[str, int] = json.load(answer)
    return counts
