"""The journal of a run: after a crash, the run resumes and asks no answered question again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from fairqr.agents.models.replies import Reply


class Journal(Protocol):
    """Keeps the replies of models in a run, until the run is over."""

    async def once(
        self,
        key: str,
        check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        ask: Callable[[], Awaitable[Reply]],
    ) -> Reply:
        """Return the kept reply to a question, or ask and keep the reply.

        Args:
            key: The same for equal questions. If a question was asked twice, both replies are kept.
            check: Returns the value of a kept reply, or raises ValueError if it is wrong.
            ask: Asks the model.
        """
        ...


_current: ContextVar[Journal | None] = ContextVar("fairqr_journal", default=None)


def current_journal() -> Journal | None:
    """Return the journal of the current run, or None if it has none."""
    return _current.get()


@contextmanager
def journaled(journal: Journal | None) -> Iterator[None]:
    """Keep models' replies in a journal, in this task and its children."""
    token = _current.set(journal)
    try:
        yield
    finally:
        _current.reset(token)
