"""The process that re-ranks one index, a program with two arguments: the settings, and the index.

It is asked on stdin and answers on stdout. Lists are made one after the other, and one that is late
is not made any more. One that a client waits for does not wait for what is only looked at.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import resource
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.base.errors import FairqrError
from fairqr.graph.service.proxy.messages import Answered, MeasureShown, Opened, Rerank, pauses
from fairqr.graph.service.proxy.ordering import IndexOrder, opened, reranked
from fairqr.graph.service.proxy.requests import UnavailableError
from fairqr.graph.service.proxy.settings import proxy_settings
from fairqr.graph.service.proxy.warming import warm_up

ROOM = 50 * 2**20
"""Bytes that a list may take, which the longest reply may need."""

WIDE = 512
"""The width of a matrix that several threads multiply."""

log = logging.getLogger(__name__)


class _Answers:
    """Answers what is asked."""

    def __init__(self) -> None:
        self._output = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what anything prints is no answer
        self._turn = asyncio.Lock()
        self._turn_of_looks = asyncio.Lock()
        self._missing: list[str] = []

    async def live(self, path: Path, index: str) -> None:
        """Open the index, and answer until stdin is closed: that is when the proxy has ended."""
        loop = asyncio.get_running_loop()
        order: asyncio.Future[IndexOrder] = loop.create_future()

        def listen() -> None:
            try:
                while True:
                    number, question = pickle.load(sys.stdin.buffer)  # noqa: S301  of our own process
                    answer = self._answer(order, number, question)
                    asyncio.run_coroutine_threadsafe(answer, loop)
            finally:  # the proxy has ended, or there is no memory to read what it asks
                os._exit(1)

        threading.Thread(target=listen, daemon=True).start()
        order.set_result(await self._opened(path, index))
        await asyncio.Event().wait()

    async def _opened(self, path: Path, index: str) -> IndexOrder:
        """Open the index; where that fails, say why and try it again."""
        last_reason = ""
        for pause in pauses():
            try:
                settings = proxy_settings(path)
                _limit(settings.memory)
                order = await opened(settings, index, self._missing.extend)
                await warm_up(order, settings.indexes[index].window)
                bytearray(ROOM)  # or the first list would end the process
                gc.freeze()  # what is there stays, so it need not be looked through
            except MemoryError:
                reason = f"It needs more than {settings.memory} MB; raise 'memory'."
            except FairqrError as error:
                reason = str(error)
            except Exception as error:  # in one sentence, for the log
                reason = repr(error)
            else:
                self._tell(0, Opened("", order.label_fields, order.names))
                return order
            if reason != last_reason:
                last_reason = reason
                self._tell(0, Opened(reason))
            await asyncio.sleep(pause)
        raise AssertionError  # the pauses have no end

    async def _answer(
        self,
        order: asyncio.Future[IndexOrder],
        number: int,
        question: Rerank | MeasureShown | None,
    ) -> None:
        if question is None:  # the proxy only wants a sign of life
            self._tell(number, Answered("", None, 0.0, []))
            return
        reason = ""
        answer: Any = None
        turn = self._turn_of_looks if question.is_look else self._turn
        async with turn:
            started = time.monotonic()
            try:
                async with asyncio.timeout_at(question.until):
                    answer = await _answer_of(await order, question)
            except UnavailableError as error:
                reason = str(error)
            except TimeoutError:
                reason = "slow"
            except Exception as error:  # whatever it is, the cluster's own hits are shown
                reason = type(error).__name__
                if not isinstance(error, FairqrError):
                    log.warning("A list was not made: %r", error)
            seconds = time.monotonic() - started
        missing = [*self._missing]
        self._missing.clear()
        self._tell(number, Answered(reason, answer, seconds, missing))

    def _tell(self, number: int, message: Opened | Answered) -> None:
        pickled = pickle.dumps((number, message))
        self._output.write(len(pickled).to_bytes(8) + pickled)
        self._output.flush()


def _limit(memory: int) -> None:
    """Limit the memory of this process, in megabytes."""
    # OpenBLAS takes its own at the first product, and without a word ends a process that has none.
    square = np.ones((WIDE, WIDE))
    square @ square
    with suppress(ValueError):  # it is limited to less already
        most_bytes = memory * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))


async def _answer_of(order: IndexOrder, question: Rerank | MeasureShown) -> Any:
    if isinstance(question, MeasureShown):
        return await order.measured(question.hits)
    return await reranked(order, question.searches, question.reply, question.until)


if __name__ == "__main__":
    asyncio.run(_Answers().live(Path(sys.argv[1]), sys.argv[2]))
