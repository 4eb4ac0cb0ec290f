"""The versions of the database, in order. What stands here never changes; new ones are added."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from fairqr.base.errors import StoreUnavailableError

__all__ = ["MIGRATIONS", "migrate"]

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE runs (
            id TEXT PRIMARY KEY,
            key_id TEXT NOT NULL,
            kind TEXT NOT NULL,
            status TEXT NOT NULL,
            query TEXT NOT NULL,
            keep BOOLEAN NOT NULL,
            created DOUBLE PRECISION NOT NULL,
            started DOUBLE PRECISION,
            finished DOUBLE PRECISION,
            attempts INTEGER NOT NULL,
            request TEXT NOT NULL,
            result TEXT,
            problem TEXT,
            carrier TEXT NOT NULL,
            worker TEXT,
            lease DOUBLE PRECISION,
            ticket TEXT,
            losses INTEGER NOT NULL,
            cancel BOOLEAN NOT NULL
        )""",
        """CREATE TABLE events (
            run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            name TEXT NOT NULL,
            data TEXT NOT NULL,
            PRIMARY KEY (run_id, number)
        )""",
        """CREATE TABLE access_keys (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            scopes TEXT NOT NULL,
            created DOUBLE PRECISION NOT NULL,
            revoked DOUBLE PRECISION,
            sha256 TEXT NOT NULL
        )""",
    ),
    (
        "CREATE INDEX runs_by_status ON runs (status, created)",
        "CREATE INDEX runs_by_key ON runs (key_id, created)",
        "CREATE INDEX runs_by_end ON runs (finished)",
    ),
)
"""For SQLite and PostgreSQL alike. The tables of checkpoints are langgraph's, and it makes them."""


async def migrate(connection: AsyncConnection) -> None:
    """Bring the database to this version, within one transaction that nobody else migrates in.

    Raises:
        StoreUnavailableError: A newer fairqr has been here.
    """
    await connection.execute(
        sa.text("CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY)")
    )
    found = await connection.execute(sa.text("SELECT max(version) FROM migrations"))
    version = found.scalar() or 0
    if version > len(MIGRATIONS):
        raise StoreUnavailableError(
            f"The database of runs is of version {version}, and this fairqr knows "
            f"{len(MIGRATIONS)} at the most; upgrade fairqr, or name another database."
        )
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in statements:
            await connection.execute(sa.text(statement))
        await connection.execute(
            sa.text("INSERT INTO migrations (version) VALUES (:number)"), {"number": number}
        )
