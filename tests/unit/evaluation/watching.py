"""What tests watch a run with."""

from __future__ import annotations

from fairqr.evaluation.experiments.progress import StageWatcher


class Watcher(StageWatcher):
    """Keeps what it is told.

    Attributes:
        stages: The title of each, its steps, and how many were done before.
        done: How many steps were done, by the title of the stage.
        notes: Sentences for people.
    """

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int]] = []
        self.done: dict[str, int] = {}
        self.notes: list[str] = []

    def stage(self, what: str, total: int, done: int) -> None:
        self.stages.append((what, total, done))

    def advance(self, steps: int = 1) -> None:
        title = self.stages[-1][0]
        self.done[title] = self.done.get(title, 0) + steps

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    @property
    def steps(self) -> int:
        return sum(self.done.values())
