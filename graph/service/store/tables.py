"""The tables, as :mod:`fairqr.graph.service.store.migrations` creates them."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

__all__ = ["EVENTS", "KEYS", "REPLIES", "RUNS", "SUMMARY", "JsonText"]


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


_METADATA = sa.MetaData()

RUNS = sa.Table(
    "runs",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("query", JsonText, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("started", sa.Double),
    sa.Column("finished", sa.Double),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("request", JsonText, nullable=False),
    sa.Column("result", JsonText),
    sa.Column("problem", JsonText),
    sa.Column("carrier", JsonText, nullable=False),  # of the caller's trace
    sa.Column("worker", sa.Text),  # the only worker that may do it
    sa.Column("lease", sa.Double),  # when the worker loses it, in seconds since the epoch
    sa.Column("ticket", sa.Text),  # identifies the claim of the worker
    sa.Column("losses", sa.Integer, nullable=False),  # workers that went silent while doing it
    sa.Column("cancel", sa.Boolean, nullable=False),  # the worker has to stop
)

SUMMARY = [
    RUNS.c[name]
    for name in (
        "id",
        "kind",
        "status",
        "query",
        "created",
        "started",
        "finished",
        "attempts",
    )
]

EVENTS = sa.Table(
    "events",
    _METADATA,
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("data", JsonText, nullable=False),
    sa.Column("private", JsonText),  # what resuming needs, until the run is over
)

REPLIES = sa.Table(
    "replies",
    _METADATA,
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("reply", JsonText, nullable=False),
)

KEYS = sa.Table(
    "access_keys",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", JsonText, nullable=False),
    sa.Column("scopes", JsonText, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("revoked", sa.Double),
    sa.Column("sha256", sa.Text, nullable=False),
)
