"""Care in a long run: a model that has gone ends it, and leaves no failures behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Generic, TypeVar

from fairqr.agents.replies import Usage
from fairqr.base.errors import ModelError, one_line
from fairqr.evaluation.experiments.folder import Lines, Record

__all__ = ["GIVE_UP", "Cautious", "Patience", "is_away"]

R = TypeVar("R", bound=Record)

GIVE_UP = 20
"""So many failures one after the other mean that the model is not there at all."""

_AWAY = frozenset({"invalid_request", "rate_limited", "timeout", "unavailable"})


def is_away(status: str, usage: Usage) -> bool:
    """Tell whether a failure says that a model is not there, rather than how it answers.

    Args:
        status: One of :data:`fairqr.agents.replies.Status`, or another one.
        usage: What the question cost: a refusal without tokens is that of a server, such as of a
            key, and no reply of the model.
    """
    if status == "refused":
        return not (usage.prompt_tokens or usage.completion_tokens or usage.cached_calls)
    return status in _AWAY


class Patience:
    """Counts the failures of a model one after the other.

    Args:
        name: Of the model, for the sentences.

    Attributes:
        has_answered: Whether the model ever answered, now or in an earlier run.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures = 0
        self._last: tuple[str, str] | None = None
        self.has_answered = False

    def answered(self) -> None:
        """Take that the model answered."""
        self._failures = 0
        self.has_answered = True

    def failed(self, status: str, message: str, times: int = 1) -> None:
        """Take that the model failed.

        Args:
            status: Of the last failure.
            message: Of the last failure, for people.
            times: How often it failed, one after the other.

        Raises:
            ModelError: It failed so often that going on would only write down that it was not
                there.
        """
        self._failures += times
        self._last = (status, one_line(message, 200).rstrip("."))
        if self._failures >= GIVE_UP:
            raise ModelError(
                status,
                f"{self._name} failed {self._failures} times in a row, lastly with: "
                f"{self._last[1]}; mend it and run again, what was answered until then is kept.",
            )

    def at_the_end(self) -> None:
        """Take that nothing more is asked.

        Raises:
            ModelError: The model never answered, as with a wrong key in a short run.
        """
        if self._last is not None and not self.has_answered:
            status, message = self._last
            raise ModelError(
                status,
                f"{self._name} answered none of {self._failures} questions, lastly with: {message};"
                " mend it and run again.",
            )


class Cautious(Generic[R]):
    """Writes records; those with failures only once the model has answered again.

    So a model that goes away leaves no failures behind: what it was asked last is asked again when
    the run goes on.

    Args:
        lines: Where they are written.
    """

    def __init__(self, lines: Lines[R]) -> None:
        self._lines = lines
        self._held: list[R] = []

    @contextlib.contextmanager
    def writing(self, *, is_last: bool = True) -> Iterator[None]:
        """Open the file; what is still held is written at the end, unless an error ends it.

        Args:
            is_last: Whether the model is asked nothing more; else what is held is dropped.
        """
        with self._lines.writing():
            yield
            if is_last:
                self._release()

    def add(self, record: R, *, has_failures: bool, is_back: bool) -> None:
        """Take a record.

        Args:
            record: To be written.
            has_failures: Whether the model was away for a question of it.
            is_back: Whether the model has answered what it was asked after its last failure.
        """
        if has_failures:
            self._held.append(record)
        else:
            self._lines.add(record)
        if is_back:
            self._release()

    def _release(self) -> None:
        while self._held:
            self._lines.add(self._held.pop(0))
