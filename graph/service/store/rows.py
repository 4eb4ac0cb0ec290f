"""Rows of runs: finding them, reading them, and what goes with them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import RunNotFoundError
from fairqr.graph.service.records import LIVE, Run
from fairqr.graph.service.store.tables import EVENTS, RUNS

if TYPE_CHECKING:
    from fairqr.graph.service.store.flavours import Flavour

__all__ = ["checked_id", "find", "forget_threads", "is_id", "run_of", "tell_the_end"]

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def is_id(text: str) -> bool:
    """Tell whether a text may be a run's id; others may be such that the database refuses them."""
    return _ID.fullmatch(text) is not None


async def find(connection: AsyncConnection, id: str, *, lock: bool = False) -> Any:
    """Return a run's row, or None.

    Args:
        connection: Within a transaction.
        id: As it was asked for; any text.
        lock: Let nobody else change it until the end of the transaction.
    """
    if not is_id(id):
        return None
    query = sa.select(RUNS).where(RUNS.c.id == id)
    found = await connection.execute(query.with_for_update() if lock else query)
    return found.mappings().first()


def checked_id(row: Any, id: str, key: str) -> Any:
    """Return a row, if it is the key's.

    Raises:
        RunNotFoundError: There is none, or it is another key's; nobody can tell which.
    """
    if row is None or row["key_id"] != key:
        named = f" {id}" if is_id(id) else " of that name"
        raise RunNotFoundError(
            f"There is no run{named}; it may be another key's, or too old to be kept."
        )
    return row


def run_of(row: Any) -> Run:
    """Return a row as a run."""
    return Run(**{name: row[name] for name in Run.model_fields})


async def forget_threads(
    connection: AsyncConnection,
    flavour: Flavour,
    id: str | None = None,
) -> None:
    """Delete the checkpoints of a run; where None, of all that no live run can go on with.

    A worker that has lost a run may still write a checkpoint, so that some are left.
    """
    for name in flavour.checkpoints:
        thread = sa.column("thread_id", sa.Text)
        table = sa.table(name, thread)
        live = sa.select(RUNS.c.id).where(RUNS.c.status.in_(LIVE))
        mine = thread.not_in(live) if id is None else thread == id
        await connection.execute(sa.delete(table).where(mine))


async def tell_the_end(connection: AsyncConnection, id: str, problem: dict[str, Any]) -> None:
    """Write the last event of a run that ends without a worker, for those who follow it."""
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
