"""Encodes texts that lists lacked, in a process of its own that runs when the others are idle."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress

from fairqr.base.errors import FairqrError
from fairqr.base.weights import is_pulled
from fairqr.retrieval.encoders.encoder import KeptVectors
from fairqr.retrieval.encoders.minilm import MiniLmEncoder

PAUSE = 30.0
"""Seconds until it is started again."""

log = logging.getLogger(__name__)


class TextEncoder:
    """Keeps the process alive and gives it texts; the vectors are kept for all processes."""

    def __init__(self) -> None:
        self._input: asyncio.StreamWriter | None = None
        self._under_way: asyncio.Task[None] | None = None

    async def keep(self) -> None:
        """Run the process, and run it again where it ends, until this is cancelled."""
        if not is_pulled(MiniLmEncoder.name):
            return
        program = (sys.executable, "-P", "-m", __name__)
        while True:
            process = await asyncio.create_subprocess_exec(
                *program, stdin=PIPE, stdout=DEVNULL, start_new_session=True
            )
            self._input = process.stdin
            try:
                code = await process.wait()
            finally:
                self._input = None
                with suppress(ProcessLookupError):
                    process.kill()
            log.warning("The process that encodes texts ended with %s; it starts again.", code)
            await asyncio.sleep(PAUSE)

    def add(self, texts: Sequence[str]) -> None:
        """Have texts encoded, unless others still wait: these are encoded when they come again."""
        if self._input is None or not texts:
            return
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._send(self._input, texts))

    async def _send(self, process: asyncio.StreamWriter, texts: Sequence[str]) -> None:
        with suppress(OSError):  # it has just ended
            process.write(pickle.dumps(texts))
            await process.drain()


async def _encode_all() -> None:
    """Encode what is sent on stdin, until it is closed: that is when the proxy has ended."""
    vectors = await KeptVectors.of(MiniLmEncoder())
    while True:
        try:
            texts = await asyncio.to_thread(pickle.load, sys.stdin.buffer)  # noqa: S301  of the proxy
        except EOFError:
            return
        try:
            await vectors.encode(texts)
        except FairqrError as error:
            log.warning("Texts were not encoded. %s", error)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)
    asyncio.run(_encode_all())
