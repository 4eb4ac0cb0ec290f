"""The entry point: puts the commands together, and turns errors into a sentence and exit code 2."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fairqr.cli import corpus, index, models, prompts, search, trace
from fairqr.errors import FairqrError

__all__ = ["app", "main"]

app = typer.Typer(
    name="fairqr",
    help="Fair search: measure the exposure of groups in a ranking, and mend it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("search")(search.search)
app.add_typer(corpus.app, name="corpus")
app.add_typer(index.app, name="index")
app.add_typer(models.app, name="models")
app.add_typer(prompts.app, name="prompts")
app.add_typer(trace.app, name="trace")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fairqr {version('fairqr')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Fair search: measure the exposure of groups in a ranking, and mend it."""


def main() -> None:
    """Run the command; errors that a user can mend end with one sentence and exit code 2."""
    try:
        app()
    except FairqrError as error:
        typer.echo(f"fairqr: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("fairqr: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; say nothing when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
