"""The commands ``fairqr keys …``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from fairqr.cli.common import run
from fairqr.cli.options import command
from fairqr.cli.output import Printed, table
from fairqr.cli.serve import require_service

if TYPE_CHECKING:
    from fairqr.graph.service.records import AccessKey
    from fairqr.graph.service.store import Store

app = typer.Typer()

T = TypeVar("T")


@command(app)
def create(
    name: str,
    *,
    scope: list[str] | None = None,
    database: str | None = None,
    quiet: bool = False,
) -> Printed:
    """Make an access key and print it. It cannot be shown again.

    Args:
        name: Who or what will use the key.
        scope: What the key may do: read, run (includes read) or admin (includes both). Repeatable.
            [default: run]
        database: The service's database. [default: the configured one]
        quiet: Print only the key.
    """
    scopes: Any = scope or ["run"]
    key, secret = _with_store(database, lambda store: store.create_key(name, scopes))
    if not quiet:
        typer.echo(
            f"The key {key.id} of {key.name} may {', '.join(key.scopes)}. Save it now: it is not "
            "shown again. Send it as 'Authorization: Bearer KEY'.",
            err=True,
        )
    return Printed({**_shown(key), "key": secret}, [secret])


@command(app)
def list_(*, database: str | None = None) -> Printed:
    """List the access keys, without their secrets.

    Args:
        database: The service's database. [default: the configured one]
    """
    keys = _with_store(database, lambda store: store.keys())
    rows = (
        (
            key.id,
            _day(key.created),
            ",".join(key.scopes),
            "active" if key.revoked is None else f"revoked {_day(key.revoked)}",
            key.name,
        )
        for key in keys
    )
    return Printed(
        {"keys": [_shown(key) for key in keys]}, [table(["id", "made", "scopes", "", "name"], rows)]
    )


@command(app)
def revoke(id_: str, *, database: str | None = None) -> None:
    """Revoke an access key for good.

    Args:
        id_: The key's id, as 'fairqr keys list' shows it.
        database: The service's database. [default: the configured one]
    """
    key = _with_store(database, lambda store: store.revoke_key(id_))
    typer.echo(f"The key {key.id} of {key.name} is revoked.")


def _with_store(database: str | None, ask: Callable[[Store], Awaitable[T]]) -> T:
    """Open the service's database, ask it something, and close it."""
    require_service()
    from fairqr.graph.service.configuration import service_settings
    from fairqr.graph.service.store import Store

    async def work() -> T:
        store = await Store.open(service_settings(database=database).database)
        try:
            return await ask(store)
        finally:
            await store.close()

    return run(work())


def _shown(key: AccessKey) -> dict[str, Any]:
    return key.model_dump(exclude={"sha256"})


def _day(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
