"""The commands ``fairqr keys …``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fairqr.cli.common import AsJson, print_json, run
from fairqr.cli.serve import require_service

if TYPE_CHECKING:
    from fairqr.graph.service.records import AccessKey
    from fairqr.graph.service.store import Store

app = typer.Typer()

T = TypeVar("T")

Database = Annotated[
    str | None,
    typer.Option(help="The service's database. [default: the configured one]", metavar="URL"),
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who or what will use the key.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What the key may do: read, run (includes read) or admin (includes both). "
            "Repeatable. [default: run]"
        ),
    ] = None,
    database: Database = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the key.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an access key and print it. It cannot be shown again."""
    scopes: Any = scope or ["run"]
    key, secret = _with_store(database, lambda store: store.create_key(name, scopes))
    if as_json:
        print_json({**_shown(key), "key": secret})
        return
    typer.echo(secret)
    if not quiet:
        typer.echo(
            f"The key {key.id} of {key.name} may {', '.join(key.scopes)}. Save it now: it is not "
            "shown again. Send it as 'Authorization: Bearer KEY'.",
            err=True,
        )


@app.command("list")
def list_(database: Database = None, as_json: AsJson = False) -> None:
    """List the access keys, without their secrets."""
    keys = _with_store(database, lambda store: store.keys())
    if as_json:
        print_json({"keys": [_shown(key) for key in keys]})
        return
    for key in keys:
        state = "active" if key.revoked is None else f"revoked {_day(key.revoked)}"
        scopes = ",".join(key.scopes)
        typer.echo(f"{key.id}  {_day(key.created)}  {scopes:14}  {state:18}  {key.name}")


@app.command()
def revoke(
    id_: Annotated[
        str, typer.Argument(metavar="ID", help="The key's id, as 'fairqr keys list' shows it.")
    ],
    database: Database = None,
) -> None:
    """Revoke an access key for good."""
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
