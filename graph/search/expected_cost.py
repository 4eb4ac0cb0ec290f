"""Computes the most that re-ranking or probing will cost, before a model is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import Cost, ItemRanker, RankItem
from fairqr.base.errors import BudgetError
from fairqr.graph.search.context import Context
from fairqr.graph.search.decisions import shortage
from fairqr.graph.search.model_ranking import items_of
from fairqr.graph.search.state import CostRecord, State
from fairqr.retrieval.engines.engine import SearchEngine

Reserve = Callable[[str, Sequence[str], Context], Awaitable[Cost]]
"""Returns the largest cost of the steps after a search, from the query and the ids it found."""


async def expected_cost(
    engine: SearchEngine,
    ranker: ItemRanker | None,
    reserve: Reserve | None,
    query: str,
    found: Sequence[str],
    context: Context,
) -> CostRecord | None:
    """Return the largest cost of asking models, and check that the budget has room for it.

    Args:
        engine: The engine with the documents.
        ranker: The model that re-ranks; optional.
        reserve: Returns the largest cost of the steps after the search; optional.
        query: The original query.
        found: The ids of the documents that it found, best first.
        context: The context of the run.

    Returns:
        The cost, or None if no model re-ranks and none is asked after the search.

    Raises:
        BudgetError: The budget has no room for one list and the steps after the search.
        InputError: A window of documents does not fit into what the model reads at once.
    """
    if ranker is None and reserve is None:
        return None
    documents, lists, ranking, tasks = 0, 0, Cost(), []
    if ranker is not None:
        items = await _longest_list(engine, found, context)
        documents, ranking = len(items), ranker.cost(query, items) if len(items) > 1 else Cost()
        # The exposure-aware step may try the list of each round, until one reaches the target.
        lists = context.rounds + 1 if context.strategy.final_step == "exposure-aware" else 1
        tasks.append(f"to re-rank {documents} documents")
    later = Cost()
    if reserve is not None:
        later = await reserve(query, found, context)
        tasks.append("to probe the model")
    if (lack := shortage(context.budget, Usage(), ranking + later)) is not None:
        raise BudgetError(
            lack.unit,
            lack.needed,
            lack.limit,
            f"It may take {lack.needed} {lack.unit_in_words} {' and '.join(tasks)}, but the budget "
            f"has {lack.limit}; raise the budget, or lower the number of documents.",
        )
    return CostRecord(
        documents=documents,
        calls=ranking.calls,
        tokens=ranking.tokens,
        lists=lists,
        reserved_calls=later.calls,
        reserved_tokens=later.tokens,
    )


async def _longest_list(
    engine: SearchEngine, found: Sequence[str], context: Context
) -> list[RankItem]:
    """Return the longest list that a ranker may have to order in this run.

    The results of refined queries are unknown yet. Their lists may be longer than the first one,
    but never longer than what the ranker reads.
    """
    strategy = context.strategy
    items = await items_of(engine, found[: min(strategy.reads, strategy.depth or 0)])
    if context.rounds and items:
        lacking = range(len(items), strategy.reads)
        items += [RankItem(f"\0{at}", items[0].title, items[0].text) for at in lacking]
    return items


def for_the_loop(context: Context, state: State) -> Context:
    """Return the context with the budget for refinement: without re-ranking and later steps."""
    cost, budget = state.get("cost"), context.budget
    if cost is None:
        return context
    left: dict[str, int] = {}
    if budget.model_calls is not None:
        left["model_calls"] = max(0, budget.model_calls - cost["calls"] - cost["reserved_calls"])
    if budget.tokens is not None:
        left["tokens"] = max(0, budget.tokens - cost["tokens"] - cost["reserved_tokens"])
    return context.model_copy(update={"budget": budget.model_copy(update=left)})
