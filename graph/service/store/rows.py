"""Finding, reading and changing rows of runs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import RunNotFoundError
from fairqr.graph.service.records import Run, is_id
from fairqr.graph.service.store.tables import EVENTS, REPLIES, RUNS

__all__ = [
    "CANCEL",
    "QUEUED",
    "checked_id",
    "find",
    "forget_what_resuming_needs",
    "run_of",
    "tell_the_end",
]

QUEUED = "queued"
"""The notification that a run waits."""

CANCEL = "cancel "
"""The start of the notification to cancel a run; its id follows."""


async def find(connection: AsyncConnection, id: str, *, lock: bool = False) -> Any:
    """Return the row of a run, or None.

    Args:
        connection: A connection within a transaction.
        id: The id, which may be any text.
        lock: Whether to keep others from changing it until the end of the transaction.
    """
    if not is_id(id):
        return None
    query = sa.select(RUNS).where(RUNS.c.id == id)
    found = await connection.execute(query.with_for_update() if lock else query)
    return found.mappings().first()


def checked_id(row: Any, id: str, key: str) -> Any:
    """Return a row if it belongs to the key.

    Raises:
        RunNotFoundError: There is no row, or it belongs to another key; the message does not say
            which.
    """
    if row is None or row["key_id"] != key:
        named = f" {id}" if is_id(id) else " of that name"
        raise RunNotFoundError(
            f"There is no run{named}; it may belong to another key, or have been deleted."
        )
    return row


def run_of(row: Any) -> Run:
    """Return a row as a run."""
    return Run(**{name: row[name] for name in Run.model_fields})


async def forget_what_resuming_needs(connection: AsyncConnection, id: str) -> None:
    """Delete what only a live run needs: replies of models, and private parts of its steps."""
    await connection.execute(REPLIES.delete().where(REPLIES.c.run_id == id))
    private = EVENTS.update().where(EVENTS.c.run_id == id, EVENTS.c.private.is_not(None))
    await connection.execute(private.values(private=None))


async def tell_the_end(connection: AsyncConnection, id: str, problem: dict[str, Any]) -> None:
    """Write the last event of a run that ends without a worker, for its followers."""
    last = await connection.execute(
        sa.select(EVENTS.c.number, EVENTS.c.name)
        .where(EVENTS.c.run_id == id)
        .order_by(EVENTS.c.number.desc())
        .limit(1)
    )
    row = last.first()
    if row is None or row.name not in ("end", "error"):
        number = 1 if row is None else row.number + 1
        await connection.execute(
            EVENTS.insert().values(run_id=id, number=number, name="error", data=problem)
        )
