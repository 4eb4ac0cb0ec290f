"""The command ``fairqr search``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.base.errors import ModelError
from fairqr.cli.common import (
    AsJson,
    BaseUrl,
    Corpus,
    NoCache,
    PromptsFolder,
    SchemaPath,
    Timeout,
    TraceContent,
    TracePath,
    Yes,
    agree,
    open_to_search,
    pairs,
    print_json,
    run_recorded,
    warn,
)
from fairqr.retrieval.sendable import sendable

if TYPE_CHECKING:
    from fairqr.graph.search.context import Budget
    from fairqr.graph.search.result import SearchResult

__all__ = ["search"]


def _explain_methods(method: str) -> str:
    """Print what there is to choose from, and end, where that is asked for."""
    if method != "help":
        return method
    from fairqr.agents.ranking.open import RANKERS
    from fairqr.graph.search.context import METHODS
    from fairqr.graph.search.ranking_context import READS, RankingSettings
    from fairqr.retrieval.rerankers.registry import RERANKERS

    typer.echo("Methods (--method):")
    for name, strategy in METHODS.items():
        typer.echo(f"  {name}: {strategy.about}")
        if strategy.refines:
            groups = "all groups at once" if strategy.groups == "all" else "one group a round"
            typer.echo(
                f"      {groups}, pool {strategy.pool}, re-rank {strategy.rerank}, "
                f"final step {strategy.final_step}, depth {strategy.depth or 'k'}"
            )
    typer.echo("\nModels that re-rank (--rerank, or as --method), before the final step:")
    for ranker, about in RANKERS.items():
        typer.echo(f"  {ranker}: {about}; reads {READS[ranker]} documents")
    typer.echo("  Their settings (--ranking NAME=VALUE):")
    for setting, field in RankingSettings.model_fields.items():
        default = "the kind's own" if field.default is None else field.default
        typer.echo(f"      {setting} [{default}]")
    typer.echo("\nFinal steps (--final-step) and their options (--option NAME=VALUE):")
    for step, entry in RERANKERS.items():
        trained = "; needs weights, see 'fairqr train --help'" if entry.is_trained else ""
        typer.echo(f"  {step}: {entry.description} {entry.reference}{trained}")
        for option, field in entry.options_model().model_fields.items():
            default = "" if field.is_required() else f" [{field.default}]"
            typer.echo(f"      {option}{default}: {field.description or ''}")
    typer.echo("\nRetrievers (--retriever): bm25; dense, or dense:ENCODER, for vector search")
    raise typer.Exit


def _has_not_ranked(result: SearchResult) -> bool:
    """Tell whether a model was to re-rank and answered no question."""
    found = result.reranking
    return found is not None and 0 < found.asked <= sum(found.failures.values())


def _agree(cost: Mapping[str, Any] | None, budget: Budget, *, yes: bool) -> None:
    """Go on only if re-ranking is a small matter, or was agreed to; a budget limits it too.

    Raises:
        InputError: It is neither.
    """
    if yes or not cost:
        return
    calls, tokens = cost["calls"] * cost["lists"], cost["tokens"] * cost["lists"]
    agree(
        min(calls, budget.model_calls or calls),
        min(tokens, budget.tokens or tokens),
        yes=yes,
        instead="lower ranking.depth, set a budget such as --max-calls",
    )


def search(
    query: Annotated[str, typer.Argument(help="What to search for.")],
    corpus: Corpus = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="What to be fair about; all attributes if not given.")
    ] = None,
    intersect: Annotated[
        bool, typer.Option("--intersect", help="Measure the product of the attributes.")
    ] = False,
    target: Annotated[
        list[str] | None,
        typer.Option(help="retrieved:0.5,population:0.5, or gender=female:0.5,male:0.5."),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many results.")] = 20,
    depth: Annotated[
        int | None, typer.Option(help="How many documents each query retrieves.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            callback=_explain_methods,
            # Whoever asks for the methods has no query yet.
            is_eager=True,
            help="fairqr, fair-qr, a baseline, or a model that ranks; 'help' explains them all.",
        ),
    ] = "fairqr",
    groups: Annotated[
        str | None, typer.Option(help="Refined for in a round: most, lacking or all.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="last, union or per_group.")] = None,
    rerank: Annotated[
        str | None,
        typer.Option(
            help="original_query, fusion or none; or listwise, pairwise, monot5 or monobert."
        ),
    ] = None,
    ranking: Annotated[
        list[str] | None, typer.Option(help="Of the model that re-ranks, e.g. window=10.")
    ] = None,
    final_step: Annotated[
        str | None,
        typer.Option(help="exposure-aware, mmr, fa-ir, deltr, dlf or none, after the re-ranking."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Of the final step, e.g. trade_off=0.7.")
    ] = None,
    retriever: Annotated[str, typer.Option(help="bm25, or dense for vector search.")] = "bm25",
    model: Annotated[
        str | None,
        typer.Option(
            help="openai:gpt-4o and the like, local:smollm2-135m, or feedback; causal:… to rank."
        ),
    ] = None,
    base_url: BaseUrl = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="The version of a prompt, e.g. refine=v2.")
    ] = None,
    prompts: PromptsFolder = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of the model; the prompt's own if not given.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the model, where it supports one.")] = None,
    max_iterations: Annotated[int, typer.Option(help="Rounds of refinement at the most.")] = 5,
    threshold: Annotated[float, typer.Option(help="Stop at this divergence, in nats.")] = 0.005,
    direction: Annotated[
        str, typer.Option(help="Of KL: target_exposure or exposure_target.")
    ] = "target_exposure",
    smoothing: Annotated[float, typer.Option(help="Of both distributions in KL.")] = 1e-3,
    discount: Annotated[
        str, typer.Option(help="log2, trec, rbp(p), top_k(k) or inverse_log.")
    ] = "log2",
    patience: Annotated[int, typer.Option(help="Rounds without a decrease before it stops.")] = 1,
    max_calls: Annotated[int | None, typer.Option(help="Budget of model calls.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Budget of tokens.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Budget of time.")] = None,
    yes: Yes = False,
    timeout: Timeout = 60,
    no_cache: NoCache = False,
    schema: SchemaPath = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 2 if the model failed.")
    ] = False,
    trace: TracePath = None,
    trace_content: TraceContent = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the exposure by round: a .png or .html file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search fairly: refine the query toward under-represented groups, and re-rank."""
    # Bytes that are no text in the terminal's encoding arrive as halves of surrogate pairs.
    query = sendable(query)
    if plot:
        from fairqr.cli.plot import check_plot

        check_plot(plot)
    context: dict[str, Any] = {
        "attributes": attribute,
        "intersect": intersect,
        "target": target,
        "k": k,
        "depth": depth,
        "method": method,
        "groups": groups,
        "pool": pool,
        "rerank": rerank,
        "final_step": final_step,
        "ranking": pairs(ranking or [], "a setting of a ranker", "window=10") or None,
        "options": pairs(option or [], "an option of the final step", "trade_off=0.7"),
        "discount": discount,
        "threshold": threshold,
        "direction": direction,
        "smoothing": smoothing,
        "patience": patience,
        "max_iterations": max_iterations,
        "prompts": pairs(prompt or [], "a version of a prompt", "refine=v2"),
        "temperature": temperature,
        "seed": seed,
        "budget": {"model_calls": max_calls, "tokens": max_tokens, "seconds": max_seconds},
    }

    async def work() -> SearchResult:
        from fairqr.agents.feedback import FeedbackRefiner
        from fairqr.api import FairSearch, Token
        from fairqr.base.settings import default_corpus, default_model
        from fairqr.cli.render import LiveView, QuietView
        from fairqr.graph.search.context import make_context
        from fairqr.graph.search.rankers import ASKED, Rankers, open_language_model, require_refines
        from fairqr.graph.search.result import SearchResult
        from fairqr.prompts.library import PromptLibrary

        asked = make_context(**context)
        library = PromptLibrary(prompts)
        library.check(asked.prompts)
        options: dict[str, Any] = {"cache": not no_cache, "base_url": base_url, "timeout": timeout}
        name = model or default_model()
        is_asked = asked.rounds > 0 or asked.strategy.ranker in ASKED
        refiner = None
        if is_asked and name != FeedbackRefiner.name:
            refiner = open_language_model(name, **options)
            if asked.rounds:
                require_refines(refiner)
                # What is missing is better known before a large corpus is indexed.
                await refiner.start()
        ranker = Rankers(None, refiner, library).ranker_for(asked)
        if ranker is not None:
            await ranker.start()
        searched = default_corpus() if corpus is None else corpus
        engine = await open_to_search(searched, schema=schema, retriever=retriever)
        if asked.rounds and refiner is None:
            refiner = open_language_model(name, engine=engine)
        ranks = refiner.name if refiner and asked.strategy.ranker in ASKED else ""
        view = QuietView(ranks) if as_json else LiveView(query, searched, asked, refiner, ranks)
        result: dict[str, Any] = {}
        try:
            with view:
                fair = FairSearch(engine, refiner, ranker=ranker, prompts=library)
                async with contextlib.aclosing(fair.stream(query, **context)) as steps:
                    async for step in steps:
                        if isinstance(step, Token):
                            continue
                        _agree(step.update.get("cost"), asked.budget, yes=yes)
                        view.show(step)
                        result = step.update.get("result", result)
        finally:
            await engine.aclose()
        return SearchResult.model_validate(result)

    result = run_recorded(work(), trace, content=trace_content, command="search")
    for warning in result.warnings:
        warn(warning)
    if as_json:
        print_json(result.model_dump_json())
    else:
        from fairqr.cli.render import print_result

        print_result(result)
    if plot:
        from fairqr.cli.plot import draw

        draw(result, plot)
        if not as_json:
            typer.echo(f"drawn: {plot}")
    if strict and (result.stop_reason == "model_failed" or _has_not_ranked(result)):
        raise ModelError("failed", "The model failed, and --strict was given.")
