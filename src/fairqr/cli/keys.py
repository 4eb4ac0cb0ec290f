"""The commands ``fairqr keys …``: access keys of the service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fairqr.cli.common import run
from fairqr.cli.options import command
from fairqr.cli.output import Printed, table
from fairqr.cli.service import SERVICE, prepare_service

if TYPE_CHECKING:
    from fairqr.graph.service.store import Store

T = TypeVar("T")

app = typer.Typer()


@command(app)
def create(
    name: Annotated[str, typer.Argument(help="Who or what will use the key.")],
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help=(
                "What the key may do: read, run (includes read) or admin (includes both). "
                "Repeatable. [default: run]"
            ),
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", help="The service's database. [default: the configured one]"),
    ] = None,
) -> Printed:
    """Make an access key and print it, alone on stdout. It cannot be shown again."""
    scopes: Any = scope or ["run"]
    key, secret = _with_store(database, lambda store: store.create_key(name, scopes))
    rights = ", ".join(key.scopes)
    typer.echo(
        f"The key {key.id} of {key.name} may {rights}. Save it now: it is not shown again. Send "
        "it as 'Authorization: Bearer KEY'.",
        err=True,
    )
    data = {**key.model_dump(exclude={"sha256"}), "key": secret}
    return Printed(data, [secret])


@command(app)
def list_(
    *,
    database: Annotated[
        str | None,
        typer.Option("--database", help="The service's database. [default: the configured one]"),
    ] = None,
) -> Printed:
    """List the access keys, without their secrets."""
    rows = []
    objects = []
    for key in _with_store(database, lambda store: store.keys()):
        scopes = ",".join(key.scopes)
        rows.append((key.id, _day(key.created), scopes, _day(key.revoked), key.name))
        objects.append(key.model_dump(exclude={"sha256"}))
    heads = ["id", "made", "scopes", "revoked", "name"]
    return Printed({"keys": objects}, [table(heads, rows)])


@command(app)
def revoke(
    id_: Annotated[str, typer.Argument(help="The key's id, as 'fairqr keys list' shows it.")],
    *,
    database: Annotated[
        str | None,
        typer.Option("--database", help="The service's database. [default: the configured one]"),
    ] = None,
) -> None:
    """Revoke an access key for good."""
    key = _with_store(database, lambda store: store.revoke_key(id_))
    typer.echo(f"The key {key.id} of {key.name} is revoked.")


def _with_store(database: str | None, request: Callable[[Store], Awaitable[T]]) -> T:
    """Open the service's database, make a request to it, and close it."""
    settings = prepare_service("service", SERVICE, database=database)
    from fairqr.graph.service.store import Store

    async def work() -> T:
        async with Store.opened(settings.database) as store:
            return await request(store)

    return run(work())


def _day(seconds: float | None) -> str:
    """Return the day of a time; empty if there is none."""
    if seconds is None:
        return ""
    return str(datetime.fromtimestamp(seconds, UTC).date())
