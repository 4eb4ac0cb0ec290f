"""What a run may still spend on models."""

from __future__ import annotations

from typing import NamedTuple

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import Cost
from fairqr.graph.running import running_seconds
from fairqr.graph.search.context import AUTO_BUDGET, Budget, Context
from fairqr.graph.search.state import SearchState


class Shortage(NamedTuple):
    """What a budget lacks: ``needed`` of a unit, while only ``remaining`` of ``limit`` are left.

    ``unit`` is ``model_calls`` or ``tokens``.
    """

    unit: str
    needed: int
    remaining: int
    limit: int


def shortage(budget: Budget, spent: Usage, needed: Cost) -> Shortage | None:
    """Return what a budget lacks for something, or None if it has room for it."""
    spent_tokens = spent.prompt_tokens + spent.completion_tokens
    units = [
        ("model_calls", budget.model_calls, spent.model_calls, needed.calls),
        ("tokens", budget.tokens, spent_tokens, needed.tokens),
    ]
    for unit, limit, used, needed_units in units:
        if limit is not None and used + needed_units > limit:
            return Shortage(unit, needed_units, max(0, limit - used), limit)
    return None


class Spending:
    """What the loop has spent, and what of the budget it may still spend.

    Args:
        context: The context of the run, with its budget.
        state: The state of the run.
    """

    def __init__(self, context: Context, state: SearchState) -> None:
        self.usage = Usage(**state["usage"])
        reserved = state.get("cost") or {"calls": 0, "tokens": 0}
        self._reserved = Cost(reserved["calls"], reserved["tokens"])
        self._budget = context.budget
        if context.strategy.ask == "auto":
            self._budget = with_auto_limits(context.budget, self._reserved)

    def questions_left(self, tokens_a_question: int) -> int | None:
        """Return how many questions the loop may still ask, or None without such a budget.

        What a model that re-ranks at the end needs is reserved for it.

        Args:
            tokens_a_question: About how many tokens a question takes at most, with its reply.
        """
        calls = self._budget.model_calls
        tokens = self._budget.tokens
        questions: list[int] = []
        if calls is not None:
            questions.append(calls - self._reserved.calls - self.usage.model_calls)
        if tokens is not None:
            spent = self.usage.prompt_tokens + self.usage.completion_tokens
            tokens_left = tokens - self._reserved.tokens - spent
            questions.append(tokens_left // max(1, tokens_a_question))
        return max(0, min(questions)) if questions else None

    def is_spent(self, tokens_a_question: int = 1) -> bool:
        """Return whether the budget has no room for another question of the loop."""
        limit = self._budget.seconds
        if limit is not None and running_seconds() >= limit:
            return True
        return self.questions_left(tokens_a_question) == 0


def tokens_a_question(refiner: object) -> int:
    """Return about how many tokens a question of a refiner takes at most; 1 if it does not say."""
    return getattr(refiner, "tokens_a_question", 1)


def with_auto_limits(budget: Budget, reserved: Cost) -> Budget:
    """Return a budget with the limits of ``ask=auto``, unless it has limits of its own.

    Args:
        budget: The budget of the run.
        reserved: What a model that re-ranks at the end may spend beside these limits.
    """
    limits = {
        "model_calls": (AUTO_BUDGET.model_calls or 0) + reserved.calls,
        "tokens": (AUTO_BUDGET.tokens or 0) + reserved.tokens,
    }
    return Budget(**limits | budget.model_dump(exclude_none=True))
