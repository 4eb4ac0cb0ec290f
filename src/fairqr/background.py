"""An event loop on a thread of its own, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

__all__ = ["Background"]


class Background:
    """Runs ``loop`` until :meth:`end`, and at the longest as long as the program."""

    def __init__(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()

        async def serve() -> None:
            self._ended = asyncio.Event()
            started.set_result(asyncio.get_running_loop())
            await self._ended.wait()

        # It cancels what is under way when it ends, and closes its loop.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(serve()), name="fairqr", daemon=True
        )
        self._thread.start()
        self.loop = started.result()

    def end(self) -> None:
        """End the thread, and what is under way on it."""
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
