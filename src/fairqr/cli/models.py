"""The commands ``fairqr models …``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.cli.options import command
from fairqr.cli.output import Printed, number, table
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.base.weights import Weights

app = typer.Typer()

PREFIX = "local:"


@command(app)
def list_() -> Printed:
    """List the embedded models, and whether their weights are in the cache."""
    from fairqr.base.weights import WEIGHTS, is_pulled, weights_path

    rows: list[dict[str, Any]] = [
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
    shown = table(
        ("name", "kind", number("MB"), "", "licence", "title"),
        (
            (
                row["name"],
                row["kind"],
                f"{row['bytes'] / 1e6:.0f}",
                "pulled" if row["pulled"] else "not pulled",
                row["licence"],
                row["title"],
            )
            for row in rows
        ),
    )
    others = (
        "All models of LangChain's init_chat_model and init_embeddings work too, such as "
        "openai:gpt-4o or dense:openai:text-embedding-3-small."
    )
    return Printed(rows, [shown, others])


@command(app)
def pull(names: list[str] | None = None) -> None:
    """Download the weights of embedded models; an interrupted download resumes.

    Args:
        names: Names that 'fairqr models list' shows. [default: all]
    """
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
    """Pull the weights of models side by side, each with a bar, and return their paths."""
    from concurrent.futures import ThreadPoolExecutor

    from fairqr.base.weights import pull as pull_weights

    with Progress() as progress, ThreadPoolExecutor() as pool:
        bars = [progress.count(f"{weights.full_name}, MB", 1e6) for weights in wanted]
        return list(pool.map(pull_weights, [weights.name for weights in wanted], bars))


@command(app)
def remove(name: str) -> None:
    """Remove the weights of an embedded model from the cache.

    Args:
        name: A name that 'fairqr models list' shows.
    """
    from fairqr.base.weights import lookup
    from fairqr.base.weights import remove as remove_weights

    weights = lookup(name.removeprefix(PREFIX))
    removed = remove_weights(weights.name)
    typer.echo(f"{weights.full_name} {'is removed' if removed else 'was not there'}.")
