"""Runs a search, an answer or a probe, and shows meanwhile what is done."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import typer
from langchain_core.messages import AIMessageChunk

from fairqr.cli.common import RunSettings, agree
from fairqr.cli.output import console, literal, printable, quantity, say
from fairqr.graph.stream import StepData

if TYPE_CHECKING:
    from fairqr.api import FairSearch
    from fairqr.graph.search.context import Budget, Context
    from fairqr.graph.search.result import RankingCost, SearchResult

LAST_CHARACTERS = 200
"""How much of an answer is shown while it is written."""

SMALLER = "name fewer documents, set budget.model_calls or budget.tokens"
"""How to make a run smaller in which a model re-ranks or is probed."""


async def follow(
    search: FairSearch, query: str, context: Context, settings: RunSettings, quiet: bool, model: str
) -> tuple[Any, SearchResult | None]:
    """Run what a context asks for; stderr says what is done meanwhile.

    If an answer comes in pieces, its last words are shown there. If it breaks off, it is printed.

    Args:
        search: What runs it.
        query: What is searched for, or asked.
        context: How.
        settings: Whether the user agreed to a large run.
        quiet: Show no spinner.
        model: The name of a model that re-ranks or is probed, or ""; a line says what it may cost.

    Returns:
        The result, and that of the search which an answer or a probe began with.

    Raises:
        InputError: The run is large, and nobody agreed.
    """
    answer = ""
    first_search = None
    try:
        with console(stderr=True, quiet=quiet).status("searching") as status:
            async with contextlib.aclosing(search.stream(query, context)) as events:
                async for event in events:
                    if isinstance(event, AIMessageChunk):
                        answer += event.text
                        status.update(literal(answer[-LAST_CHARACTERS:], lines=True))
                    elif isinstance(event, StepData):
                        first_search = event.search or first_search
                        # An answer stays while it is judged.
                        if not answer:
                            status.update(event.step.replace("_", " "))
                        if event.cost and model:
                            _say_cost(event.cost, model, context.budget, settings.yes)
    except BaseException:
        if answer:
            say([literal(answer, lines=True)])
        raise
    return event, first_search


def _say_cost(cost: RankingCost, model: str, budget: Budget, yes: bool) -> None:
    """Say what a model may cost at most, and go on only if that is little or agreed to."""
    most_calls = min(cost.calls, budget.model_calls or cost.calls)
    most_tokens = min(cost.tokens, budget.tokens or cost.tokens)
    agree(most_calls, most_tokens, yes=yes, instead=SMALLER)

    calls = quantity(cost.calls, "call")
    documents = quantity(cost.documents, "document")
    sentence = f"at most {calls} of {model} for {documents}; about {cost.tokens:,} tokens"
    typer.echo(printable(sentence), err=True)
