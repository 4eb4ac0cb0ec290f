"""The tables of the database, the same in SQLite and PostgreSQL."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator


class JsonText(TypeDecorator[Any]):
    """JSON in a column of plain text, in ASCII.

    PostgreSQL refuses NUL and lone surrogates in its text and JSON types. Queries, replies and
    documents may contain both; here they are escaped.
    """

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:  # noqa: D102
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:  # noqa: D102
        return None if value is None else json.loads(value)


METADATA = sa.MetaData()

RUNS = sa.Table(
    "runs",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("query", JsonText, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("started", sa.Double),
    sa.Column("finished", sa.Double),
    # Only the last attempt may write. Some of them were handed over, and not lost.
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("handed_over", sa.Integer, nullable=False, default=0),
    sa.Column("cancel", sa.Boolean, nullable=False, default=False),
    sa.Column("version", sa.Text),  # of the index that the checkpoints are over
    sa.Column("request", JsonText, nullable=False),
    sa.Column("result", JsonText),
    sa.Column("problem", JsonText),
    sa.Column("carrier", JsonText, nullable=False),  # the headers of the caller's trace
    sa.Column("idempotency", sa.Text),  # the client's name of the request
    sa.Index("runs_by_status", "status", "created"),
    sa.Index("runs_by_key", "key_id", "created"),
    sa.Index("runs_by_end", "finished"),
)


def _run_id() -> sa.Column[str]:
    """Return the column of a table with rows of runs."""
    return sa.Column(
        "run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True
    )


EVENTS = sa.Table(
    "events",
    METADATA,
    _run_id(),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("step", sa.Text),  # the key of the step that ended, the same in each attempt
    sa.Column("data", JsonText, nullable=False),
)

REPLIES = sa.Table(
    "replies",
    METADATA,
    _run_id(),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("reply", JsonText, nullable=False),
)

KEYS = sa.Table(
    "access_keys",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", JsonText, nullable=False),
    sa.Column("scopes", JsonText, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("revoked", sa.Double),
    sa.Column("sha256", sa.Text, nullable=False),
)

ENDED = sa.Table(
    "ended_runs",
    METADATA,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)
"""How many runs ever ended, in any process; the runs themselves are deleted after a while."""

LAYOUT = sa.Table(
    "layout",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("trial", sa.LargeBinary),
)
"""The version of these tables, and a column that checks write into."""

VERSION = 6

VERSION_OF_1_0 = 4

FROM_1_0 = (
    "DELETE FROM runs WHERE status IN ('queued', 'running')",
    *(f"ALTER TABLE runs DROP COLUMN {name}" for name in ("worker", "lease", "ticket", "losses")),
    "ALTER TABLE runs ADD COLUMN handed_over INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE runs ADD COLUMN version TEXT",
    "ALTER TABLE runs ADD COLUMN idempotency TEXT",
    "ALTER TABLE events DROP COLUMN private",
    "ALTER TABLE events ADD COLUMN step TEXT",
    "DROP TABLE migrations",
)
"""Statements that upgrade the tables of fairqr 1.0, with its keys and its finished runs."""


def make_tables(connection: sa.Connection) -> None:
    """Make the tables; upgrade the tables of fairqr 1.0.

    Raises:
        OSError: A newer fairqr has used the database, or one before 1.0.
    """
    is_of_1_0 = sa.inspect(connection).has_table("migrations")
    if is_of_1_0:
        version = connection.scalar(sa.text("SELECT max(version) FROM migrations"))
        _require(version, VERSION_OF_1_0)
        for statement in FROM_1_0:
            connection.execute(sa.text(statement))

    METADATA.create_all(connection)
    version = connection.scalar(sa.select(LAYOUT.c.version))
    if version is None:
        connection.execute(LAYOUT.insert().values(version=VERSION))
    else:
        _require(version, VERSION)


def _require(version: int, readable: int) -> None:
    """Refuse tables of another version than the one that we can read.

    Raises:
        OSError: They are.
    """
    if version != readable:
        raise OSError(
            f"it has version {version}, and this fairqr knows only {VERSION} and {VERSION_OF_1_0}; "
            "use the fairqr that wrote it, or name another database"
        )
