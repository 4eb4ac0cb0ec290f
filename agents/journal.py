"""The replies of a run that goes on after a crash: what was answered is not asked again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from fairqr.agents.replies import Reply

__all__ = ["Journal", "current_journal", "journaled"]


class Journal(Protocol):
    """Keeps what one step of a run was answered, until the step is over."""

    async def once(
        self,
        key: str,
        check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        ask: Callable[[], Awaitable[Reply]],
    ) -> Reply:
        """Return what is kept, or ask and keep it.

        Args:
            key: The same for equal questions. What was asked twice is kept twice.
            check: Returns the value of a kept reply, or raises ValueError where it is none.
            ask: Asks the model.
        """
        ...


_current: ContextVar[Journal | None] = ContextVar("fairqr_journal", default=None)


def current_journal() -> Journal | None:
    """Return the journal of the step that is under way; None where none is kept."""
    return _current.get()


@contextmanager
def journaled(journal: Journal | None) -> Iterator[None]:
    """Keep in a journal what models answer inside, in the same task and in its children."""
    token = _current.set(journal)
    try:
        yield
    finally:
        _current.reset(token)
