"""The process that re-ranks, and the proxy's end of it.

Whatever happens to it, the proxy goes on and shows the cluster's own hits. Each message is a line
of JSON and as many bytes as it says.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

FROZEN = 5.0
"""Seconds without any answer after which the process is ended."""

BEHIND = 32
"""So many searches may wait for it; others are shown as they are."""

LINE = 2**20


class UnavailableError(Exception):
    """Nothing is re-ranked; the text is one word that says why."""


class Worker:
    """Keeps the process alive and asks it.

    Args:
        settings: The file of the proxy's settings, which the process reads as well.
    """

    def __init__(self, settings: Path) -> None:
        self._settings, self._numbers = settings, count()
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[int, tuple[float, asyncio.Future[tuple[Any, bytes]]]] = {}
        self._ready, self._heard = False, 0.0

    async def keep(self) -> None:
        """Start the process, and start it again whenever it ends, until this is cancelled."""
        pause = 0.1
        while True:
            command = (sys.executable, "-m", "fairqr.graph.doors.proxy.worker")
            self._process = process = await asyncio.create_subprocess_exec(
                *command,
                str(self._settings),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE,
            )
            watching = asyncio.create_task(self._end_if_frozen(process))
            begun = time.monotonic()
            try:
                await self._listen(process)
            finally:
                watching.cancel()
                self._ready = False
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                for _, waiting in self._waiting.values():
                    if not waiting.done():
                        waiting.set_exception(UnavailableError("worker"))
                self._waiting.clear()
            pause = 0.1 if time.monotonic() - begun > FROZEN else min(5.0, 2 * pause)
            await asyncio.sleep(pause)

    async def ask(
        self, asked: Mapping[str, Any], reply: bytes, within: float
    ) -> tuple[dict[str, Any], bytes]:
        """Have a reply of the cluster re-ranked.

        Args:
            asked: What to do with it.
            reply: The reply.
            within: Seconds to wait.

        Raises:
            UnavailableError: It is not done.
        """
        if not self._ready or self._process is None or self._process.stdin is None:
            raise UnavailableError("worker")
        if len(self._waiting) >= BEHIND:
            raise UnavailableError("busy")
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = time.monotonic(), future
        self._process.stdin.write(_message({**asked, "number": number}, reply))
        try:
            async with asyncio.timeout(within):
                told, body = await future
        except TimeoutError:
            raise UnavailableError("slow") from None
        if "passed" in told:
            raise UnavailableError(told["passed"])
        return told, body

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        with suppress(asyncio.IncompleteReadError):
            while True:
                told, body = await _read(process.stdout)
                self._ready, self._heard = True, time.monotonic()
                _, waiting = self._waiting.pop(told["number"], (0.0, None))
                if waiting is not None and not waiting.done():
                    waiting.set_result((told, body))

    async def _end_if_frozen(self, process: asyncio.subprocess.Process) -> None:
        while True:
            await asyncio.sleep(FROZEN / 5)
            oldest = min((since for since, _ in self._waiting.values()), default=None)
            now = time.monotonic()
            if oldest is not None and now - max(oldest, self._heard) > FROZEN:
                process.kill()
                return


def _message(told: Mapping[str, Any], body: bytes) -> bytes:
    return json.dumps({**told, "bytes": len(body)}).encode() + b"\n" + body


async def _read(stream: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    told = json.loads(await stream.readuntil())
    return told, await stream.readexactly(told["bytes"])


async def _serve(path: Path, stdout: int) -> None:
    """Answer messages until stdin ends."""
    from fairqr.graph.doors.proxy.ordering import IndexOrder, NotRerankedError, opened
    from fairqr.graph.doors.proxy.settings import proxy_settings

    settings = proxy_settings(path)
    loop, stream = asyncio.get_running_loop(), asyncio.StreamReader(limit=LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), sys.stdin)
    orders: dict[str, IndexOrder] = await opened(settings)
    os.write(stdout, _message({"number": -1}, b""))
    with suppress(asyncio.IncompleteReadError):
        while True:
            asked, reply = await _read(stream)
            try:
                whole, told = json.loads(reply), []
                for part in asked["parts"]:
                    one = whole if part["place"] is None else whole["responses"][part["place"]]
                    told.append(await orders[part["index"]](one, part))
                answer: dict[str, Any] = {"told": told}
                body = json.dumps(whole, separators=(",", ":")).encode()
            except NotRerankedError as error:
                answer, body = {"passed": str(error)}, b""
            except Exception as error:  # whatever it is, the cluster's own hits are shown
                answer, body = {"passed": type(error).__name__}, b""
            _write(stdout, _message({**answer, "number": asked["number"]}, body))


def _write(stdout: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(stdout, view) :]


def main() -> None:
    """Run the process; what anything prints goes to stderr."""
    import resource

    from fairqr.graph.doors.proxy.settings import proxy_settings

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the proxy ends it
    stdout = os.dup(1)
    os.dup2(2, 1)
    path = Path(sys.argv[1])
    most = proxy_settings(path).memory * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    asyncio.run(_serve(path, stdout))


if __name__ == "__main__":
    main()
