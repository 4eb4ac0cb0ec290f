"""Telling how far a run has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["StageWatcher"]


class StageWatcher(Protocol):
    """Is told how far a run has come."""

    def stage(self, what: str, total: int, done: int) -> None:
        """Take what begins, of how many steps, and how many of them were done before."""
        ...

    def advance(self, steps: int = 1) -> None:
        """Take that so many steps are done."""
        ...

    def note(self, sentence: str) -> None:
        """Take a sentence for people."""
        ...

    def count(self, what: str) -> Callable[[int], None]:
        """Take what is read or indexed; return what is told how many documents are done."""
        ...
