"""The columns of the tables that :mod:`fairqr.graph.service.store.migrations` creates."""

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


def _table(name: str, columns: str, *, json: str) -> sa.TableClause:
    """Name the columns of a table, and those of them that hold JSON."""
    of_json = {*json.split()}
    return sa.table(
        name,
        *(sa.column(each, JsonText if each in of_json else None) for each in columns.split()),
    )


_SUMMARY = "id kind status query created started finished attempts"

RUNS = _table(
    "runs",
    # `carrier` is of the caller's trace. `worker` has the run until `lease` (in seconds since the
    # epoch); only its claim `ticket` may write, which stays after the end that it wrote. `losses`
    # counts the workers that went silent while doing it. With `cancel` the worker is to stop.
    f"{_SUMMARY} key_id request result problem carrier worker lease ticket losses cancel",
    json="query request result problem carrier",
)
SUMMARY = [RUNS.c[name] for name in _SUMMARY.split()]

# `private` is what resuming needs besides, until the run is over.
EVENTS = _table("events", "run_id number name data private", json="data private")
REPLIES = _table("replies", "run_id id reply", json="reply")
KEYS = _table("access_keys", "id name scopes created revoked sha256", json="name scopes")
