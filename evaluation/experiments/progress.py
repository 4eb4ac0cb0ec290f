"""Telling how far a run has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairqr.retrieval.sources.documents import ProgressFunction


def time_left(seconds: float) -> str:
    """Return a duration of at least 0 seconds in words, coarsely."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


class StageWatcher:
    """Receives the progress of a run; this one says nothing."""

    def stage(self, what: str, total: int, done: int) -> None:
        """Take what begins, of how many steps, and how many of them were done before."""

    def advance(self, steps: int = 1) -> None:
        """Count steps that are done."""

    def note(self, sentence: str) -> None:
        """Take a sentence for the user."""

    def count(self, what: str) -> ProgressFunction:
        """Take the name of what is read or indexed; return a function for the documents done."""
        return lambda done, total=None, /: None
