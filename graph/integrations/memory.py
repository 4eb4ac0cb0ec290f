"""What groups are owed over a stream of searches, where single lists are too short for a target.

After each list that was shown, a group is owed what the target gave it more than the list did. Old
debts fade. The next target is moved by the debts, so exposure holds over the stream: if they stay
bounded, the mean distance from the target falls as 1/T.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from pydantic import FiniteFloat, TypeAdapter

from fairqr.base.files import write_beside
from fairqr.graph.search.result import Shares

DECAY = 0.99
"""How much of a debt is left after another list: half of it after 69."""

WRITTEN = 1.0
"""Seconds between two times that debts are written; what is owed by lists meanwhile may be lost."""


class Ledger:
    """The debts of one source, by attribute and group; kept in a file over restarts.

    Args:
        file: The file; None to keep them in memory only.
        decay: How much of a debt is left after another list.
    """

    def __init__(self, file: Path | None = None, decay: float = DECAY) -> None:
        self.owed: Shares = {}
        self._file, self._decay, self._written = file, decay, 0.0
        if file is not None:
            with suppress(OSError, ValueError):
                kind = TypeAdapter(dict[str, dict[str, FiniteFloat]])
                self.owed = kind.validate_json(file.read_bytes())

    def add(self, target: Shares, exposure: Shares) -> None:
        """Count a list that was shown."""
        for name, groups in exposure.items():
            before = self.owed.get(name, {})
            if any(groups.values()):  # otherwise nobody in it has a label
                self.owed[name] = {
                    group: self._decay * before.get(group, 0.0) + target[name][group] - share
                    for group, share in groups.items()
                }
        if self._file is not None and time.monotonic() - self._written > WRITTEN:
            self._written = time.monotonic()
            with suppress(OSError):  # without room on the disk, debts are kept in memory
                write_beside(self._file, json.dumps(self.owed))


def moved(target: Shares, owed: Shares) -> Shares:
    """Return a target that is moved by debts; each attribute's shares still sum to 1."""
    found: Shares = {}
    for name, groups in target.items():
        due = {g: max(0.0, share + owed.get(name, {}).get(g, 0.0)) for g, share in groups.items()}
        total = sum(due.values())
        found[name] = {g: share / total for g, share in due.items()} if total else groups
    return found
