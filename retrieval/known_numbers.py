"""Numbers of documents that were looked up before, for as long as nothing is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

__all__ = ["KnownNumbers"]

Stamp = tuple[int, int]


class KnownNumbers:
    """Remembers an integer of each document by field and id; several threads may use it.

    A search asks for the groups of the same documents many times, and looking an id up in an index
    costs more than all else that is done with it.

    Args:
        limit: How many documents of a field are remembered; beyond it they are forgotten.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        self._numbers: dict[str, dict[str, int]] = {}

    def renew(self, stamp: Stamp | None, reload: Callable[[], object]) -> None:
        """Forget what is of another state of the index than this one.

        Args:
            stamp: Of the state; None where the index is gone.
            reload: Makes readers see at least this state. No thread gets further before it has,
                else something older could be remembered as of this state.
        """
        with self._lock:
            if stamp != self._stamp or stamp is None:
                if stamp is not None:
                    reload()
                self._stamp, self._numbers = stamp, {}

    def get(self, field: str, ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers that are remembered, by id."""
        with self._lock:
            known = self._numbers.get(field, {})
            return {id_: known[id_] for id_ in ids if id_ in known}

    def put(self, stamp: Stamp | None, field: str, numbers: Mapping[str, int]) -> None:
        """Remember numbers that were read in a state of the index; in no other are they kept."""
        with self._lock:
            if stamp is None or stamp != self._stamp:
                return
            known = self._numbers.setdefault(field, {})
            if len(known) + len(numbers) > self._limit:
                known.clear()
            known.update(numbers)
