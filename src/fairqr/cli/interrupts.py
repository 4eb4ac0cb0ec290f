"""Ctrl-C while the command is still being loaded.

A module that is interrupted while it is imported may raise anything, and leaves half of itself. So
the process ends at once, as nothing has begun. This module imports next to nothing itself.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended: 128, and the number of the signal."""


@contextmanager
def ends_at_once() -> Iterator[None]:
    """End the process at Ctrl-C as long as the block runs, with a word and no traceback.

    Where Ctrl-C is ignored, as in the background of a shell's script, it stays so. Nothing changes
    in a thread, which gets no signals.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os.write(2, b"fairqr: interrupted\n")
    os._exit(INTERRUPTED)
