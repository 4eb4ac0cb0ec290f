"""How long tests wait for what should happen soon."""

from __future__ import annotations

import threading
import time
from typing import Any

PATIENCE = 480
"""Seconds until a test that waits for something gives up.

So long that no machine is too busy: only a test that fails waits to the end.
"""


def until(holds: Any, seconds: float = PATIENCE) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.02)
    return found
