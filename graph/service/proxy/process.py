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
"""Bytes that a list may take: so much it may be to read the longest reply."""

WIDE = 512
"""So large are matrices that several threads multiply."""

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
                    asked = pickle.load(sys.stdin.buffer)  # noqa: S301  of our own process
                    asyncio.run_coroutine_threadsafe(self._answer(order, *asked), loop)
            finally:  # the proxy has ended, or there is no memory to read what it asks
                os._exit(1)

        threading.Thread(target=listen, daemon=True).start()
        order.set_result(await self._opened(path, index))
        await asyncio.Event().wait()

    async def _opened(self, path: Path, index: str) -> IndexOrder:
        """Open the index; where that fails, say why and try it again."""
        said = ""
        for pause in pauses():
            try:
                settings = proxy_settings(path)
                _limit(settings.memory)
                order = await opened(settings, index, self._missing.extend)
                await warm_up(order, settings.indexes[index].window)
                bytearray(ROOM)  # or the first list would end the process
                gc.freeze()  # what is there stays, so it need not be looked through
            except MemoryError:
                why = f"It needs more than {settings.memory} MB; raise 'memory'."
            except Exception as error:  # in one sentence, for the log
                why = str(error) if isinstance(error, FairqrError) else repr(error)
            else:
                self._tell(0, Opened("", order.label_fields, order.names))
                return order
            if why != said:
                said = why
                self._tell(0, Opened(why))
            await asyncio.sleep(pause)
        raise AssertionError  # the pauses have no end

    async def _answer(
        self, order: asyncio.Future[IndexOrder], number: int, what: Rerank | MeasureShown | None
    ) -> None:
        if what is None:  # it only wants a sign of life
            self._tell(number, Answered("", None, 0.0, []))
            return
        why = ""
        answer: Any = None
        async with self._turn_of_looks if what.is_look else self._turn:
            started = time.monotonic()
            try:
                async with asyncio.timeout_at(what.until):
                    answer = await _answered(await order, what)
            except UnavailableError as error:
                why = str(error)
            except TimeoutError:
                why = "slow"
            except Exception as error:  # whatever it is, the cluster's own hits are shown
                why = type(error).__name__
                if not isinstance(error, FairqrError):
                    log.warning("A list was not made: %r", error)
            seconds = time.monotonic() - started
        missing = self._missing[:]
        self._missing.clear()
        self._tell(number, Answered(why, answer, seconds, missing))

    def _tell(self, number: int, what: Opened | Answered) -> None:
        told = pickle.dumps((number, what))
        self._output.write(len(told).to_bytes(8) + told)
        self._output.flush()


def _limit(memory: int) -> None:
    """Limit the memory of this process, in megabytes."""
    # OpenBLAS takes its own at the first product, and without a word ends a process that has none.
    square = np.ones((WIDE, WIDE))
    square @ square
    with suppress(ValueError):  # it is limited to less already
        resource.setrlimit(resource.RLIMIT_DATA, (memory * 2**20,) * 2)


async def _answered(order: IndexOrder, what: Rerank | MeasureShown) -> Any:
    if isinstance(what, MeasureShown):
        return await order.measured(what.hits)
    return await reranked(order, what.searches, what.reply, what.until)


if __name__ == "__main__":
    asyncio.run(_Answers().live(Path(sys.argv[1]), sys.argv[2]))
