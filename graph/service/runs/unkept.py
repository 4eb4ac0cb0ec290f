"""The runs that live and die with the clients of this process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fairqr.base.errors import RunNotFoundError
from fairqr.graph.service.records import Run
from fairqr.graph.service.runs.execution import Execution
from fairqr.graph.service.runs.feeds import Feed
from fairqr.graph.service.runs.outcomes import last_event
from fairqr.graph.service.store import Store

__all__ = ["UnkeptRun", "UnkeptRuns"]

UNREAD = 60.0
"""Seconds after which the events of a run that is over are dropped, where nobody came for them."""

LOOK_AFTER = 5.0
"""Seconds that a run waits before it is asked whether it still does."""


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class UnkeptRun:
    """A run that is not kept: its events are in memory, and nowhere else.

    Attributes:
        run: As it was accepted.
        key: The id of the key that asked for it.
        feed: Of its events.
        doing: Once it is under way.
    """

    run: Run
    key: str
    feed: Feed = field(default_factory=Feed)
    doing: Execution | None = None
    _final: Run | None = None
    _state: tuple[bool, bool] = (True, False)
    _since: float = field(default_factory=_now)

    @property
    def final(self) -> Run | None:
        """The run when it is over."""
        return self.doing.final if self.doing else self._final

    def begin(self, doing: Execution) -> None:
        """Note that it is under way."""
        self.doing = doing

    def end(self, final: Run) -> None:
        """Tell how it ended before it was begun."""
        if self.doing is None and self._final is None:
            self._final = final
            self.feed.tell(last_event(final, self.feed.last + 1))
            self.feed.close()

    @property
    def waits(self) -> bool:
        """Whether it is still to be begun."""
        return self.doing is None and self._final is None

    def has_been(self, seconds: float) -> bool:
        """Tell whether it was first seen as it is so long ago; then counts anew."""
        state = (self.waits, self.feed.closed)
        if state != self._state:
            self._state, self._since = state, _now()
        elif _now() - self._since >= seconds:
            self._since = _now()
            return True
        return False


class UnkeptRuns:
    """All of them, by id."""

    def __init__(self) -> None:
        self._runs: dict[str, UnkeptRun] = {}

    def add(self, run: Run, key: str) -> UnkeptRun:
        """Hold a run that is about to be accepted."""
        held = self._runs[run.id] = UnkeptRun(run, key)
        return held

    def get(self, id_: str) -> UnkeptRun | None:
        """Return a run; None where it is not held."""
        return self._runs.get(id_)

    def drop(self, id_: str) -> UnkeptRun | None:
        """Hold a run no longer, and return it."""
        return self._runs.pop(id_, None)

    def waiting(self) -> list[UnkeptRun]:
        """Return those that were not begun yet."""
        return [held for held in self._runs.values() if held.waits]

    async def look_after(self, store: Store) -> None:
        """Find out what ended without us, and drop what nobody comes for.

        Raises:
            StoreUnavailableError: The database cannot be used.
        """
        for held in list(self._runs.values()):
            if held.feed.closed and held.has_been(UNREAD):
                self.drop(held.run.id)
            elif held.waits and held.has_been(LOOK_AFTER):
                try:
                    run = await store.run(held.run.id, held.key)
                except RunNotFoundError:
                    continue  # it is just being accepted
                if not run.live:
                    held.end(run)
