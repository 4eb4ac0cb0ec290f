"""The command ``fairqr search``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.base.errors import ModelError
from fairqr.cli.common import (
    MODELS,
    OUTPUT,
    AsJson,
    BaseUrl,
    Corpus,
    TraceContent,
    TracePath,
    Yes,
    print_json,
    run_recorded,
    warn,
)
from fairqr.cli.parameters import ParameterCommand, Set, options_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairqr.cli.running import SearchRunSettings
    from fairqr.graph.search.context import Context
    from fairqr.graph.search.result import SearchResult

SearchCommand = ParameterCommand.of(
    "fairqr.graph.search.context:Context", "fairqr.cli.running:SearchRunSettings"
)


def _explain_methods(method: str | None) -> str | None:
    """Print the methods and end, if the user asks for ``help``."""
    if method != "help":
        return method
    from fairqr.agents.ranking.rankers import RANKERS
    from fairqr.cli.parameters import parameters_of
    from fairqr.graph.search.context import METHODS
    from fairqr.graph.search.ranking_context import READS
    from fairqr.retrieval.rerankers.registry import ABOUT, RERANKERS, TRAINED

    typer.echo("Methods (--method):")
    for name, strategy in METHODS.items():
        typer.echo(f"  {name}: {strategy.about}")
        if strategy.refines:
            typer.echo(
                f"      ask={strategy.ask}, groups={strategy.groups}, "
                f"pool={strategy.pool}, rerank={strategy.rerank}, "
                f"final_step={strategy.final_step}, depth={strategy.depth or 'k'}"
            )
    typer.echo("\nModels that re-rank (--method, or --set rerank=NAME), before the final step:")
    for ranker, about in RANKERS.items():
        typer.echo(f"  {ranker}: {about}; reads {READS[ranker]} documents")
    typer.echo(
        "\nFinal steps (--set final_step=NAME) and their options (--set options.NAME=VALUE):"
    )
    for step, entry in RERANKERS.items():
        trained = "; needs weights, see 'fairqr train --help'" if step in TRAINED else ""
        typer.echo(f"  {step}: {ABOUT[step]}{trained}")
        for option in parameters_of([entry]):
            typer.echo(f"      {option.name}: {option.help}")
    raise typer.Exit


MethodName = Annotated[
    str | None,
    typer.Option(
        callback=_explain_methods,
        is_eager=True,  # '--method help' needs no query
        help="{method} '--method help' explains them all.",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        help="The language model, such as local:smollm2-135m or openai:gpt-4o. causal:NAME only "
        "ranks; feedback refines without a model. [default: FAIRQR_MODEL, or the local model]",
        rich_help_panel=MODELS,
    ),
]
Retriever = Annotated[
    str,
    typer.Option(
        help="How to find documents: bm25 by words; dense by vectors; hybrid by words and vectors. "
        "Write dense:ENCODER or hybrid:ENCODER for another encoder. Defaults to hybrid for an "
        "index once MiniLM is pulled, and otherwise to the engine's own ranking.",
        show_default=False,
    ),
]


def search(
    ctx: typer.Context,
    query: Annotated[str, typer.Argument(help="What to search for.")],
    corpus: Corpus = None,
    attribute: Annotated[list[str] | None, typer.Option(help="{attributes}")] = None,
    target: Annotated[list[str] | None, typer.Option(help="{target}")] = None,
    k: Annotated[int | None, typer.Option("-k", help="{k}")] = None,
    method: MethodName = None,
    max_iterations: Annotated[
        int | None, typer.Option(help="{max_iterations}", rich_help_panel=MODELS)
    ] = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    retriever: Retriever = "auto",
    seed: Annotated[int | None, typer.Option(help="{seed}")] = None,
    set_: Set = None,
    yes: Yes = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the exposure by round: a .png or .html file.", rich_help_panel=OUTPUT
        ),
    ] = None,
    trace: TracePath = None,
    trace_content: TraceContent = False,
    as_json: AsJson = False,
) -> None:
    """Search so that every group gets its share of exposure, through relevant documents."""
    from fairqr.cli.running import SearchRunSettings
    from fairqr.graph.search.context import Context

    asked, settings = options_of(ctx, set_, Context, SearchRunSettings)
    if plot:
        from fairqr.cli.plot import check_plot

        check_plot(plot)
    work = searched(
        query,
        asked,
        settings,
        corpus=corpus,
        model=model,
        base_url=base_url,
        retriever=retriever,
        silent=as_json,
        yes=yes,
    )
    result, passages = run_recorded(work, trace, content=trace_content, command="search")
    for warning in result.warnings:
        warn(warning)
    if as_json:
        print_json(result)
    else:
        from fairqr.cli.render import print_result

        print_result(result, passages)
    if plot:
        from fairqr.cli.plot import draw

        draw(result, plot)
        if not as_json:
            typer.echo(f"drawn: {plot}")
    if settings.strict and (result.stop_reason == "model_failed" or _has_not_ranked(result)):
        raise ModelError("failed", "The model failed, and strict was set.")


async def searched(
    query: str,
    asked: Context,
    settings: SearchRunSettings,
    *,
    corpus: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    retriever: str = "auto",
    silent: bool = False,
    yes: bool = False,
) -> tuple[SearchResult, Mapping[str, str]]:
    """Search, print each round as it is measured, and read how the documents' texts begin.

    Args:
        query: What to search for.
        asked: How to search.
        settings: How the run works.
        corpus: What to search; defaults to the configured corpus.
        model: The language model; defaults to the configured one.
        base_url: The URL of an OpenAI-compatible server.
        retriever: How documents are found.
        silent: Print no rounds, and read no texts.
        yes: Whether the user agreed to a large run.

    Returns:
        The result, and the passages by the documents' ids.
    """
    from fairqr.agents.refiner import FeedbackRefiner
    from fairqr.api import FairSearch
    from fairqr.base.settings import default_corpus, default_model
    from fairqr.cli.render import SearchView, View
    from fairqr.graph.search.rankers import ASKED, Rankers
    from fairqr.graph.search.result import SearchResult

    prompts = settings.prompts_for(asked)
    asks_ranker = asked.strategy.ranker in ASKED
    name = (model or default_model()) if asked.rounds or asks_ranker else FeedbackRefiner.name
    opened = await settings.opened_model(name, base_url, refines=asked.rounds > 0)
    ranker = Rankers(None, opened, prompts).ranker_for(asked)
    if ranker is not None:
        await ranker.start()
    view = View() if silent else SearchView(query, corpus or default_corpus(), asked, name)
    if asks_ranker:
        view.expect_cost(name, asked.budget, yes=yes)
    async with settings.opened(corpus, asked.strategy.searched_by(retriever)) as engine:
        fair = FairSearch(engine, opened, ranker=ranker, prompts=prompts)
        result = await view.follow(fair, query, asked, SearchResult)
        shown = () if silent else (*result.baseline.ranking, *result.ranking)
        return result, await settings.passages_of(engine, (place.id for place in shown))


def _has_not_ranked(result: SearchResult) -> bool:
    """Return whether a model should have re-ranked, but answered no question."""
    found = result.reranking
    return found is not None and 0 < found.asked <= sum(found.failures.values())
