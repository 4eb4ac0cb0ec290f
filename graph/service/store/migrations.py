"""The versions of the database, in order. Never change one; add a new one."""

from __future__ import annotations

import sqlalchemy as sa

from fairqr.base.errors import StoreUnavailableError

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
    (
        # Runs that were not to be kept are not stored any more.
        "DELETE FROM runs WHERE NOT keep",
        "ALTER TABLE runs DROP COLUMN keep",
        # Checkpoints made way for the updates of steps and the replies of models, so that runs
        # which were under way cannot be resumed.
        """UPDATE runs SET status = 'failed', worker = NULL, lease = NULL, ticket = NULL,
            finished = created, problem = '{"type": "urn:fairqr:error:interrupted",
            "title": "The run was interrupted", "status": 503, "detail":
            "The service was upgraded while this run was under way; ask again."}'
            WHERE status IN ('queued', 'running') AND attempts > 0""",
        "ALTER TABLE events ADD COLUMN private TEXT",
        """CREATE TABLE replies (
            run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            id TEXT NOT NULL,
            reply TEXT NOT NULL,
            PRIMARY KEY (run_id, id)
        )""",
        "DROP TABLE IF EXISTS writes",
        "DROP TABLE IF EXISTS checkpoint_writes",
        "DROP TABLE IF EXISTS checkpoint_blobs",
        "DROP TABLE IF EXISTS checkpoints",
        "DROP TABLE IF EXISTS checkpoint_migrations",
    ),
    # What is kept of steps has another form. Runs under way begin again, with their replies.
    ("UPDATE events SET private = NULL",),
)
"""The same for SQLite and PostgreSQL."""


def migrate(connection: sa.Connection) -> None:
    """Bring the database to this version, in one transaction while nobody else migrates.

    Raises:
        StoreUnavailableError: A newer fairqr has used the database.
    """
    connection.execute(
        sa.text("CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY)")
    )
    found = connection.execute(sa.text("SELECT max(version) FROM migrations"))
    version = found.scalar() or 0
    if version > len(MIGRATIONS):
        raise StoreUnavailableError(
            f"The database of runs has version {version}, and this fairqr knows only versions up "
            f"to {len(MIGRATIONS)}; upgrade fairqr, or name another database."
        )
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.execute(
            sa.text("INSERT INTO migrations (version) VALUES (:number)"), {"number": number}
        )
