"""Finding and reading rows of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from fairqr.base.errors import RunNotFoundError
from fairqr.graph.service.records import Event, Run, is_id
from fairqr.graph.service.store.tables import RUNS

QUEUED = "queued"
"""The notification that a run waits."""

CANCEL = "cancel "
"""The start of the notification to cancel a run; its id follows."""


def find(connection: sa.Connection, id: str, *, lock: bool = False) -> Any:
    """Return the row of a run, or None.

    Args:
        connection: A connection within a transaction.
        id: The id, which may be any text.
        lock: Whether to keep others from changing it until the end of the transaction.
    """
    if not is_id(id):
        return None
    query = sa.select(RUNS).where(RUNS.c.id == id)
    found = connection.execute(query.with_for_update() if lock else query)
    return found.mappings().first()


def find_own(connection: sa.Connection, id: str, key: str, *, lock: bool = False) -> Any:
    """Return a run's row, as :func:`find` does, if it belongs to the key.

    Raises:
        RunNotFoundError: There is no row, or it belongs to another key; the message does not say
            which.
    """
    row = find(connection, id, lock=lock)
    if row is None or row["key_id"] != key:
        named = f" {id}" if is_id(id) else " of that name"
        raise RunNotFoundError(
            f"There is no run{named}; it may belong to another key, or have been deleted."
        )
    return row


def run_of(row: Any) -> Run:
    """Return a row as a run."""
    return Run(**{name: row[name] for name in Run.model_fields})


def rows_of(id: str, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the rows of events of a run."""
    return [{"run_id": id, **event.model_dump()} for event in events]
