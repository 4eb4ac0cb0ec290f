"""What a run has done, kept in memory as the service keeps it in its database."""

from __future__ import annotations

import json
from typing import Any

from fairqr.graph.journal import RunJournal, kept_update
from fairqr.graph.stream import Step


class Kept:
    """Steps and replies, as plain data that has been through JSON."""

    def __init__(self) -> None:
        self.version = ""
        self.replies: dict[str, str] = {}
        self._steps: dict[str, str] = {}

    def journal(self) -> RunJournal:
        """Return the journal of the next attempt."""

        async def keep(key: str, reply: dict[str, Any]) -> None:
            self.replies[key] = json.dumps(reply)

        steps = {}
        for key, step in self._steps.items():
            update, overwrites = json.loads(step)
            steps[key] = kept_update(update, overwrites)
        replies = {key: json.loads(reply) for key, reply in self.replies.items()}
        journal = RunJournal(keep, steps, replies)
        journal.version = self.version
        return journal

    def add(self, step: Step) -> None:
        """Keep a step that has ended."""
        self._steps[step.id] = json.dumps([step.update, step.overwrites])
