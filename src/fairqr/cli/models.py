"""The commands ``fairqr models …``."""

from __future__ import annotations

from typing import Annotated

import typer

from fairqr.cli.common import AsJson, print_json
from fairqr.cli.progress import Progress

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Manage the embedded language models and their weights."
)

PREFIX = "local:"

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name that `fairqr models list` shows.")
]


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the embedded models, and say whether their weights are in the cache."""
    from fairqr.agents.embedded import WEIGHTS
    from fairqr.agents.weights import is_pulled, weights_path

    if as_json:
        rows = [
            {
                "name": f"{PREFIX}{name}",
                "title": weights.title,
                "licence": weights.licence,
                "bytes": weights.size,
                "pulled": is_pulled(name),
                "path": str(weights_path(name)),
            }
            for name, weights in WEIGHTS.items()
        ]
        print_json(rows)
        return
    width = max(map(len, WEIGHTS)) + len(PREFIX)
    for name, weights in WEIGHTS.items():
        pulled = "pulled" if is_pulled(name) else "not pulled"
        size = f"{weights.size / 1e6:.0f} MB"
        typer.echo(
            f"{PREFIX + name:<{width}}  {size:>8}  {pulled:<10}  {weights.licence}  {weights.title}"
        )
    typer.echo(
        "Any model that langchain's init_chat_model names works too, for example openai:gpt-4o."
    )


@app.command("pull")
def pull_model(name: Name) -> None:
    """Download the weights of an embedded model; an interrupted download resumes."""
    from fairqr.agents import weights

    name = name.removeprefix(PREFIX)
    if weights.verify(name):
        typer.echo(f"{PREFIX}{name} is already there: {weights.weights_path(name)}")
        return
    with Progress() as progress:
        path = weights.pull(name, progress.download(f"{PREFIX}{name}"), waiting=_waiting)
    typer.echo(f"{PREFIX}{name} is ready: {path}")


@app.command("remove")
def remove_model(name: Name) -> None:
    """Remove the weights of an embedded model from the cache."""
    from fairqr.agents import weights

    name = name.removeprefix(PREFIX)
    removed = weights.remove(name, waiting=_waiting)
    typer.echo(f"{PREFIX}{name} is removed." if removed else f"{PREFIX}{name} was not there.")


def _waiting() -> None:
    typer.echo("Another process is pulling these weights; waiting for it.", err=True)
