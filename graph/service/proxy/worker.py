"""The process that re-ranks, and the proxy's end of it.

Whatever happens to it, the proxy goes on and shows the cluster's own hits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import resource
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairqr.base.errors import FairqrError
from fairqr.graph.service.proxy.ordering import IndexOrder, Told, opened, reranked
from fairqr.graph.service.proxy.requests import LabelFields, Search, UnavailableError
from fairqr.graph.service.proxy.settings import proxy_settings

FROZEN = 5.0
"""Seconds of silence after which we ask the process for a sign, and after as many more end it."""

BEHIND = 32
"""So many searches may wait for it; others are shown as they are."""

PAUSE = 2.0
"""Seconds until it is started again."""

log = logging.getLogger(__name__)


class Worker:
    """Keeps the process alive and asks it.

    Args:
        settings: The file of the proxy's settings, which the process reads as well.
    """

    def __init__(self, settings: Path) -> None:
        self._settings = settings
        self._input: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self.label_fields: dict[str, LabelFields] = {}
        """By index, once the process has opened it."""

    async def keep(self) -> None:
        """Start the process, and start it again whenever it ends, until this is cancelled."""
        while True:
            try:
                why = await self._live()
            except Exception as error:  # whatever it is, we try again
                why = f"The process that does it cannot start: {error!r}."
            self._input = None
            self._asked.clear()
            log.warning("Nothing is re-ranked at present. %s", why)
            await asyncio.sleep(PAUSE)

    def check(self) -> None:
        """Check that the process takes another search.

        Raises:
            UnavailableError: It does not.
        """
        if self._input is None or self._input.is_closing():
            raise UnavailableError("worker")
        if len(self._asked) >= BEHIND:
            raise UnavailableError("busy")
        if any(asked.cancelled() for asked in self._asked.values()):
            raise UnavailableError("slow")  # somebody has waited for nothing already

    async def ask(
        self, searches: Sequence[Search], reply: bytes, within: float
    ) -> tuple[list[Told | str], bytes]:
        """Have a reply of the cluster re-ranked; see :func:`reranked`.

        Args:
            searches: The searches, in the order of the reply.
            reply: The reply.
            within: Seconds to wait.

        Raises:
            UnavailableError: It is not done.
        """
        self.check()
        try:
            async with asyncio.timeout(within) as limit:
                why, told, shown = await self._ask(searches, reply, limit.when())
        except TimeoutError:
            raise UnavailableError("slow" if self._input else "worker") from None
        if why:
            raise UnavailableError(why)
        return told, shown

    def _ask(self, *what: Any) -> asyncio.Future[Any]:
        self._number += 1
        # It stays here until it is answered, even if nobody waits for it any more.
        asked = self._asked[self._number] = asyncio.get_running_loop().create_future()
        if self._input and not self._input.is_closing():  # it may have ended a moment ago
            self._input.write(pickle.dumps((self._number, what)))
        return asked

    async def _live(self) -> str:
        """Run the process, and return why it could not start or was ended."""
        # -P: no file of the current folder is taken for a module.
        program = (sys.executable, "-P", "-m", __name__, str(self._settings))
        how: Any = {"stdin": PIPE, "stdout": PIPE, "start_new_session": True}
        process: Any = await asyncio.create_subprocess_exec(*program, **how)
        try:
            _, why, self.label_fields = await _heard(process.stdout)
            if why:
                return str(why)
            self._input, sign = process.stdin, None
            while True:
                try:
                    async with asyncio.timeout(FROZEN):
                        number, answer = await _heard(process.stdout)
                except TimeoutError:
                    if sign and not sign.done():
                        return "The process that does it is frozen."
                    sign = self._ask()
                    continue
                if not (asked := self._asked.pop(number)).done():
                    asked.set_result(answer)
        except EOFError:
            return f"The process that does it ended with {await process.wait()}."
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _heard(output: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await output.readexactly(8))
    return pickle.loads(await output.readexactly(size))  # noqa: S301  of our own process


async def _answer_all(path: Path) -> None:
    """Re-rank what is asked on stdin, until it is closed: that is when the proxy has ended."""
    orders: dict[str, IndexOrder] = {}
    loop, output = asyncio.get_running_loop(), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints is no answer

    def tell(number: int, *answer: Any) -> None:
        told = pickle.dumps((number, *answer))
        output.write(len(told).to_bytes(8) + told)
        output.flush()

    async def answer(number: int, what: Sequence[Any]) -> None:
        try:
            tell(number, ("", *await reranked(orders, *what)) if what else None)
        except UnavailableError as error:
            tell(number, (str(error), [], b""))
        except Exception as error:  # whatever it is, the cluster's own hits are shown
            tell(number, (type(error).__name__, [], b""))

    def listen() -> None:
        try:
            while True:
                asked = pickle.load(sys.stdin.buffer)  # noqa: S301  of our own process
                asyncio.run_coroutine_threadsafe(answer(*asked), loop)
        finally:  # the proxy has ended, or there is no memory to read what it asks
            os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    why = ""
    try:
        settings = proxy_settings(path)
        with suppress(ValueError):  # it is limited to less already
            resource.setrlimit(resource.RLIMIT_DATA, (settings.memory * 2**20,) * 2)
        orders.update(await opened(settings))
    except Exception as error:  # in one sentence, for the log
        why = str(error) if isinstance(error, FairqrError) else repr(error)
    tell(0, why, {name: order.label_fields for name, order in orders.items()})
    if not why:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_answer_all(Path(sys.argv[1])))
