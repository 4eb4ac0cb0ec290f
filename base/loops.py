"""Event loops: a value for each, coroutines together, blocking code; and processor cores."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

from fairqr.base.errors import InputError

T = TypeVar("T")

Turn = Callable[[], AbstractAsyncContextManager[object]]
"""Returns what is entered when it is one's turn, and held meanwhile."""


class PerLoop(Generic[T]):
    """One value per event loop. Values of closed loops are dropped when a new loop gets a value.

    A weak dictionary would keep them for ever, since clients and tasks refer to their loop. All
    methods act on the running loop, and may be called in several threads.
    """

    def __init__(self) -> None:
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T | None:
        """Return the value of the running loop, if it has one."""
        return self._values.get(asyncio.get_running_loop())

    def setdefault(self, value: T) -> T:
        """Return the value of the running loop; if it has none, set it to ``value`` first."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            for known_loop in list(self._values):
                if known_loop.is_closed():
                    self._values.pop(known_loop, None)
        return self._values.setdefault(loop, value)

    def pop(self) -> T | None:
        """Remove the value of the running loop and return it, if it has one."""
        return self._values.pop(asyncio.get_running_loop(), None)


async def run_together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at the same time, and return their results in order.

    Raises:
        BaseException: The first error. By then, the other coroutines are cancelled and have ended.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]


class BackgroundLoop:
    """An event loop on a thread of its own, for code that is not asynchronous.

    The thread runs ``loop`` until :meth:`end` or the end of the program. A process that is forked
    meanwhile has no such thread.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = runner.get_loop()

        def serve() -> None:
            # At its end, the runner cancels what is under way and closes the loop.
            with runner:
                self.loop.run_forever()

        self._thread = threading.Thread(target=serve, name="fairqr", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for it.

        If the wait is interrupted, as by Ctrl-C, the coroutine is cancelled.

        Raises:
            RuntimeError: The caller is on the loop's own thread and would wait for ever.
            InputError: This process was forked from the one that has the thread.
        """
        if os.getpid() != self._process:
            work.close()
            raise InputError(
                "This process was forked after fairqr had begun to work, and has none of its "
                "threads; start processes by 'spawn', or open what you need in each of them."
            )
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("Blocking code cannot wait here; call the asynchronous method.")
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result()
        except BaseException:
            # Looked up by its coroutine: an interrupt can come before there is a future to cancel.
            with suppress(RuntimeError):  # the loop may have ended, and with it the coroutine
                self.loop.call_soon_threadsafe(_cancel, work)
            raise

    def end(self) -> None:
        """End the thread, and what is under way on it; in a forked process there is none."""
        if os.getpid() != self._process:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


def _cancel(work: Coroutine[Any, Any, Any]) -> None:
    """Cancel the task of a coroutine on the running loop, if it is under way."""
    for task in asyncio.all_tasks():
        if task.get_coro() is work:
            task.cancel()


_shared = functools.cache(BackgroundLoop)
# Two threads that call a cached function for the first time would get a loop each.
_sharing = threading.Lock()


def _begin_in_child() -> None:
    """Let a forked process have a shared loop of its own: no thread of its parent is in it."""
    global _sharing
    _sharing = threading.Lock()
    _shared.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and wait for it, on a loop that all such calls of the program share.

    It may be called while another loop runs, as in a notebook.

    Raises:
        RuntimeError: It is called on the shared loop itself, from inside a run.
    """
    with _sharing:
        background = _shared()
    return background.run(work)


def usable_cores() -> int:
    """Return how many cores this process may use.

    ``OMP_NUM_THREADS`` decides if it is set, as for other numeric programs: threads that share a
    core are slower than fewer threads. macOS and Windows only report how many cores the machine
    has.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    is_number = threads.isascii() and threads.isdigit()
    if is_number and int(threads):
        return int(threads)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
