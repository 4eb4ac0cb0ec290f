"""The amortised deficit of groups over a stream of searches (after Biega et al. 2018).

Single lists may be too short for a target. After each list that was shown, the deficit of a group
grows by its target share minus its exposure. Old deficits fade. The next target is moved by the
deficits, so exposure holds over the stream: if they stay bounded, the mean distance from the target
falls as 1/T.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import FiniteFloat, TypeAdapter

from fairqr.base.files import write_beside
from fairqr.graph.search.result import Shares

DECAY = 0.99
"""How much of a deficit is left after another list: half of it after 69."""

FORGOTTEN = 1e-4
"""A smaller deficit of a group that a list cannot show, as of an open attribute, is forgotten."""

WRITTEN = 1.0
"""Seconds between two writes of the deficits; a crash may lose those of lists in between."""


class AmortisedDeficit:
    """The deficits of one source, by attribute and group; kept in a file over restarts.

    Args:
        file: The file; None to keep them in memory only.
        decay: How much of a deficit is left after another list.
    """

    def __init__(self, file: Path | None = None, decay: float = DECAY) -> None:
        self.by_group: Shares = {}
        self._file = file
        self._decay = decay
        self._written = 0.0
        if file is not None:
            with suppress(OSError, ValueError):
                kind = TypeAdapter(dict[str, dict[str, FiniteFloat]])
                self.by_group = kind.validate_json(file.read_bytes())

    def add(self, target: Shares, exposure: Shares) -> None:
        """Count a list that was shown."""
        for name, groups in exposure.items():
            has_labels = any(groups.values())
            if has_labels:
                self._add_to_attribute(name, target[name], groups)
        if self._file is not None and time.monotonic() - self._written > WRITTEN:
            self._written = time.monotonic()
            with suppress(OSError):  # without room on the disk, deficits are kept in memory
                write_beside(self._file, json.dumps(self.by_group))

    def _add_to_attribute(
        self, name: str, target: Mapping[str, float], exposure: Mapping[str, float]
    ) -> None:
        """Count a list that was shown for one attribute."""
        deficits: dict[str, float] = {}
        for group, deficit in self.by_group.get(name, {}).items():
            deficits[group] = self._decay * deficit
        for group, share in exposure.items():
            deficits[group] = deficits.get(group, 0.0) + target[group] - share
        self.by_group[name] = {
            group: deficit
            for group, deficit in deficits.items()
            if group in exposure or abs(deficit) > FORGOTTEN
        }


def target_with_deficit(target: Shares, deficit: Shares) -> Shares:
    """Return a target that is moved by deficits; each attribute's shares still sum to 1."""
    moved: Shares = {}
    for name, shares in target.items():
        deficits = deficit.get(name, {})
        wanted = {}
        for group, share in shares.items():
            wanted[group] = max(0.0, share + deficits.get(group, 0.0))
        total = sum(wanted.values())
        moved[name] = shares
        if total:
            moved[name] = {group: share / total for group, share in wanted.items()}
    return moved
