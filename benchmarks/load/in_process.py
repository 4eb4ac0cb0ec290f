"""The same searches without a service: how long one takes, and how long its model and engine take.

``python -m benchmarks.load.in_process INDEX MODEL_URL COUNT`` prints one JSON object of
milliseconds by search: ``whole``; ``parts``, the time in which a question to the model or to the
engine was under way; and ``processor``, its processor time. Searches run one after the other.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from typing import Any

from benchmarks.generated import queries
from fairqr.agents.models.chat import ChatModel
from fairqr.api import FairSearch
from fairqr.retrieval.sources.catalog import Catalog

WARM_UP = 5


class Stopwatch:
    """Measures the time in which at least one of several things is under way."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._under_way = 0
        self._since = 0.0

    def __enter__(self) -> None:
        if not self._under_way:
            self._since = time.perf_counter()
        self._under_way += 1

    def __exit__(self, *_: object) -> None:
        self._under_way -= 1
        if not self._under_way:
            self.seconds += time.perf_counter() - self._since


class Timed:
    """Stands for an engine or a model, and times each of its questions."""

    def __init__(self, timed: Any, watch: Stopwatch) -> None:
        self._timed = timed
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._timed, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            with self._watch:
                return await found(*arguments, **named)

        return call


class TimedModel(ChatModel):
    """A chat model whose questions are timed."""

    watch: Stopwatch

    async def ask(self, *arguments: Any, **named: Any) -> Any:
        """Ask, and time it."""
        with self.watch:
            return await super().ask(*arguments, **named)


async def measure(name: str, model_url: str, count: int) -> dict[str, list[float]]:
    """Search so often, and return the milliseconds of each search."""
    watch = Stopwatch()
    model = TimedModel("openai:load", base_url=f"{model_url}/v1", api_key="none")
    model.watch = watch
    engine: Any = Timed(await Catalog().resolve(name), watch)
    search = FairSearch(engine, model)
    whole: list[float] = []
    parts: list[float] = []
    processor: list[float] = []
    asked = queries(200, 4)
    for number in range(-WARM_UP, count):
        query = f"{asked[number % len(asked)]} run{9_000_000 + number}"
        watch.seconds = 0.0
        start, busy = time.perf_counter(), time.process_time()
        await search.search(query, attributes=["gender"], k=10, ask="always")
        if number >= 0:
            whole.append((time.perf_counter() - start) * 1000)
            parts.append(watch.seconds * 1000)
            processor.append((time.process_time() - busy) * 1000)
    await engine.aclose()
    return {"whole": whole, "parts": parts, "processor": processor}


def main(name: str, model_url: str, count: int) -> None:
    """Measure, and print what was measured."""
    print(json.dumps(asyncio.run(measure(name, model_url, count))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
