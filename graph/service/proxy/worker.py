"""The process that re-ranks, and the proxy's end of it.

Whatever happens to it, the proxy goes on and shows the cluster's own hits.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

from fairqr.graph.service.proxy.ordering import IndexOrder, NotRerankedError, opened
from fairqr.graph.service.proxy.settings import proxy_settings

Parts = Sequence[Mapping[str, Any]]
Told = dict[str, Any]

FROZEN = 5.0
"""Seconds without any answer after which the process is ended."""

BEHIND = 32
"""So many searches may wait for it; others are shown as they are."""


class UnavailableError(Exception):
    """Nothing is re-ranked; the text is one word that says why."""


class Worker:
    """Keeps the process alive and asks it.

    Args:
        settings: The file of the proxy's settings, which the process reads as well.
    """

    def __init__(self, settings: Path) -> None:
        self._settings, self._broken = settings, asyncio.Event()
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: dict[Future[Any], float] = {}
        self._heard = 0.0

    async def keep(self) -> None:
        """Start the process, and start it again whenever it ends, until this is cancelled."""
        pause = 0.1
        while True:
            begun, spawned = time.monotonic(), get_context("spawn")
            with (
                ProcessPoolExecutor(1, spawned, _begin, (self._settings,)) as pool,
                suppress(BrokenProcessPool),
            ):
                process = await asyncio.wrap_future(pool.submit(os.getpid))
                await self._watch(pool, process)
            pause = 0.1 if time.monotonic() - begun > FROZEN else min(5.0, 2 * pause)
            await asyncio.sleep(pause)

    async def ask(self, parts: Parts, reply: bytes, within: float) -> tuple[list[Told], bytes]:
        """Have a reply of the cluster re-ranked; return what was done to each search of it.

        Args:
            parts: What to do with each search.
            reply: The reply.
            within: Seconds to wait.

        Raises:
            UnavailableError: It is not done.
        """
        if self._pool is None:
            raise UnavailableError("worker")
        if len(self._waiting) >= BEHIND:
            raise UnavailableError("busy")
        try:
            asked = self._pool.submit(_rerank, parts, reply)
            self._waiting[asked] = time.monotonic()
            asked.add_done_callback(self._answered)
            async with asyncio.timeout(within):
                why, told, body = await asyncio.wrap_future(asked)
        except TimeoutError:
            raise UnavailableError("slow") from None
        except BrokenProcessPool:
            self._broken.set()
            raise UnavailableError("worker") from None
        if why:
            raise UnavailableError(why)
        return told, body

    def _answered(self, asked: Future[Any]) -> None:
        self._waiting.pop(asked, None)
        self._heard = time.monotonic()

    async def _watch(self, pool: ProcessPoolExecutor, process: int) -> None:
        """Wait until the process has ended, and end it if it is frozen."""
        self._pool = pool
        self._broken.clear()
        try:
            while not self._broken.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(FROZEN / 5):
                        await self._broken.wait()
                now, since = time.monotonic(), min(self._waiting.values(), default=math.inf)
                if now - max(since, self._heard) > FROZEN:
                    return
        finally:
            self._pool = None
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


_loop = asyncio.new_event_loop()
_orders: dict[str, IndexOrder] = {}


def _begin(path: Path) -> None:
    """Make this process ready: what it does later, such as encoding, goes on between searches."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the proxy ends it
    os.dup2(2, 1)  # what anything prints is no output of the command
    threading.Thread(target=_end_with_the_proxy, daemon=True).start()
    settings = proxy_settings(path)
    most = settings.memory * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    threading.Thread(target=_loop.run_forever, daemon=True).start()
    _orders.update(asyncio.run_coroutine_threadsafe(opened(settings), _loop).result())


def _end_with_the_proxy() -> None:
    proxy = parent_process()
    if proxy is not None:
        connection.wait([proxy.sentinel])
        os._exit(1)


def _rerank(parts: Parts, reply: bytes) -> tuple[str, list[Told], bytes]:
    """Return why nothing is re-ranked, or what was done to each search, and the reply."""
    try:
        return asyncio.run_coroutine_threadsafe(_reranked(parts, reply), _loop).result()
    except NotRerankedError as error:
        return str(error), [], b""
    except Exception as error:  # whatever it is, the cluster's own hits are shown
        return type(error).__name__, [], b""


async def _reranked(parts: Parts, reply: bytes) -> tuple[str, list[Told], bytes]:
    whole, told = json.loads(reply), []
    for part in parts:
        one = whole if part["place"] is None else whole["responses"][part["place"]]
        told.append(await _orders[part["index"]](one, part))
    return "", told, json.dumps(whole, separators=(",", ":")).encode()
