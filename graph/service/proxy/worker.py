"""The process that re-ranks one index, and the proxy's end of it.

Each index has its own, so none can harm another. Whatever happens to it, the proxy goes on and
shows the cluster's own hits.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairqr.graph.service.proxy.breaker import Breaker
from fairqr.graph.service.proxy.messages import Answered, MeasureShown, Opened, Rerank, pauses
from fairqr.graph.service.proxy.ordering import Outcome
from fairqr.graph.service.proxy.requests import NO_FIELDS, ProxiedSearch, UnavailableError

PROGRAM = "fairqr.graph.service.proxy.process"
"""The module that the process runs."""

FROZEN = 5.0
"""Seconds of silence after which we ask the process for a sign, and after as many more end it."""

USUAL = 0.02
"""Seconds that a list is thought to take before any was made."""

log = logging.getLogger(__name__)


class Worker:
    """Keeps the process of an index alive and asks it.

    Args:
        settings: The file of the proxy's settings, which the process reads as well.
        index: The index, as clients name it.
        encode_later: Takes texts that have no vectors yet.

    Attributes:
        index: The index.
        breaker: Says when nothing is tried, since it mostly fails.
        is_idle: Set while no client waits for a list, or for the hits that one is made of.
        label_fields: What is asked for with each window, once the index is open.
        names: The names by which the same documents are searched, once it is open.
        is_named: Set once they are known.
    """

    def __init__(
        self, settings: Path, index: str, encode_later: Callable[[Sequence[str]], None]
    ) -> None:
        self.index = index
        self.breaker = Breaker(index)
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self.label_fields = NO_FIELDS
        self.names: frozenset[str] = frozenset()
        self.is_named = asyncio.Event()
        self._settings = settings
        self._encode_later = encode_later
        self._is_open = False
        self._input: asyncio.StreamWriter | None = None
        self._questions: dict[int, asyncio.Future[Answered]] = {}
        """The questions without an answer, by their number."""
        self._last_number = 0
        self._waiting = 0
        """How many searches wait for their lists."""
        self._expected = 0
        """How many requests wait for the hits that their lists are made of."""
        self._usual_seconds = USUAL

    async def keep(self) -> None:
        """Start the process, and start it again whenever it ends, until this is cancelled."""
        attempts = pauses()
        while True:
            try:
                reason = await self._live()
            except Exception as error:  # whatever it is, we try again
                reason = f"The process that does it cannot start: {error!r}."
            if self._is_open:  # it had started, and does so again soon
                attempts = pauses()
            self._input = None
            self._is_open = False
            self._questions.clear()
            self._warn(reason)
            await asyncio.sleep(next(attempts))

    def refusal(self, within: float) -> str:
        """Return why the process takes no other search at present; empty if it does.

        Args:
            within: Seconds that somebody would wait.
        """
        away = self._away()
        if away:
            return away
        if self.breaker.is_open:
            return "paused"
        if any(question.cancelled() for question in self._questions.values()):
            return "slow"  # somebody has waited for nothing already
        expected_wait = (self._waiting + 1) * self._usual_seconds
        if self._waiting and expected_wait > within:
            return "busy"
        return ""

    def _away(self) -> str:
        """Return why the process cannot be asked; empty if it can."""
        if self._input is None or self._input.is_closing():
            return "worker"
        return "" if self._is_open else "opening"

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Keep it free, as long as the block runs, for a list whose hits are asked for."""
        self._expected += 1
        self.is_idle.clear()
        try:
            yield
        finally:
            self._expected -= 1
            if not self._expected:
                self.is_idle.set()

    async def rerank(
        self, searches: Sequence[ProxiedSearch], reply: str, until: float
    ) -> tuple[list[Outcome], str]:
        """Have searches re-ranked; see :func:`reranked`.

        Args:
            searches: Searches of this index, in the order of the reply.
            reply: The reply to whole windows.
            until: How long somebody waits for it, by the monotonic clock.

        Raises:
            UnavailableError: It is not done.
        """
        self._waiting += len(searches)
        try:
            answered = await self._answer(Rerank(searches, reply, until))
        except UnavailableError:
            self.breaker.add(failed=True)
            raise
        finally:
            self._waiting -= len(searches)
        self.breaker.add(failed=bool(answered.why))
        seconds_of_one = answered.seconds / len(searches)
        self._usual_seconds = 0.9 * self._usual_seconds + 0.1 * seconds_of_one
        outcomes, shown = _result(answered)
        return outcomes, shown

    async def look(self, question: Rerank | MeasureShown) -> Any:
        """Have something looked at for which no client waits.

        Raises:
            UnavailableError: It is not done.
        """
        return _result(await self._answer(question))

    async def _answer(self, question: Rerank | MeasureShown) -> Answered:
        """Ask the process.

        Raises:
            UnavailableError: It cannot be asked, or there is no answer in time.
        """
        # It may have ended since the search was taken. What it never hears, it would never answer.
        away = self._away()
        if away:
            raise UnavailableError(away)
        try:
            async with asyncio.timeout_at(question.until):
                return await self._ask(question)
        except TimeoutError:
            raise UnavailableError("slow" if self._input else "worker") from None

    def _ask(self, question: Rerank | MeasureShown | None) -> asyncio.Future[Answered]:
        """Send a question, or ask for a sign of life, and return its answer to come."""
        self._last_number += 1
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        # It stays here until it is answered, even if nobody waits for it any more.
        self._questions[self._last_number] = answer
        if self._input and not self._input.is_closing():  # it may have ended a moment ago
            self._input.write(pickle.dumps((self._last_number, question)))
        return answer

    async def _live(self) -> str:
        """Run the process, and return why it ended."""
        # -P: no file of the current folder is taken for a module.
        program = (sys.executable, "-P", "-m", PROGRAM, str(self._settings), self.index)
        process: Any = await asyncio.create_subprocess_exec(
            *program, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        self._input = process.stdin
        try:
            await self._hear(process)
        except EOFError:
            return f"The process that does it ended with {await process.wait()}."
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        return "The process that does it is frozen."

    async def _hear(self, process: Any) -> None:
        """Hear what the process says, until it gives no sign of life any more.

        Raises:
            EOFError: It ended.
        """
        sign_of_life: asyncio.Future[Answered] | None = None
        while True:
            longest_silence = FROZEN if self._is_open else None
            try:
                async with asyncio.timeout(longest_silence):
                    number, message = await _next_message(process.stdout)
            except TimeoutError:
                if sign_of_life and not sign_of_life.done():
                    return
                sign_of_life = self._ask(None)
                continue
            if isinstance(message, Opened):
                self._take(message)
                continue
            self._encode_later(message.missing)
            answer = self._questions.pop(number)
            if not answer.done():
                answer.set_result(message)

    def _take(self, opened: Opened) -> None:
        """Take what the process says of its index."""
        self._is_open = not opened.why
        self.label_fields = opened.label_fields
        if opened.why:
            self._warn(opened.why)
            return
        self.names = opened.names
        self.is_named.set()

    def _warn(self, reason: str) -> None:
        log.warning("Nothing of '%s' is re-ranked at present. %s", self.index, reason)


def _result(answered: Answered) -> Any:
    """Return an answer.

    Raises:
        UnavailableError: There is none.
    """
    if answered.why:
        raise UnavailableError(answered.why)
    return answered.answer


async def _next_message(output: asyncio.StreamReader) -> Any:
    """Return the next message of the process, with the number of the question it answers."""
    size = int.from_bytes(await output.readexactly(8))
    return pickle.loads(await output.readexactly(size))  # noqa: S301  of our own process
