"""The methods of a search, explained."""

from __future__ import annotations

import typer

from fairqr.agents.ranking.rankers import RANKERS
from fairqr.cli.parameters import parameters_of
from fairqr.graph.search.context import METHODS, READS
from fairqr.retrieval.rerankers.registry import ABOUT, RERANKERS, TRAINED


def explain_methods() -> None:
    """Print the methods, the models that re-rank, and the final steps with their options."""
    typer.echo("Methods (--method):")
    for name, strategy in METHODS.items():
        typer.echo(f"  {name}: {strategy.about}")
        if strategy.refines:
            names = ("ask", "groups", "pool", "rerank", "final_step", "depth")
            told = ", ".join(f"{name}={getattr(strategy, name) or 'k'}" for name in names)
            typer.echo(f"      {told}")
    typer.echo("\nModels that re-rank (--method, or --set rerank=NAME), before the final step:")
    for ranker, about in RANKERS.items():
        typer.echo(f"  {ranker}: {about}; reads {READS[ranker]} documents")
    typer.echo("\nFinal steps (--set final_step=NAME), options (--set options.NAME=VALUE):")
    for step, entry in RERANKERS.items():
        trained = "; needs weights, see 'fairqr train --help'" if step in TRAINED else ""
        typer.echo(f"  {step}: {ABOUT[step]}{trained}")
        for option in parameters_of([entry]):
            typer.echo(f"      {option.name}: {option.help}")
