"""What a model that re-ranks, or is probed, will cost at the most, before anything is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fairqr.agents.ranking.item_ranker import Cost, ItemRanker, RankItem
from fairqr.base.errors import BudgetError
from fairqr.graph.search.context import Budget, Context
from fairqr.graph.search.model_ranking import items_of
from fairqr.graph.search.state import CostRecord, State
from fairqr.retrieval.engines.engine import SearchEngine

__all__ = ["Reserve", "expected_cost", "for_the_loop", "require_budget"]

Reserve = Callable[[str, Sequence[str], Context], Awaitable[Cost]]
"""Returns the most that is asked after a search, from the query and the ids that it found."""


async def expected_cost(
    engine: SearchEngine,
    ranker: ItemRanker | None,
    reserve: Reserve | None,
    query: str,
    found: Sequence[str],
    context: Context,
) -> CostRecord | None:
    """Return what asking will cost at the most, and check that the budget has room for it.

    Args:
        engine: Where the documents are.
        ranker: What re-ranks, if anything does.
        reserve: Returns what the steps after the search will ask.
        query: The original query.
        found: The ids of the documents that it found, best first.
        context: Of the run.

    Returns:
        The cost, or None if nothing re-ranks and nothing is asked after the search.

    Raises:
        BudgetError: It has no room for one list and the steps after the search.
        InputError: Not even two documents fit into what the model reads at once.
    """
    if ranker is None and reserve is None:
        return None
    cost = CostRecord(documents=0, calls=0, tokens=0, lists=0, reserved_calls=0, reserved_tokens=0)
    if ranker is not None:
        cost = await ranking_cost(engine, ranker, query, found, context)
    later = await reserve(query, found, context) if reserve is not None else Cost()
    cost["reserved_calls"], cost["reserved_tokens"] = later.calls, later.tokens
    parts = [f"to re-rank {cost['documents']} documents"] if ranker is not None else []
    parts += ["to probe the model"] if reserve is not None else []
    needed = Cost(cost["calls"], cost["tokens"]) + later
    require_budget(context.budget, needed, " and ".join(parts))
    return cost


async def ranking_cost(
    engine: SearchEngine, ranker: ItemRanker, query: str, found: Sequence[str], context: Context
) -> CostRecord:
    """Return what re-ranking will cost at the most.

    A method that refines may try the list of each round, of which the first that reaches the target
    is the last one asked about. What a refined query will find is not known yet; its lists may be
    longer than the first one, never longer than what the ranker reads.

    Args:
        engine: Where the documents are.
        ranker: What re-ranks.
        query: The original query.
        found: The ids of the documents that it found, best first.
        context: Of the run.

    Raises:
        InputError: Not even two documents fit into what the model reads at once.
    """
    strategy = context.strategy
    items = await items_of(engine, found[: min(strategy.reads, strategy.depth or 0)])
    if context.rounds and items:
        lacking = range(len(items), strategy.reads)
        items += [RankItem(f"\0{at}", items[0].title, items[0].text) for at in lacking]
    cost = ranker.cost(query, items) if len(items) > 1 else Cost()
    tries = context.rounds + 1 if strategy.final_step == "exposure-aware" else 1
    return CostRecord(
        documents=len(items),
        calls=cost.calls,
        tokens=cost.tokens,
        lists=tries,
        reserved_calls=0,
        reserved_tokens=0,
    )


def require_budget(budget: Budget, needed: Cost, what: str) -> None:
    """Check that a budget has room for something, before anything is spent.

    Args:
        budget: Of the run.
        needed: At the most.
        what: It is for: ``to re-rank 100 documents``.

    Raises:
        BudgetError: It has none; the number is named.
    """
    for unit, limit, number in (
        ("model_calls", budget.model_calls, needed.calls),
        ("tokens", budget.tokens, needed.tokens),
    ):
        if limit is not None and number > limit:
            raise BudgetError(
                unit,
                number,
                limit,
                f"It may take {number} {unit.replace('_', ' ')} {what}, and the budget has "
                f"{limit}; raise the budget, or lower the number of documents.",
            )


def for_the_loop(context: Context, state: State) -> Context:
    """Return the context with the budget of refinement, less one re-ranking and later steps."""
    cost, budget = state.get("cost"), context.budget
    if cost is None:
        return context
    left: dict[str, int] = {}
    if budget.model_calls is not None:
        left["model_calls"] = max(0, budget.model_calls - cost["calls"] - cost["reserved_calls"])
    if budget.tokens is not None:
        left["tokens"] = max(0, budget.tokens - cost["tokens"] - cost["reserved_tokens"])
    return context.model_copy(update={"budget": budget.model_copy(update=left)})
