"""Servers that all workers of pytest share: its main process starts each of them once.

Whoever needs a server asks for it by an empty file in a folder that all know, and waits for the
file that says where it is. So servers start beside tests that need none.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.patience import until

Start = Callable[[], AbstractContextManager[dict[str, str]]]
"""Runs a server, and says how to reach it."""

FOLDER = "servers"
"""What a worker is told the folder by."""


class SharedServers:
    """In the main process: starts what is asked for, and ends all when the tests have ended."""

    def __init__(self, starts: dict[str, Start]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fairqr-servers-"))
        self._ended = threading.Event()
        # A thread stays as long as its server, which the system ends with the thread.
        self._threads = [
            threading.Thread(target=self._serve, args=(name, start), daemon=True)
            for name, start in starts.items()
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End all servers."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _serve(self, name: str, start: Start) -> None:
        while not (self.folder / name).exists():
            if self._ended.wait(0.2):
                return
        try:
            with start() as reached:
                self._say(name, reached)
                self._ended.wait()
        except BaseException as error:  # pytest's own failures are no Exceptions
            self._say(name, {"failed": str(error)})

    def _say(self, name: str, what: dict[str, str]) -> None:
        beside = self.folder / f"{name}.new"
        beside.write_text(json.dumps(what))
        beside.rename(self.folder / f"{name}.json")


def ask(config: pytest.Config, name: str) -> Path | None:
    """Ask for a server without waiting; return where it will be told, None outside of a worker."""
    told: dict[str, Any] = getattr(config, "workerinput", {})
    if FOLDER not in told:
        return None
    folder = Path(told[FOLDER])
    (folder / name).touch()
    return folder / f"{name}.json"


@contextmanager
def shared(config: pytest.Config, name: str, start: Start) -> Iterator[dict[str, str]]:
    """Reach the server that all workers share, or run one where there are no workers."""
    place = ask(config, name)
    if place is None:
        with start() as reached:
            yield reached
        return
    until(place.exists)
    reached = json.loads(place.read_text())
    if "failed" in reached:
        pytest.fail(reached["failed"])
    yield reached
